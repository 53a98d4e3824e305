"""A YAML file of an admin's, read strictly: every mistake is told with file, line and the nearest right word."""

import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from slurm_plugin.errors import ConfigError

FILE_BYTES = 1 << 20  # longest file
PARTS = 100_000  # parts of a file, each use of an anchor counted: any user may ask for a plan of any file
DEPTH = 20  # deepest nesting; the formats need 6

Place = tuple[str | int, ...]
_FORM = re.compile(r"\w+\[")  # pydantic's name of one of two forms, such as list[int]
_KEYS = "must be keys with values (`key: value`)"
_LIST = "must be a list"
_BOOL = "must be true or false"
_WHOLE = "must be a whole number"
_NUMBER = "must be a number"
_WORDS = {  # what pydantic calls a mistake, and what it is to whoever wrote the file
    "missing": "this key is missing",
    "dict_type": _KEYS,
    "model_type": _KEYS,
    "model_attributes_type": _KEYS,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "must be a text: put it in quotes",
    "path_type": "must be a path",
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": _NUMBER,
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "too_short": "must have {min_length} or more",
    "too_long": "must have {max_length} at the most",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters at the most",
}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_file(path: Path, *, example: str = "") -> str:
    """The text of a file; of one that is too long, as much as shows that it is. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        hint = f"{example} is a commented example" if example else ""
        raise ConfigError(f"no such file: {path}", hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"can't read {path}: it is not a text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror or error}") from None


def check_length(text: str, source: str) -> None:
    """Raises ConfigError."""
    if len(text) > FILE_BYTES:
        raise ConfigError(f"{source} is longer than {FILE_BYTES} bytes")


class Document:
    """The data of a YAML text, and the line of each part of it."""

    def __init__(self, text: str, source: str, *, example: str) -> None:
        """Raises ConfigError. `example`: the file that shows how it is done."""
        check_length(text, source)
        self.source = source
        self._lines: dict[Place, int] = {}
        try:
            root = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{source}:{mark.line + 1}" if mark else source
            raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
        if root is None:
            raise ConfigError(f"{source}: the file is empty", hint=f"{example} is a commented example")
        self._scalars = yaml.SafeLoader("")
        self._parts = 0
        self.data = self._build(root, ())

    def where(self, path: Place) -> str:
        """file:line of the deepest part of `path` that is in the file."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.source}:{self._lines.get(path, 1)}"

    def has(self, path: Place) -> bool:
        return path in self._lines

    def _build(self, node: yaml.Node, path: Place) -> Any:
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

    def _mapping(self, node: yaml.MappingNode, path: Place) -> dict[str, Any]:
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


def first_mistake(
    wrong: ValidationError, document: Document, keys_at: Callable[[Place], tuple[str, ...]]
) -> ConfigError:
    """The first by line; an unknown key before what is missing, since it often is the same thing misspelt."""

    def order(error: Any) -> tuple[bool, int, int]:
        line = int(document.where(error["loc"]).rpartition(":")[2])
        return (
            error["type"] != "extra_forbidden",
            line,
            -len(error["loc"]),
        )  # where one of two forms is meant: the nearer

    errors = sorted(wrong.errors(), key=order)
    first, path = errors[0], errors[0]["loc"]
    name = _name(path)
    others = sum(_name(error["loc"]) != name for error in errors)
    more = f"{others} more mistakes follow" if others > 1 else "1 more mistake follows" if others else ""
    if first["type"] == "extra_forbidden":
        known = keys_at(path[:-1])
        near = get_close_matches(str(path[-1]), known, n=1)
        meant = f"; did you mean '{near[0]}'?" if near else f" (known: {', '.join(known)})"
        return ConfigError(f"{document.where(path)}: unknown key '{name}'{meant}", hint=more)
    said = " or ".join(dict.fromkeys(in_words(error) for error in errors if _name(error["loc"]) == name))
    return ConfigError(
        f"{document.where(path)}: {name}: {said}" if name else f"{document.where(path)}: {said}", hint=more
    )


def _name(path: Place) -> str:
    return ".".join(str(part) for part in path if not _FORM.match(str(part)))


def in_words(error: Any) -> str:
    """One of pydantic's errors, as whoever wrote the file needs it."""
    words = _WORDS.get(error["type"])
    facts = error.get("ctx", {})
    whole = {name: int(fact) for name, fact in facts.items() if isinstance(fact, float) and fact.is_integer()}
    return words.format_map({**facts, **whole}) if words else str(error["msg"]).removeprefix("Value error, ")
