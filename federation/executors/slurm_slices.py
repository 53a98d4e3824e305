"""PURE: which slices a Slurm cluster has, and how many are free now, as other sites are told of it.

What a request means there is in the catalogue that the pool's controller writes. Where it can't be read, as on most
login nodes, the types of the GRES that Slurm shows tell which GPUs there are: less is known then, and never more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from federation.executors.slurm_commands import Where
from slurm_plugin.catalogue import Catalogue, Class, NodeFacts, render, shapes
from slurm_plugin.classes import build
from slurm_plugin.errors import SlurmError
from slurm_plugin.mig.products import load_products
from slurm_plugin.slurm.gres import parse_gres

MOST_SHAPES = 64  # builds of nodes that other sites are told of
MOST_TEXT = 32_768  # bytes of a catalogue that they are told
GRES, PAD = "vgpu", "pad"  # where no catalogue tells other names
_COLUMNS = {"Partition": 130, "StateLong": 32, "Nodes": 10, "CPUs": 10, "Memory": 16, "Gres": 1000, "GresUsed": 1000}
_USABLE = frozenset({"idle", "mixed", "idle~", "mixed~"})  # ~: it sleeps, and Slurm wakes it for a job
_WHOLE = frozenset({"allocated", *_USABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes of one partition that are alike. Counts are by type, without what is there for padding."""

    partition: str
    default: bool
    state: str
    count: int
    cpus: int
    memory_mib: int
    slices: Mapping[str, int]  # on each, published
    used: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """For a `federation.model.messages.Room`."""

    catalogue: str = ""
    slices: tuple[tuple[str, int], ...] = ()
    complete: bool = False  # what the catalogue does not have, or that there is none, stays so


def query(where: Where) -> list[str]:
    """sinfo takes a name or --all, and shows a hidden partition by its name."""
    partition = f"--partition={where.partition}" if where.partition else "--all"
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    return ["sinfo", "--noheader", partition, "--local", "-O", columns]


def parse_nodes(text: str, gres: str = GRES, pad: str = PAD) -> list[Nodes]:
    """What `query` prints. Raises ValueError for what is no row; one whose GRES fill their column is left out."""
    found = []
    for line in text.splitlines():
        at, cells = 0, {}
        for name, width in _COLUMNS.items():
            cells[name] = line[at : at + width]
            at += width
        if len(cells["Gres"].rstrip()) == _COLUMNS["Gres"] or len(cells["GresUsed"].rstrip()) == _COLUMNS["GresUsed"]:
            continue
        partition = cells["Partition"].strip()
        found.append(
            Nodes(
                partition=partition.removesuffix("*"),
                default=partition.endswith("*"),
                state=cells["StateLong"].strip(),
                count=int(cells["Nodes"]),
                cpus=int(cells["CPUs"].strip().removesuffix("+")),
                memory_mib=int(cells["Memory"].strip().removesuffix("+")),
                slices=_types(cells["Gres"], gres, pad),
                used=_types(cells["GresUsed"], gres, pad),
            )
        )
    return found


def _types(text: str, gres: str, pad: str) -> dict[str, int]:
    """Raises ValueError."""
    try:
        items = parse_gres(text)
    except SlurmError as error:
        raise ValueError(str(error)) from None
    return {one.type: one.count for one in items if one.name == gres and one.type not in ("", pad) and one.count}


def offered(known: Catalogue | None, said: str, where: Where) -> Offer:
    """`known`: None where it can't be read; `said`: what `query` printed. Raises ValueError."""
    nodes = parse_nodes(said, known.gres, known.pad) if known else parse_nodes(said)
    here = [one for one in nodes if (one.partition == where.partition if where.partition else one.default)]
    if not here:
        return Offer()
    partition = here[0].partition
    complete = known is not None  # what is guessed from nodes that are up is more when others are
    known = known or _guessed(here, partition)
    if known is None or partition not in dict(known.partitions):
        return Offer(complete=complete)
    told = render(_reduced(known, partition))
    if len(told) > MOST_TEXT:
        return Offer()
    return Offer(catalogue=told, slices=tuple(sorted(_free(known, here).items())), complete=complete)


def _free(known: Catalogue, nodes: Iterable[Nodes]) -> dict[str, int]:
    """For each class the idle slices that serve it for sure: one counts for every class that it serves."""
    idle: Counter[str] = Counter()
    for one in nodes:
        if one.state in _USABLE:
            for name, count in one.slices.items():
                idle[name] += one.count * max(0, count - one.used.get(name, 0))
    return _served(known.classes, idle)


def _served(classes: Sequence[Class], counts: Mapping[str, int]) -> dict[str, int]:
    """Slices of each class, when they are published as these. What is published as m20 may be a 2g.20gb or larger."""
    profiles = {one.name: frozenset(one.profiles) for one in classes}
    served = {
        one.name: sum(count for name, count in counts.items() if profiles.get(name, {name}) <= profiles[one.name])
        for one in classes
    }
    return {name: count for name, count in served.items() if count}


def _reduced(known: Catalogue, partition: str) -> Catalogue:
    """What another site needs of it: no node's name, and one node of each build."""
    some = known.shapes[:MOST_SHAPES]
    return replace(
        known,
        partitions=tuple(one for one in known.partitions if one[0] == partition),
        operators=(0,),
        shapes=some,
        nodes={f"n{shape.id}": shape.id for shape in some if known.population[shape.id]},
    )


def _guessed(nodes: Sequence[Nodes], partition: str) -> Catalogue | None:
    """A node can hold what is published of it; for more, somebody would have to cut its GPUs anew."""
    classes = _classes(frozenset(name for one in nodes for name in one.slices))
    facts = {
        f"n{nth}": NodeFacts(cpus=one.cpus, memory_mib=one.memory_mib, most=_served(classes, one.slices))
        for nth, one in enumerate(nodes, 1)
        if one.state in _WHOLE and one.slices
    }
    if not classes or not facts:
        return None
    found, of = shapes(facts)
    waits = ((partition, f"{partition}-wait"),)  # its own name for it is not known, and nobody asks here
    return Catalogue(pool="slurm", partitions=waits, classes=classes, shapes=found, nodes=of)


@lru_cache(maxsize=8)
def _classes(types: frozenset[str]) -> tuple[Class, ...]:
    """Those of the GPUs that have all of these profiles."""
    products = load_products().values()
    profiles = types & {name for product in products for name in product.profiles}
    having = {product.key: product.profiles for product in products if profiles <= product.profiles.keys()}
    return build(having) if profiles and having else ()
