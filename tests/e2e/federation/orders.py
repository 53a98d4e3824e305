"""What is submitted, and what has to come of it: every job knows its own bytes, files, code and side effect."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from federation.errors import OutcomeUnknown, Unavailable
from tests.e2e.federation.person import Person
from tests.e2e.federation.sites import Three

TOLD = "told"
SUBMIT_TRIES, PAUSE_S = 100, 0.5  # while there is no daemon
PINNED = {"edge": ("edge", "hpc", "cloud", ""), "hpc": ("hpc", "cloud", "")}  # from where, to which; "": wherever
OUT = "out/result"

# The first thing a job does is what must never happen twice.
_SCRIPT = """#!/bin/bash
echo "$FED_JOB ${{SLURM_JOB_ID-}}" >> {told}.${{SLURM_CLUSTER_NAME-edge}}
{cat}
for n in 1 2 3; do head -c {size} /dev/zero | tr '\\0' $n; echo err {name} $n >&2; sleep {pause}; done
mkdir -p out && {{ echo {name}; {cat}; }} > {out}
{end}
"""
_CAT = "cat in.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to submit. `data` is its input; None: it has none."""

    name: str
    origin: str
    to: str
    code: int  # as `fed wait` tells it: above 128 it dies by a signal
    data: bytes | None
    size: int
    pause_s: float

    def script(self, told: Path) -> str:
        cat = ":" if self.data is None else _CAT
        end = f"kill -{self.code - 128} $$" if self.code > 128 else f"exit {self.code}"
        return _SCRIPT.format(told=told, cat=cat, name=self.name, size=self.size, pause=self.pause_s, out=OUT, end=end)

    @property
    def stdout(self) -> bytes:
        return (self.data or b"") + b"".join(b"%d" % n * self.size for n in (1, 2, 3))

    @property
    def stderr(self) -> bytes:
        return b"".join(b"err %s %d\n" % (self.name.encode(), n) for n in (1, 2, 3))

    @property
    def result(self) -> bytes:
        return self.name.encode() + b"\n" + (self.data or b"")


def orders(origin: str, count: int, rng: random.Random) -> list[Order]:
    return [
        Order(
            name=f"{origin}{number}",
            origin=origin,
            to=PINNED[origin][number % len(PINNED[origin])],
            code=rng.choice([0, 0, 1, 2, 77, 128, rng.randrange(128), 137, 139]),
            data=rng.randbytes(rng.choice([0, 1, 70_000, 1_500_000])) if number % 2 else None,
            size=rng.choice([0, 1, 3000, 300_000]),
            pause_s=round(rng.uniform(0.05, 1.0), 2),
        )
        for number in range(count)
    ]


@dataclass(slots=True)
class Crowd:
    """Submits at one site. `asked` has each submit that may have worked, by the name that the job was given."""

    sites: Three
    person: Person
    origin: str
    asked: dict[str, Order] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)  # name -> token, of those that were acknowledged

    def home(self, name: str) -> Path:
        return self.person.home / name

    def submit(self, order: Order) -> None:
        """Until it is acknowledged. A user who got no answer asks under another name here: so what is doubled shows."""
        for attempt in range(SUBMIT_TRIES):
            name = f"{order.name}.{attempt}"
            if self._fed_submit(order, name):
                return
            time.sleep(PAUSE_S)
        raise AssertionError(f"{order.name} was never acknowledged at {self.origin}")

    def _fed_submit(self, order: Order, name: str) -> bool:
        """False: it may be a job or not."""
        home = self.home(name)
        home.mkdir(mode=0o777)
        home.chmod(0o777)
        (home / "job.sh").write_text(order.script(self.sites.root / TOLD))
        words = ["submit", "--name", name, "--stage-out", OUT]
        if order.to:
            words += ["--to", order.to]
        if order.data is not None:
            (home / "in.bin").write_bytes(order.data)
            words += ["--stage-in", "in.bin"]
        self.asked[name] = order
        done = self.person.fed(self.sites.sites[self.origin].socket, *words, "job.sh", cwd=home)
        if done.returncode == 0:
            self.said[name] = done.stdout.decode().strip()
        assert done.returncode in (0, Unavailable.exit_code, OutcomeUnknown.exit_code), done
        return done.returncode == 0
