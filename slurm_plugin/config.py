"""pool.yaml, read strictly: every mistake is told with file, line and the nearest thing that would be right."""

import re
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from slurm_plugin.config_classes import mistakes
from slurm_plugin.config_planning import MAX_GUARANTEES, guarantee
from slurm_plugin.config_schema import ControllerSection, PoolFile, keys_at
from slurm_plugin.document import Document, Place, first_mistake, in_words, read_file
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.layouts import why_impossible
from slurm_plugin.mig.products import load_products, product_named
from slurm_plugin.planning import Guarantee
from slurm_plugin.pool import ControllerPlace, NodeGroup, PoolConfig, Share
from slurm_plugin.slurm.hostlist import expand

MAX_NODES = 20_000  # hosts of a pool

_EXAMPLE = "configs/pool.yaml"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def load_pool(path: Path) -> PoolConfig:
    """Raises ConfigError with `path:line: what` for the first mistake, and the others counted in the hint."""
    return parse_pool(read_file(path, example=_EXAMPLE), source=str(path))


def parse_pool(text: str, *, source: str = "pool.yaml") -> PoolConfig:
    """The same from a text. Raises ConfigError."""
    document = Document(text, source, example=_EXAMPLE)
    try:
        file = PoolFile.model_validate(document.data)
    except ValidationError as wrong:
        raise first_mistake(wrong, document, keys_at) from None
    pool = file.to_pool(_hosts(file, document), _guarantees(file, document))
    for nth, group in enumerate(pool.groups):
        for which, share in enumerate(group.shares):
            _check_layout(group, share, document, _layout_path(document, nth, which))
    for place, mistake in mistakes(pool):
        raise ConfigError(f"{document.where(place)}: {mistake}", hint=mistake.hint)
    return pool


def load_place(path: Path) -> ControllerPlace:
    """Only where the controller is, from a file that is wrong elsewhere. Raises ConfigError when that is lost too."""
    document = Document(read_file(path), str(path), example=_EXAMPLE)
    data = document.data.get("controller", {}) if isinstance(document.data, dict) else {}
    try:
        return ControllerSection.model_validate(data).to_place()
    except ValidationError as wrong:
        raise ConfigError(f"{path}: controller: {in_words(wrong.errors()[0])}") from None


def _hosts(file: PoolFile, document: Document) -> list[tuple[str, ...]]:
    """The hosts of each entry of nodes, every host in one of them only."""
    seen: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for nth, section in enumerate(file.nodes):
        where = document.where(("nodes", nth, "hosts"))
        try:
            hosts = expand(section.hosts, limit=MAX_NODES - len(seen))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}", hint=error.hint) from None
        if not hosts:
            raise ConfigError(f"{where}: no host is named", hint="write a host list such as n[1-4]")
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ConfigError(f"{where}: '{host[:64]}' is no host name")
            if host in seen:
                raise ConfigError(f"{where}: node {host} is given twice")
            seen.add(host)
        groups.append(hosts)
    return groups


def _guarantees(file: PoolFile, document: Document) -> list[Guarantee]:
    found = []
    for subject, promises in file.planning.guarantees.items():
        where = document.where(("planning", "guarantees", subject))
        for promise in promises:
            try:
                found.append(guarantee(subject, promise))
            except ValueError as error:
                raise ConfigError(f"{where}: planning.guarantees: {error}") from None
        if len(found) > MAX_GUARANTEES:
            raise ConfigError(f"{where}: planning.guarantees: more than {MAX_GUARANTEES} in all")
    return found


def _layout_path(document: Document, group: int, share: int) -> Place:
    path: Place = ("nodes", group, "mix", share, "layout")
    return path if document.has(path) else ("nodes", group, "layout")


def _check_layout(group: NodeGroup, share: Share, document: Document, path: Place) -> None:
    """A layout must fit the group's product, or at least one product when none is named.

    Whether it fits the GPUs that are really there is for `plan` to say, once their agents have told.
    """
    try:
        products = [product_named(group.product)] if group.product else list(load_products().values())
    except ConfigError as error:
        raise ConfigError(f"{document.where((*path[:2], 'product'))}: {error}", hint=error.hint) from None
    offering = [p for p in products if share.layout.keys() <= p.profiles.keys()] or (products if group.product else [])
    reasons = [why_impossible(product.profiles, share.layout) for product in offering]
    if not offering:
        names = {name for product in products for name in product.profiles}
        for name in share.layout:
            if name not in names:
                near = get_close_matches(name.lower(), names, n=2)
                meant = f"; did you mean {' or '.join(near)}?" if near else ""
                raise ConfigError(f"{document.where((*path, name))}: no GPU has a profile '{name}'{meant}")
        raise ConfigError(f"{document.where(path)}: no GPU has all of these profiles: {', '.join(share.layout)}")
    if all(reasons):
        raise ConfigError(f"{document.where(path)}: {reasons[0]}")
