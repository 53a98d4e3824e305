"""PURE: the request classes of a pool, made from what its GPUs can do and from what its admin names.

A class is a type of the vgpu GRES and says "any of these profiles". There is one for each profile (`2g.20gb`), one for
each amount of memory that a profile's name has (`m20`, at least that), one for each share (`q4`, a quarter of a GPU),
and the admin's own. Geometry comes as `slurm_plugin.mig` has it, from the table or from GPUs that answered themselves.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from slurm_plugin.catalogue import Catalogue, Class, Kind
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig import serving
from slurm_plugin.mig.geometry import Shapes, attributes, compute_slices, memory_gb, memory_slices
from slurm_plugin.mig.layouts import engine_limit, why_impossible
from slurm_plugin.request import Refusal, Request, Want, parse, resolve

Products = Mapping[str, Shapes]  # any name for a GPU model -> its profiles by name

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_SHORT = re.compile(r"[mq][0-9]+")
_UNITS = frozenset(letter + tail for letter in "kmgtp" for tail in ("", "b", "ib"))
_RESERVED = frozenset({"pad", "none", "gres", "vgpu", "default", "all"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedClass:
    """A class the admin made. Exactly one of the three is given."""

    memory_gb: int = 0
    fraction: int = 0  # N of 1/N
    profiles: tuple[str, ...] = ()


def named_class(name: str, *, memory: str = "", fraction: str = "", profiles: Sequence[str] = ()) -> NamedClass:
    """What an admin wrote under `classes:` in pool.yaml; `memory` and `fraction` are texts of the request grammar.

    Raises ConfigError naming the class.
    """
    if [bool(memory), bool(fraction), bool(profiles)].count(True) != 1:
        raise ConfigError(f"classes.{name}: give exactly one of memory, fraction and profiles")
    if profiles:
        return NamedClass(profiles=tuple(profiles))
    read = parse(f"vgpu:{memory or fraction}:1")
    if not isinstance(read, Request) or read.want is not (Want.MEMORY if memory else Want.FRACTION):
        what = "an amount of memory, such as 10gb" if memory else "a share, such as 1/2"
        raise ConfigError(f"classes.{name}: '{memory or fraction}' is not {what}")
    return NamedClass(memory_gb=read.number) if memory else NamedClass(fraction=read.number)


def build(products: Products, named: Mapping[str, NamedClass] | None = None) -> tuple[Class, ...]:
    """Every class of the pool: profiles, amounts of memory, shares, then the admin's, each served best profile first.

    Raises ConfigError when an admin's class has a bad name, a profile that no GPU of the pool has, or no profile.
    """
    every = {name for profiles in products.values() for name in profiles}
    amounts = sorted({gb for gb in map(memory_gb, every) if gb})
    shares = range(1, max(map(compute_slices, products.values()), default=0) + 1)
    classes = [
        *(_class(products, name, Kind.EXACT, 0, {name}) for name in _best_first(products, every)),
        *(_class(products, f"m{gb}", Kind.MEMORY, gb, _with_memory(products, gb)) for gb in amounts),
        *(_class(products, f"q{n}", Kind.FRACTION, n, _with_share(products, n)) for n in shares),
    ]
    return (*(one for one in classes if one.profiles), *build_named(products, named or {}))


def build_named(products: Products, named: Mapping[str, NamedClass]) -> Iterator[Class]:
    """The admin's alone, at much less cost. Raises ConfigError likewise."""
    every = {name for profiles in products.values() for name in profiles}
    for name, wish in named.items():
        _check_name(f"classes.{name}", name, every)
        serving_names = _wished(products, name, wish, every)
        if not serving_names:
            raise ConfigError(f"classes.{name}: no GPU of this pool has a slice for it")
        yield _class(products, name, Kind.NAMED, 0, serving_names)


def check_aliases(aliases: Mapping[str, str], catalogue: Catalogue) -> dict[str, str]:
    """Aliases with their targets resolved to class names, so that `tiny: 10gb` may stand for m10.

    Raises ConfigError naming the alias.
    """
    profiles = {name for one in catalogue.classes for name in one.profiles}
    checked: dict[str, str] = {}
    for name, target in aliases.items():
        _check_name(f"aliases.{name}", name, profiles | catalogue.by_name.keys())
        checked[name] = class_named(target, catalogue, f"aliases.{name}")
    return checked


def class_named(text: str, catalogue: Catalogue, where: str) -> str:
    """The class an admin means by a class text. `where` is the place in pool.yaml, for the ConfigError it raises."""
    read = parse(f"{catalogue.gres}:{text}:1", gres=catalogue.gres, mem=catalogue.mem)
    found = resolve(read, catalogue) if isinstance(read, Request) else read
    if found is None or isinstance(found, Refusal):
        raise ConfigError(f"{where}: {found.text if found else text}")
    return found.gres_class


def most(classes: Iterable[Class], gpus: Sequence[Shapes]) -> dict[str, int]:
    """The most slices of each class that a node with these GPUs can hold at once, whatever their layout is now."""
    models = {id(profiles): profiles for profiles in gpus}
    classes = tuple(classes)
    by_model = {key: {one.name: _most(profiles, one.profiles) for one in classes} for key, profiles in models.items()}
    return {one.name: sum(by_model[id(profiles)][one.name] for profiles in gpus) for one in classes}


def made(classes: Iterable[Class], gpus: Sequence[Shapes], layouts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The most slices of each class on a node whose GPUs each have one of these layouts (profile -> count).

    A GPU that can have none of them keeps what it is found with: it counts for the most it can hold.
    """
    models = {id(profiles): profiles for profiles in gpus}
    possible = {
        key: [one for one in layouts if why_impossible(profiles, one) is None] for key, profiles in models.items()
    }

    def on(profiles: Shapes, found: Class) -> int:
        counts = [sum(layout.get(name, 0) for name in found.profiles) for layout in possible[id(profiles)]]
        return max(counts) if counts else _most(profiles, found.profiles)

    return {one.name: sum(on(profiles, one) for profiles in gpus) for one in classes}


def _most(profiles: Shapes, names: Iterable[str]) -> int:
    """The most instances of any of these profiles on one empty GPU: exact, placement and engines counted."""
    usable = [profiles[name] for name in names if name in profiles]
    slices = memory_slices(profiles)

    @cache
    def fill(start: int, engines: tuple[int, ...]) -> int:
        if start >= slices:
            return 0
        best = fill(start + 1, engines)
        for profile in usable:
            left = tuple(have - need for have, need in zip(engines, profile.engines, strict=False))
            if start in profile.starts and min(left, default=0) >= 0:
                best = max(best, 1 + fill(start + profile.size, left))
        return best

    return fill(0, engine_limit(profiles))


def _class(products: Products, name: str, kind: Kind, param: int, serving_names: Collection[str]) -> Class:
    order = _best_first(products, serving_names)
    weights = []
    for profiles in products.values():
        here = serving.best_first(profiles[one] for one in order if one in profiles)
        if here:
            weights.append(serving.weight(profiles, here[0].name))
    return Class(name=name, kind=kind, param=param, weight=min(weights, default=0), profiles=order)


def _best_first(products: Products, names: Collection[str]) -> tuple[str, ...]:
    """`serving.best_first` over GPUs of several models: by the least part of a GPU that a profile is on any of them."""

    def size(name: str) -> tuple[Fraction, Fraction]:
        holders = [profiles for profiles in products.values() if name in profiles]
        return min(
            (
                Fraction(profiles[name].size, memory_slices(profiles)),
                Fraction(profiles[name].compute_slices, compute_slices(profiles)),
            )
            for profiles in holders
        )

    return tuple(sorted(names, key=lambda name: (*size(name), attributes(name) != "", name)))


def _with_memory(products: Products, gb: int) -> set[str]:
    return {p.name for profiles in products.values() for p in serving.profiles_for_memory(profiles, gb)}


def _with_share(products: Products, n: int) -> set[str]:
    """Profiles that are enough on every model that has them: 1g.10gb is a quarter of an A100-40, not of an H100."""
    enough: set[str] = set()
    short: set[str] = set()
    for profiles in products.values():
        here = {p.name for p in serving.profiles_for_fraction(profiles, n)}
        enough |= here
        short |= profiles.keys() - here
    return enough - short


def _wished(products: Products, name: str, wish: NamedClass, every: Collection[str]) -> Collection[str]:
    unknown = [profile for profile in wish.profiles if profile not in every]
    if unknown:
        known = ", ".join(_best_first(products, every))
        raise ConfigError(
            f"classes.{name}: no GPU of this pool has the profile '{unknown[0]}'", hint=f"they have: {known}"
        )
    if wish.profiles:
        return set(wish.profiles)
    return _with_memory(products, wish.memory_gb) if wish.memory_gb else _with_share(products, wish.fraction)


def _check_name(where: str, name: str, taken: Collection[str]) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: '{name}' is no name for a class", hint="up to 32 of a-z, 0-9, _ and -, a letter first"
        )
    if name in _UNITS or name in _RESERVED or _SHORT.fullmatch(name) or name in taken:
        raise ConfigError(f"{where}: '{name}' means something else in a request", hint="choose another name")
