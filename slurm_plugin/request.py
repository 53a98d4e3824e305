"""PURE: what a `--gres=vgpu...` text means, and what it becomes for Slurm. The grammar is

    vgpu   vgpu:N   vgpu:CLASS   vgpu:CLASS:N      CLASS: 2g.20gb | 20gb | 1/4 | small

with `gres:` or `gres/` before it or not, in any case, `=` as good as `:`, alone or in a list with other GRES.
`slurm_plugin/hooks/lua/vgpu.lua` reads the same grammar inside slurmctld; tests/cases/requests.yaml and a differential
test hold the two together, message for message. Both read bytes, not characters.
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_plugin.catalogue import Catalogue, Class, Kind
from slurm_plugin.nearest import meant, nearest

MAX_TEXT = 4096  # bytes of one request
MAX_TERMS = 64  # elements of one GRES list
MAX_PREFIXES = 4  # gres: before a name; Slurm itself collapses repeated ones
MAX_DIGITS = 6  # of an amount of memory and of a share
MAX_COUNT = 999_999  # a larger one is taken for this, which no node can hold either
MAX_SHOWN = 40  # bytes of a user's text in a message
MAX_OFFERED = 20  # classes a refusal lists
MAX_PROFILES = 3  # profiles of a class that a note lists

_BLANKS = " \t\r\n\f\v"
_COUNT = re.compile(r"[0-9]+")
_SIGNED = re.compile(r"[+-][0-9]+")
_LEGAL = re.compile(r"[A-Za-z0-9_.+/%-]+")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.+/%-]+")
_LETTER = re.compile(r"[A-Za-z/]")
_MEMORY = re.compile(r"([0-9]+)(?:\.([0-9]+))?(g|gb|gib|m|mb|mib|t|tb|tib)")
_SHARE = re.compile(r"([0-9]+)/([0-9]+)")
_SHORT = re.compile(r"([mq])([0-9]+)")
_PROFILE = re.compile(r"[0-9]+g\.")


class Want(StrEnum):
    DEFAULT = "default"
    NAME = "name"  # a profile, a class or an alias
    MEMORY = "memory"  # number: GB
    FRACTION = "fraction"  # number: N of 1/N


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Policy said no: one line for the user, with the nearest request that works."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One vgpu request as written. `others` are the list's other elements, without their gres:, in order."""

    others: tuple[str, ...] = ()
    rest: str = ""  # the same as they were written, as one list
    want: Want
    name: str  # the class as written, in small letters; empty for the default
    number: int
    count: int
    words: str  # the vgpu element as written, fit for a message
    weight: int | None = None  # what the text itself asks of vgpu_mem; None when it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What the request becomes: `gres` is the whole list for job_desc.gres, the others first."""

    gres: str
    gres_class: str
    count: int
    weight: int  # vgpu_mem, count included
    notes: tuple[str, ...]  # lines for the user


def parse(text: str, *, gres: str = "vgpu", mem: str = "vgpu_mem") -> Request | Refusal | None:
    """Read one TRES text. None: it asks for no slice, and is not our business."""
    raw = text.encode("utf-8", "surrogateescape").decode("latin-1")
    if len(raw) > MAX_TEXT or raw.count(",") >= MAX_TERMS:
        return Refusal(text=f"{gres}: this request is too long") if gres in raw.lower() else None
    terms = [term.strip(_BLANKS) for term in raw.split(",")]
    named = [(_name(term), term) for term in terms]
    ours = [_unprefixed(term) for name, term in named if name == gres]
    weights = [_unprefixed(term) for name, term in named if name == mem]
    if not ours and not weights:
        return None
    if not ours:
        return Refusal(text=f"{gres}: {mem} is counted by the pool itself; ask for {gres}, such as {gres}:1")
    if len(ours) > 1:
        return Refusal(
            text=f"{gres}: a job gets slices of one class; write one request, such as {gres}:2 for two slices"
        )
    read = _parse_term(ours[0], gres)
    if isinstance(read, Refusal):
        return read
    rest = ",".join(term for name, term in named if name not in (gres, mem) and term)
    return replace(read, others=elements(_characters(rest)), rest=_characters(rest), weight=_weight(weights, mem))


def elements(text: str) -> tuple[str, ...]:
    """The elements of a GRES list without their gres: or gres/, empty ones left out."""
    terms = (_unprefixed(term.strip(_BLANKS)) for term in text.split(","))
    return tuple(term for term in terms if term)


def resolve(request: Request, catalogue: Catalogue) -> Rewrite | Refusal:
    """The class that serves this request in this pool."""
    found = _class_of(request, catalogue)
    if isinstance(found, Refusal):
        return found
    weight = found.weight * request.count
    if request.weight not in (None, weight):
        return Refusal(text=f"{catalogue.gres}: {catalogue.mem} is counted by the pool itself; leave it out")
    terms = (*request.others, f"{catalogue.gres}:{found.name}:{request.count}", f"{catalogue.mem}:{weight}")
    note = f"{catalogue.gres}: {plural(request.count, 'slice')} of class {found.name} on each node{_profiles(found)}"
    return Rewrite(gres=",".join(terms), gres_class=found.name, count=request.count, weight=weight, notes=(note,))


def shown(text: str) -> str:
    """A user's text made fit for a message: printable, on one line, short."""
    return re.sub(r"[^A-Za-z0-9_.+/:=,()%-]+", "?", text[:MAX_SHOWN])


def spelling(found: Class) -> str:
    """A class as a user writes it: 20gb for m20, 1/4 for q4."""
    if found.kind is Kind.MEMORY:
        return f"{found.param}gb"
    return f"1/{found.param}" if found.kind is Kind.FRACTION else found.name


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _characters(raw: str) -> str:
    return raw.encode("latin-1").decode("utf-8", "surrogateescape")


def _unprefixed(term: str) -> str:
    for _ in range(MAX_PREFIXES):
        if term[:5].lower() not in ("gres:", "gres/"):
            break
        term = term[5:].strip(_BLANKS)
    return term


def _name(term: str) -> str:
    return re.split(r"[:=(\s]", _unprefixed(term), maxsplit=1, flags=re.ASCII)[0].lower()


def _weight(terms: list[str], mem: str) -> int | None:
    """What the text asks of vgpu_mem: None for nothing, -1 for what can't be right."""
    if not terms:
        return None
    number = terms[0][len(mem) + 1 :]
    return int(number) if len(terms) == 1 and _COUNT.fullmatch(number) and len(number) <= MAX_DIGITS else -1


def _parse_term(term: str, gres: str) -> Request | Refusal:
    words = shown(term)
    rest = term[len(gres) :].strip(_BLANKS)
    parts = [part.strip(_BLANKS) for part in re.split(r"[:=]", rest[1:])] if rest else []
    if len(parts) > 2 or (rest and rest[0] not in ":=") or not all(_LEGAL.fullmatch(part) for part in parts):
        guess = _guess(parts, gres) if len(parts) <= 2 and rest[0] in ":=" else ""
        hint = f"did you mean {guess}?" if guess else f"write {gres}, {gres}:N, {gres}:CLASS or {gres}:CLASS:N"
        odd = " (? is what can't be in one)" if "?" in words else ""
        return Refusal(text=f"{gres}: '{words}' is no request for a slice{odd}; {hint}")
    if len(parts) == 2 and _COUNT.fullmatch(parts[0]) and _LETTER.search(parts[1]):
        return Refusal(text=f"{gres}: the count comes last; did you mean {gres}:{parts[1].lower()}:{parts[0]}?")
    if len(parts) == 1 and (_COUNT.fullmatch(parts[0]) or _SIGNED.fullmatch(parts[0])):
        parts.insert(0, "")
    name = parts[0].lower() if parts else ""
    count = _count(parts[1] if len(parts) == 2 else "1", name, gres)
    if isinstance(count, Refusal):
        return count
    wanted = _wanted(name, gres)
    if isinstance(wanted, Refusal):
        return wanted
    return Request(want=wanted[0], name=name, number=wanted[1], count=count, words=words)


def _guess(parts: list[str], gres: str) -> str:
    """The request that is left without what can't be in one, or ""."""
    name = parts[0].lower()
    better = meant(name)
    count = re.sub(r"[^0-9]+", "", parts[1]) if len(parts) == 2 else ""
    guess = ":".join(one for one in (gres, better, count) if one)
    read = _parse_term(guess, gres)
    if not isinstance(read, Request) or (name and not better):
        return ""
    start, end = re.match(_ILLEGAL, name), re.search(rf"{_ILLEGAL.pattern}\Z", name)
    whole = name[start.end() if start else 0 : end.start() if end else len(name)]
    return guess if read.want is not Want.NAME or better == whole else ""


def _count(text: str, name: str, gres: str) -> int | Refusal:
    one = f"{gres}:{name}:1" if name else f"{gres}:1"
    if not _COUNT.fullmatch(text):
        return Refusal(text=f"{gres}: '{shown(text)}' is no count of slices; did you mean {one}?")
    digits = text.lstrip("0")
    if not digits:
        return Refusal(text=f"{gres}: a count of 0 asks for no slice; leave {gres} out, or did you mean {one}?")
    return int(digits) if len(digits) <= MAX_DIGITS else MAX_COUNT


def _wanted(name: str, gres: str) -> tuple[Want, int] | Refusal:
    if not name:
        return Want.DEFAULT, 0
    if memory := _MEMORY.fullmatch(name):
        return _memory(name, memory, gres)
    if share := _SHARE.fullmatch(name):
        return _share(name, share[1].lstrip("0"), share[2].lstrip("0"), gres)
    if (short := _SHORT.fullmatch(name)) and len(short[2]) <= MAX_DIGITS:
        return (Want.MEMORY if short[1] == "m" else Want.FRACTION), int(short[2])
    return Want.NAME, 0


def _memory(name: str, match: re.Match[str], gres: str) -> tuple[Want, int] | Refusal:
    """GB, rounded up. Slurm would take the number for a count and the unit for a factor."""
    digits = match[1].lstrip("0")
    if len(digits) > MAX_DIGITS:
        return Refusal(text=f"{gres}: no slice has {shown(name)} of memory")
    number, unit = int(digits or "0"), match[3][0]
    if match[2] and match[2].strip("0"):
        number += 1
    number = number * 1024 if unit == "t" else -(-number // 1024) if unit == "m" else number
    return (
        (Want.MEMORY, number)
        if number
        else Refusal(text=f"{gres}: '{shown(name)}' is no amount of memory; did you mean 1gb?")
    )


def _share(name: str, above: str, below: str, gres: str) -> tuple[Want, int] | Refusal:
    if above and below and max(len(above), len(below)) <= MAX_DIGITS:
        part, whole = int(above), int(below)
        if whole % part == 0:
            return Want.FRACTION, whole // part
        if part < whole:
            return Refusal(text=f"{gres}: a share is 1/N of a GPU; for {shown(name)}, did you mean 1/{whole // part}?")
    return Refusal(text=f"{gres}: a share is 1/N of a GPU, and {shown(name)} is none; did you mean 1/2?")


def _class_of(request: Request, catalogue: Catalogue) -> Class | Refusal:
    match request.want:
        case Want.DEFAULT:
            found = catalogue.by_name.get(catalogue.default)
            return found or Refusal(
                text=f"{catalogue.gres}: this pool has no default class; name one{_offered(catalogue)}"
            )
        case Want.MEMORY:
            return _memory_class(request, catalogue)
        case Want.FRACTION:
            return _fraction_class(request, catalogue)
        case Want.NAME:
            if request.name == catalogue.pad:
                return Refusal(
                    text=f"{catalogue.gres}: '{catalogue.pad}' is no slice and can't be asked for{_offered(catalogue)}"
                )
            return _named(request.name, catalogue) or _unknown(request.name, _near(request.name, catalogue), catalogue)


def _named(name: str, catalogue: Catalogue) -> Class | None:
    return catalogue.by_name.get(catalogue.aliases.get(name, name))


def _memory_class(request: Request, catalogue: Catalogue) -> Class | Refusal:
    sizes = [one for one in catalogue.classes if one.kind is Kind.MEMORY]
    if request.name.endswith("g"):  # 1g: gigabytes, or the start of 1g.10gb?
        profile = next((one.name for one in catalogue.classes if one.name.startswith(request.name + ".")), None)
        if profile:
            hint = f"did you mean {profile} or {request.number}gb?"
            return Refusal(
                text=f"{catalogue.gres}: '{shown(request.name)}' may be a profile or an amount of memory; {hint}"
            )
    if (memory := _MEMORY.fullmatch(request.name)) and memory[2]:  # 1.20gb: an amount, or a slip for 1g.20gb?
        profile = f"{memory[1]}g.{memory[2]}gb"
        if profile in catalogue.by_name:
            hint = f"did you mean {profile} or {request.number}gb?"
            return Refusal(
                text=f"{catalogue.gres}: '{shown(request.name)}' may be a profile or an amount of memory; {hint}"
            )
        if len(memory[2]) > 1:
            hint = f"did you mean {request.number}gb?"
            return Refusal(text=f"{catalogue.gres}: '{shown(request.name)}' is too exact for a slice's memory; {hint}")
    enough = [one for one in sizes if one.param >= request.number]
    if enough:
        return min(enough, key=lambda one: one.param)
    largest = max(sizes, key=lambda one: one.param, default=None)
    if largest is None:
        return _unknown(request.name, "", catalogue)
    hint = f"did you mean {spelling(largest)}?{_offered(catalogue)}"
    return Refusal(text=f"{catalogue.gres}: no slice of this pool has {request.number} GB; {hint}")


def _fraction_class(request: Request, catalogue: Catalogue) -> Class | Refusal:
    shares = [one for one in catalogue.classes if one.kind is Kind.FRACTION]
    found = next((one for one in shares if one.param == request.number), None)
    if found:
        return found
    larger = [one.param for one in shares if one.param < request.number]
    near = max(larger) if larger else min((one.param for one in shares), default=0)
    return _unknown(f"1/{request.number}", f"1/{near}" if near else "", catalogue)


def _unknown(name: str, near: str, catalogue: Catalogue) -> Refusal:
    hint = f"; did you mean {near}?" if near else ""
    return Refusal(text=f"{catalogue.gres}: no slice class '{shown(name)}' in this pool{hint}{_offered(catalogue)}")


def _offered(catalogue: Catalogue) -> str:
    order = (Kind.NAMED, Kind.EXACT, Kind.MEMORY, Kind.FRACTION)
    names = [spelling(one) for kind in order for one in catalogue.classes if one.kind is kind]
    more = f", and {len(names) - MAX_OFFERED} more" if len(names) > MAX_OFFERED else ""
    return f" (offered: {', '.join(names[:MAX_OFFERED]) or 'none'}{more})"


def _profiles(found: Class) -> str:
    if found.kind is Kind.EXACT:
        return ""
    return f" ({', '.join(found.profiles[:MAX_PROFILES])}{' or larger' if len(found.profiles) > MAX_PROFILES else ''})"


def _near(name: str, catalogue: Catalogue) -> str:
    better = meant(name)
    wanted = _wanted(better, catalogue.gres)
    if better not in ("", name) and not isinstance(wanted, Refusal):
        want, number = wanted
        request = Request(want=want, name=better, number=number, count=1, words="")
        known = _named(better, catalogue) if want is Want.NAME else _class_of(request, catalogue)
        if isinstance(known, Class):
            return better
    named = [one.name for one in catalogue.classes if one.kind in (Kind.NAMED, Kind.EXACT)]
    return nearest(name[:MAX_SHOWN], [*sorted(catalogue.aliases), *named], always=bool(_PROFILE.match(name)))
