"""PURE: what the pool offers as a whole: its classes, and the catalogue that tells job_submit.

What an admin named and no GPU of the pool can serve (yet) is left out and told as a problem; the rest is offered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_plugin.catalogue import Catalogue, Class, Kind, NodeFacts, Shape, shapes
from slurm_plugin.classes import NamedClass, Products, build, check_aliases, class_named, made, most
from slurm_plugin.config_promises import known, meaning
from slurm_plugin.controller.state import Serving
from slurm_plugin.errors import ConfigError
from slurm_plugin.guarantees import Promise
from slurm_plugin.mig.geometry import Shapes
from slurm_plugin.mig.products import product_named
from slurm_plugin.model import Gpu, GpuProfile
from slurm_plugin.planning import Follow, Reach
from slurm_plugin.pool import NodeGroup, PoolConfig
from slurm_plugin.ports import SlurmNode

Geometry = tuple[tuple[GpuProfile, ...] | str, ...]  # of each GPU: as it told itself, or a product's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    catalogue: Catalogue
    serving: Serving
    promises: tuple[Promise, ...] = ()  # the guarantees that some GPU here can keep
    reaches: Mapping[str, Reach] = field(default_factory=dict)  # by class
    problems: tuple[str, ...] = ()


def geometry(gpus: Sequence[Gpu] | None, group: NodeGroup) -> Geometry:
    """A node's GPUs in the pool, as far as layouts go; from `product:` in pool.yaml when its agent never told."""
    if gpus is None:
        return (group.product,) * group.in_pool if group.product else ()
    return tuple(gpu.profiles for gpu in gpus if gpu.profiles and group.takes(gpu.index))


def offered(
    config: PoolConfig, nodes: Mapping[str, tuple[Geometry, SlurmNode]], operators: Sequence[int]
) -> Offered | None:
    """None while no GPU of the pool is known."""
    models: dict[tuple[GpuProfile, ...] | str, Shapes] = {}
    for gpus, _ in nodes.values():
        for one in gpus:
            if one not in models:
                models[one] = product_named(one).profiles if isinstance(one, str) else {p.name: p for p in one}
    if not models:
        return None
    problems: list[str] = []
    classes = _classes({str(nth): shape for nth, shape in enumerate(models.values())}, config.classes, problems)
    bare = Catalogue(
        pool=config.pool,
        gres=config.gres.name,
        pad=config.gres.pad,
        mem=config.gres.memory,
        partitions=tuple((name, config.wait_partition) for name in config.partitions),
        exclusive=config.exclusive,
        operators=tuple(sorted(set(operators))),
        classes=classes,
    )
    default = _default(config, bare, problems)
    node_shapes, of_node = _shapes(config, nodes, models, classes)
    catalogue = Catalogue(
        **{
            name: getattr(bare, name) for name in ("pool", "gres", "pad", "mem", "partitions", "exclusive", "operators")
        },
        default=default,
        classes=classes,
        aliases=_aliases(config, bare, problems),
        shapes=node_shapes,
        nodes=of_node,
    )
    serving = Serving.of({one.name: one.profiles for one in classes}, default)
    promises, reaches = _planned(config, bare, problems)
    return Offered(catalogue=catalogue, serving=serving, promises=promises, reaches=reaches, problems=tuple(problems))


def _classes(products: Products, named: Mapping[str, NamedClass], problems: list[str]) -> tuple[Class, ...]:
    good: dict[str, NamedClass] = {}
    for name, wish in named.items():
        try:
            build(products, {name: wish})
        except ConfigError as error:
            problems.append(str(error))
        else:
            good[name] = wish
    return build(products, good)


def _default(config: PoolConfig, catalogue: Catalogue, problems: list[str]) -> str:
    smallest = next(one.name for one in catalogue.classes if one.kind is Kind.EXACT)
    if not config.default_class:
        return smallest
    try:
        return class_named(config.default_class, catalogue, "default_class")
    except ConfigError as error:
        problems.append(f"{error}; a plain vgpu is {smallest} meanwhile")
        return smallest


def _aliases(config: PoolConfig, catalogue: Catalogue, problems: list[str]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for name, target in config.aliases.items():
        try:
            aliases |= check_aliases({name: target}, catalogue)
        except ConfigError as error:
            problems.append(str(error))
    return aliases


def _planned(config: PoolConfig, book: Catalogue, problems: list[str]) -> tuple[tuple[Promise, ...], dict[str, Reach]]:
    """What `planning:` promises and bounds, by the classes that there are."""
    reaches: dict[str, Reach] = {}
    for name, reach in config.planning.reaches.items():
        try:
            reaches[meaning(config, name, book, f"planning.classes.{name}")] = known(reach)
        except ConfigError as error:
            problems.append(str(error))
    promises = []
    for one in config.planning.guarantees:
        try:
            served = book.by_name[meaning(config, one.gres_class, book, f"the guarantee '{one.text}'")]
        except ConfigError as error:
            problems.append(str(error))
        else:
            promises.append(Promise(guarantee=one, served=served, reach=reaches.get(served.name, Reach())))
    return tuple(promises), reaches


def _shapes(
    config: PoolConfig,
    nodes: Mapping[str, tuple[Geometry, SlurmNode]],
    models: Mapping[tuple[GpuProfile, ...] | str, Shapes],
    classes: tuple[Class, ...],
) -> tuple[tuple[Shape, ...], dict[str, int]]:
    holds: dict[tuple[Geometry, int], tuple[dict[str, int], dict[str, int] | None]] = {}
    facts: dict[str, NodeFacts] = {}
    group_of = {host: nth for nth, group in enumerate(config.groups) for host in group.hosts}
    for name in sorted(nodes):
        gpus, slurm = nodes[name]
        if gpus:
            key = (gpus, group_of[name])
            if key not in holds:
                here = [models[one] for one in gpus]
                group = config.groups[group_of[name]]
                layouts = [s.layout for s in group.shares] if config.follow(group) is Follow.LAYOUT else []
                holds[key] = most(classes, here), made(classes, here, layouts) if layouts else None
            can_hold, has = holds[key]
            facts[name] = NodeFacts(cpus=slurm.cpus, memory_mib=slurm.memory_mib, most=can_hold, made=has)
    return shapes(facts)
