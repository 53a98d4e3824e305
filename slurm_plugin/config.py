"""pool.yaml, read strictly: every mistake is told with file, line and the nearest thing that would be right."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from slurm_plugin.config_classes import mistakes
from slurm_plugin.config_planning import guarantee
from slurm_plugin.config_schema import ControllerSection, PoolFile, keys_at
from slurm_plugin.errors import ConfigError
from slurm_plugin.mig.layouts import why_impossible
from slurm_plugin.mig.products import load_products, product_named
from slurm_plugin.planning import Guarantee
from slurm_plugin.pool import ControllerPlace, NodeGroup, PoolConfig, Share
from slurm_plugin.slurm.hostlist import expand

FILE_BYTES = 1 << 20  # longest pool.yaml
PARTS = 100_000  # parts of a file, each use of an anchor counted: any user may ask for a plan of any file
MAX_NODES = 20_000  # hosts of a pool
DEPTH = 20  # deepest nesting; the format needs 6

Path_ = tuple[str | int, ...]
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_pool(path: Path) -> PoolConfig:
    """Raises ConfigError with `path:line: what` for the first mistake, and the others counted in the hint."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}", hint="configs/pool.yaml is a commented example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}") from None
    return parse_pool(text, source=str(path))


def parse_pool(text: str, *, source: str = "pool.yaml") -> PoolConfig:
    """The same from a text. Raises ConfigError."""
    if len(text) > FILE_BYTES:
        raise ConfigError(f"{source} is longer than {FILE_BYTES} bytes")
    document = _Document(text, source)
    try:
        file = PoolFile.model_validate(document.data)
    except ValidationError as wrong:
        raise _first(wrong, document) from None
    pool = file.to_pool(_hosts(file, document), _guarantees(file, document))
    for nth, group in enumerate(pool.groups):
        for which, share in enumerate(group.shares):
            _check_layout(group, share, document, _layout_path(document, nth, which))
    for place, mistake in mistakes(pool):
        raise ConfigError(f"{document.where(place)}: {mistake}", hint=mistake.hint)
    return pool


def load_place(path: Path) -> ControllerPlace:
    """Only where the controller is, from a file that is wrong elsewhere. Raises ConfigError when that is lost too."""
    try:
        document = _Document(path.read_text(encoding="utf-8")[:FILE_BYTES], str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {path}: {error}") from None
    data = document.data.get("controller", {}) if isinstance(document.data, dict) else {}
    try:
        return ControllerSection.model_validate(data).to_place()
    except ValidationError as wrong:
        raise ConfigError(f"{path}: controller: {wrong.errors()[0]['msg']}") from None


class _Document:
    """The data of a YAML text, and the line of each part of it."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._lines: dict[Path_, int] = {}
        try:
            root = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{source}:{mark.line + 1}" if mark else source
            raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
        if root is None:
            raise ConfigError(f"{source}: the file is empty", hint="configs/pool.yaml is a commented example")
        self._scalars = yaml.SafeLoader("")
        self._parts = 0
        self.data = self._build(root, ())

    def where(self, path: Path_) -> str:
        """file:line of the deepest part of `path` that is in the file."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.source}:{self._lines.get(path, 1)}"

    def has(self, path: Path_) -> bool:
        return path in self._lines

    def _build(self, node: yaml.Node, path: Path_) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._parts += 1
        if self._parts > PARTS:
            raise ConfigError(f"{self.source}: more than {PARTS} parts")
        if len(path) > DEPTH:
            raise ConfigError(f"{self.where(path)}: nested too deep, or an anchor that holds itself")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, nth)) for nth, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{self.where(path)}: {error}") from None

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in data:
                raise ConfigError(
                    f"{self.source}:{key.start_mark.line + 1}: '{name}' is given twice (first on line "
                    f"{self._lines[(*path, name)]})"
                )
            self._lines[(*path, name)] = key.start_mark.line + 1
            data[name] = self._build(value, (*path, name))
        return data


def _first(wrong: ValidationError, document: _Document) -> ConfigError:
    """The first by line; an unknown key before what is missing, since it often is the same thing misspelt."""

    def order(error: Any) -> tuple[bool, int]:
        return error["type"] != "extra_forbidden", int(document.where(error["loc"]).rpartition(":")[2])

    errors = sorted(wrong.errors(), key=order)
    first, path = errors[0], errors[0]["loc"]
    name = ".".join(str(part) for part in path)
    more = f"{len(errors) - 1} more mistakes follow" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = keys_at(path[:-1])
        near = get_close_matches(str(path[-1]), known, n=1)
        meant = f"; did you mean '{near[0]}'?" if near else f" (known: {', '.join(known)})"
        return ConfigError(f"{document.where(path)}: unknown key '{name}'{meant}", hint=more)
    said = first["msg"].removeprefix("Value error, ")
    return ConfigError(
        f"{document.where(path)}: {name}: {said}" if name else f"{document.where(path)}: {said}", hint=more
    )


def _hosts(file: PoolFile, document: _Document) -> list[tuple[str, ...]]:
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


def _guarantees(file: PoolFile, document: _Document) -> list[Guarantee]:
    found = []
    for subject, promises in file.planning.guarantees.items():
        for promise in promises:
            try:
                found.append(guarantee(subject, promise))
            except ValueError as error:
                where = document.where(("planning", "guarantees", subject))
                raise ConfigError(f"{where}: planning.guarantees: {error}") from None
    return found


def _layout_path(document: _Document, group: int, share: int) -> Path_:
    path: Path_ = ("nodes", group, "mix", share, "layout")
    return path if document.has(path) else ("nodes", group, "layout")


def _check_layout(group: NodeGroup, share: Share, document: _Document, path: Path_) -> None:
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
