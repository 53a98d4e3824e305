"""PURE: what pool.yaml says of classes, held against every GPU model that is known before an agent has told of one."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TypeVar

from slurm_plugin import config_promises
from slurm_plugin.catalogue import Catalogue, Class
from slurm_plugin.classes import NamedClass, Products, build, build_named, check_aliases, class_named
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.products import load_products, product_named
from slurm_plugin.pool import PoolConfig

Where = tuple[str, ...]
T = TypeVar("T")


def mistakes(pool: PoolConfig) -> Iterable[tuple[Where, ConfigError]]:
    """What is wrong on every GPU that this pool may have, with its place in the file.

    The models are those that `product:` names when it does so for every entry, else all that are known: whether the
    GPUs that are really there can serve a class is for `plan` and `apply` to say.
    """
    planning = pool.planning
    if not (pool.classes or pool.aliases or pool.default_class or planning.guarantees or planning.reaches):
        return
    kinds, good = _kinds(pool), dict[str, NamedClass]()
    for name, wish in pool.classes.items():
        wrong = _always(partial(_named, {name: wish}), kinds)
        if wrong is None:
            good[name] = wish
        else:
            yield ("classes", name), wrong
    books: list[Callable[[], Catalogue]] = [cache(partial(_book, pool, kind, good)) for kind in kinds]
    for name, target in pool.aliases.items():
        wrong = _always(partial(check_aliases, {name: target}), (book() for book in books))
        if wrong is not None:
            yield ("aliases", name), wrong
    if pool.default_class:
        named = partial(class_named, pool.default_class, where="default_class")
        wrong = _always(named, (book() for book in books))
        if wrong is not None:
            yield ("default_class",), wrong
    unknown = False
    for place, name in config_promises.planned(pool):
        meaning = partial(config_promises.meaning, pool, name, where=".".join(place))
        wrong = _always(meaning, (book() for book in books))
        if wrong is not None:
            unknown = True
            yield place, wrong
    if not unknown and (planning.guarantees or planning.reaches):
        yield from config_promises.mistakes(pool, books[-1]())


def _kinds(pool: PoolConfig) -> list[Products]:
    """Each model alone, since a share differs by model; then all together, for what names profiles of several."""
    named = {group.product for group in pool.groups}
    names = sorted(load_products() if "" in named else named)
    every = {name: product_named(name).profiles for name in names}
    return [*({name: profiles} for name, profiles in every.items()), *([every] if len(every) > 1 else [])]


def _always(attempt: Callable[[T], object], subjects: Iterable[T]) -> ConfigError | None:
    """What the last of these says, when it goes wrong with all of them."""
    last: ConfigError | None = None
    for subject in subjects:
        try:
            attempt(subject)
        except ConfigError as error:
            last = error
        else:
            return None
    return last


def _named(wishes: Mapping[str, NamedClass], kind: Products) -> tuple[Class, ...]:
    return tuple(build_named(kind, wishes))


def _book(pool: PoolConfig, kind: Products, named: dict[str, NamedClass]) -> Catalogue:
    served = {name: wish for name, wish in named.items() if _always(partial(_named, {name: wish}), [kind]) is None}
    return Catalogue(
        pool=pool.pool,
        gres=pool.gres.name,
        pad=pool.gres.pad,
        mem=pool.gres.memory,
        partitions=(),
        classes=build(kind, served),
    )
