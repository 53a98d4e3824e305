"""PURE: what is run by sh(1) on a login node, where nothing is installed, and what it prints as values.

What a user may have written there is printed only when it has no sign in it that could pass for another line.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from federation.executors import layout
from federation.executors.layout import Record
from federation.executors.ssh_link import words
from federation.model.states import End
from federation.model.token import Key

MOST_TOLD = 60_000_000  # bytes of names that `find` tells: less than a command may write
MOST_REGEX = 100_000  # bytes; the kernel takes no longer word
END = "all told"  # the last line: what was cut off has none
_LINE = re.compile(r"(\d+)\|([^|]*)\|([^|]*)\|([^|]*)\| *(\d*)\| *(\d*)")
_HASH = re.compile(rb"\\?([0-9a-f]{64}) [ *]")
_SIGNS = re.compile(rb"\[!?\]?[^]/]*\]|[][*?.^$+(){}|\\]")
_FOUND = re.compile(rb"(\d+) ([0-7]+) \./(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    path: bytes
    size: int
    mode: int


def root(path: str) -> str:
    """Makes the folder of all attempts, below the login's home if the path is relative, and says where it is."""
    return (
        f"umask 077; {'' if path.startswith('/') else 'cd && '}mkdir -p {words([path])} && cd {words([path])} && pwd -P"
    )


def folder(root: str, key: Key) -> str:
    """Makes an attempt's folder."""
    path = f"{root}/{layout.name_of(key)}"
    return f"umask 077; mkdir -p {words([path + '/' + layout.WORK])} && cd {words([path])} && pwd -P"


def records(root: str, keys: Sequence[Key]) -> str:
    names = words([layout.name_of(key) for key in keys])
    return f"""\
cd {words([root])} || exit 1
uid=$(id -u)
for k in {names}; do
    c= e= o= r=
    if [ -d "$k" ]; then
        if [ -h "$k/claim" ]; then c=$(readlink "$k/claim"); elif [ -e "$k/claim" ]; then c=other; fi
        if [ -n "$c" ] && [ -f "$k/exit" ]; then IFS= read -r e < "$k/exit"; fi
        if [ -n "$c" ] && [ -z "$e" ]; then o=$(wc -c < "$k/stdout") r=$(wc -c < "$k/stderr"); fi 2> /dev/null
        case $c in *[!a-z0-9.-]*) c=other ;; esac
        case $e in *[!A-Za-z0-9\\ ._,/-]*) e= ;; esac
        echo "$uid|$k|$c|$e|$o|$r"
    else
        echo "$uid|$k||absent||"
    fi
done
echo {words([END])}"""


def parse_records(text: str, since: Mapping[Key, float]) -> dict[Key, Record]:
    """Raises ValueError when it is not whole."""
    *lines, end, rest = text.split("\n")
    if (end, rest) != (END, ""):
        raise ValueError("the answer is not whole")
    found = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        key = layout.key_of(match[2]) if match else None
        if match is None or key is None:
            raise ValueError(line[:80])
        claim, ending = match[3], match[4]
        if ending == "absent":
            found[key] = Record()
            continue
        found[key] = Record(
            uid=int(match[1]),
            since=since.get(key, 0.0),
            claim=layout.parse_claim(claim) if claim else None,
            ending=layout.parse_exit(ending + "\n"),
            sizes=(int(match[5] or 0), int(match[6] or 0)),
        )
    return found


def fence(root: str, key: Key, end: End | None) -> str:
    path = words([f"{root}/{layout.name_of(key)}"])
    return f"""\
umask 077; mkdir -p {path} && cd {path} || exit 1
ln -s {layout.fence(end)} {layout.CLAIM} 2> /dev/null
sync . .. 2> /dev/null
readlink {layout.CLAIM} || echo other"""


def forget(root: str, key: Key) -> str:
    path = words([f"{root}/{layout.name_of(key)}"])
    return f"""\
[ -d {path} ] || exit 0
cd {path} || exit 1
find . -type d ! -perm -700 -exec chmod u+rwx {{}} \\;
find . -mindepth 1 -maxdepth 1 ! -name {layout.CLAIM} -exec rm -rf {{}} +"""


def laid(root: str, key: Key, names: Sequence[str]) -> str:
    """Makes the folders of these files, and says the hash of each that is there, `-` of one that is not."""
    path = words([f"{root}/{layout.name_of(key)}"])
    folders = sorted({"./" + name.rpartition("/")[0] for name in names})
    return f"""\
umask 077; cd {path} && mkdir -p {words(folders)} || exit 1
for f in {words(["./" + name for name in names])}; do
    if [ -f "$f" ]; then sha256sum < "$f" || exit 1; else echo -; fi
done"""


def parse_laid(out: bytes) -> list[str]:
    """Nothing for what is not there. Raises ValueError."""
    return ["" if line == b"-" else parse_hashes(line)[0] for line in out.splitlines()]


def sweep(root: str) -> str:
    """Claims that nothing can come too late for any more go."""
    old = f"-type d -name '{'?' * 32}.*' -mtime +{layout.CLAIM_DAYS}"
    return f"""\
cd {words([root])} || exit 1
find . -mindepth 1 -maxdepth 1 {old} | while IFS= read -r d; do
    case $(ls -A "$d") in {layout.CLAIM} | "") rm -f "$d/{layout.CLAIM}" && rmdir "$d" ;; esac
done"""


def settle(root: str, key: Key, moved: Mapping[str, str]) -> str:
    """Give files their places, all at once durable; once the job runs, they are its own."""
    path = words([f"{root}/{layout.name_of(key)}"])
    moves = "\n".join(f"mv -f {words(['./' + old, './' + new])} || exit 1" for old, new in moved.items())
    return f"cd {path} || exit 1\n[ ! -h {layout.CLAIM} ] || exit 0\n{moves}\nsync . work 2> /dev/null; true"


def text(path: str, most: int) -> str:
    """A file of the cluster's; nothing where there is none."""
    return f"[ ! -r {words([path])} ] || head -c {most} {words([path])}"


def hashes(root: str, key: Key, names: Sequence[str]) -> str:
    path = words([f"{root}/{layout.name_of(key)}"])
    return f"cd {path} && sha256sum {words(['./' + name for name in names])}"


def hash_of_begin(root: str, key: Key, name: str, size: int) -> str:
    """Of a stream that its job's children may still write to."""
    path = words([f"{root}/{layout.name_of(key)}"])
    return f"cd {path} && head -c {size} {words(['./' + name])} | sha256sum"


def parse_hashes(out: bytes) -> list[str]:
    """In the order of the names. Raises ValueError."""
    found = []
    for line in out.splitlines():
        match = _HASH.match(line)
        if match is None:
            raise ValueError(repr(line[:80]))
        found.append(match[1].decode())
    return found


def find(root: str, key: Key, patterns: Sequence[bytes]) -> str:
    """Plain files that the job left, that its user can read and that have no other name elsewhere: all that these
    patterns mean (see `federation.access.finding`), and few others. Cut off behind MOST_TOLD bytes.
    """
    path = words([f"{root}/{layout.name_of(key)}/{layout.WORK}"])
    meant = b"|".join(map(_regex, patterns))
    wanted = f"-regextype posix-extended -regex {words([os.fsdecode(b'[.]/(' + meant + b')(/.*)?')])}"
    narrow = wanted if len(meant) <= MOST_REGEX else ""
    return f"""\
cd {path} || exit 1
LC_ALL=C find . -type f -links 1 -readable {narrow} -printf '%s %m %p\\0' 2> /dev/null | head -c {MOST_TOLD}
true"""


def _regex(pattern: bytes) -> bytes:
    """Of all paths that the pattern means, and of some with other characters where it has brackets."""
    return _SIGNS.sub(_sign, pattern)


def _sign(match: re.Match[bytes]) -> bytes:
    sign = match[0]
    if sign == b"*":
        return b"[^/]*"
    return b"[^/]" if sign == b"?" or len(sign) > 1 else b"\\" + sign


def parse_find(out: bytes) -> list[Found]:
    """Raises ValueError."""
    found = []
    for one in out.split(b"\0")[:-1]:
        match = _FOUND.fullmatch(one)
        if match is None:
            raise ValueError(repr(one[:80]))
        found.append(Found(path=match[3], size=int(match[1]), mode=int(match[2], 8) & 0o777))
    return found
