"""PURE: what `planning:` of pool.yaml promises, held against the GPUs that the file itself names.

Entries without `product` or a number of GPUs leave open what the pool can hold: then that is for `plan` to say.
"""

from collections.abc import Iterator
from dataclasses import replace

from slurm_plugin.catalogue import Catalogue
from slurm_plugin.classes import class_named
from slurm_plugin.errors import ConfigError
from slurm_plugin.guarantees import Promise, Supply, impossible
from slurm_plugin.mig.products import product_named
from slurm_plugin.nearest import nearest
from slurm_plugin.planning import Follow, Guarantee, Reach
from slurm_plugin.pool import NodeGroup, PoolConfig

Where = tuple[str, ...]
_HINT = "write `follow: queue` in planning, or leave the guarantees out"


def planned(pool: PoolConfig) -> Iterator[tuple[Where, str]]:
    """Every class that `planning:` names, and where."""
    yield from ((_place(one), one.gres_class) for one in pool.planning.guarantees)
    yield from ((("planning", "classes", name), name) for name in pool.planning.reaches)


def meaning(pool: PoolConfig, name: str, book: Catalogue, where: str) -> str:
    """The class of this name or alias. Raises ConfigError."""
    return class_named(pool.aliases.get(name, name), book, where)


def mistakes(pool: PoolConfig, book: Catalogue) -> Iterator[tuple[Where, ConfigError]]:
    """`book` has the classes of all GPUs that the pool may have."""
    wrong = [*_reaches(pool)]
    yield from wrong
    promised = pool.planning.guarantees
    if promised and all(pool.follow(group) is Follow.LAYOUT for group in pool.groups):
        yield _place(promised[0]), ConfigError("no node follows the queue, so nothing keeps a guarantee", hint=_HINT)
        return
    if not wrong and all(group.product and group.in_pool for group in pool.groups):
        for guarantee, why in impossible(promises(pool, book), [_supply(pool, group) for group in pool.groups]):
            yield _place(guarantee), ConfigError(f"'{guarantee.text}' can never hold: {why}")


def promises(pool: PoolConfig, book: Catalogue) -> list[Promise]:
    """The guarantees whose classes the pool knows."""
    reaches = {meaning(pool, name, book, name): known(reach) for name, reach in pool.planning.reaches.items()}
    found = []
    for guarantee in pool.planning.guarantees:
        served = book.by_name[meaning(pool, guarantee.gres_class, book, guarantee.subject)]
        found.append(Promise(guarantee=guarantee, served=served, reach=reaches.get(served.name, Reach())))
    return found


def known(reach: Reach) -> Reach:
    """With the products' own names."""
    return replace(reach, products=tuple(product_named(name).key for name in reach.products))


def _place(guarantee: Guarantee) -> Where:
    return ("planning", "guarantees", guarantee.subject)


def _reaches(pool: PoolConfig) -> Iterator[tuple[Where, ConfigError]]:
    for name, reach in pool.planning.reaches.items():
        place = ("planning", "classes", name)
        for product in reach.products:
            try:
                product_named(product)
            except ConfigError as error:
                yield (*place, "products"), error
        for host in sorted(reach.hosts - set(pool.hosts)):
            near = nearest(host, pool.hosts)
            meant = f"; did you mean {near}?" if near else ""
            yield (*place, "nodes"), ConfigError(f"node {host} is not under nodes:{meant}")


def _supply(pool: PoolConfig, group: NodeGroup) -> Supply:
    product = product_named(group.product)
    return Supply(
        product=product.key,
        profiles=product.profiles,
        gpus_of=dict.fromkeys(group.hosts, group.in_pool),
        shares=group.shares if pool.follow(group) is Follow.LAYOUT else (),
    )
