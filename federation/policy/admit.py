"""What a site takes from a peer: its list of pools and users, how many jobs at once, how large."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from federation.access.environment import scrub
from federation.model.messages import Submit
from federation.model.spec import JobSpec
from federation.model.states import End

MAX_SCRIPT_BYTES = 4 << 20  # Slurm's own default of max_script_size
MAX_ENV_BYTES = 1 << 20
MAX_INPUTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What one peer may do here."""

    pools: tuple[str, ...]
    users: Mapping[str, str]  # the peer's user -> ours; who is not in it is refused, and root is never in it
    accounts: Mapping[str, str] | None = None  # the same of accounts, "" for jobs with none; None: all, as they are
    environment: tuple[str, ...] = ("*",)  # variables that its jobs may bring; some never are
    most_jobs: int = 10_000  # open ones
    most_input_bytes: int = 1 << 40  # of one job
    most_held_bytes: int = 10 << 40  # of all that are kept here


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A site's own rules: most open jobs of each of its pools, and its guests."""

    pools: Mapping[str, int]
    guests: Mapping[str, Guest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    user: str = ""  # ours, when it is let in
    spec: JobSpec | None = None  # what runs then: our account, and only what may be in its environment
    no: End | None = None  # REFUSED or NO_ROOM
    why: str = ""


def admit(
    submit: Submit, origin: str, house: House, open_jobs: Mapping[tuple[str, str], int], held_bytes: int = 0
) -> Verdict:
    """`open_jobs` has what takes room now, by (pool, origin); `held_bytes`: its input that is kept here."""
    guest, spec = house.guests.get(origin), submit.spec
    if guest is None or submit.pool not in guest.pools or submit.pool not in house.pools:
        return Verdict(no=End.REFUSED, why=f"{origin} may not use pool {submit.pool}")
    user = guest.users.get(spec.user, "")
    if not user or user == "root":
        return Verdict(no=End.REFUSED, why=f"user {spec.user} of {origin} is nobody here")
    account = spec.account if guest.accounts is None else guest.accounts.get(spec.account)
    if account is None:
        return Verdict(no=End.REFUSED, why=f"account '{spec.account}' of {origin} is none here")
    if len(spec.script) > MAX_SCRIPT_BYTES or sum(len(a) + len(b) for a, b in spec.env) > MAX_ENV_BYTES:
        return Verdict(no=End.REFUSED, why="its script or its environment is too large")
    if len(spec.inputs) > MAX_INPUTS or spec.input_bytes > guest.most_input_bytes:
        return Verdict(no=End.REFUSED, why="its input is too large")
    in_pool = sum(count for (pool, _), count in open_jobs.items() if pool == submit.pool)
    from_guest = sum(count for (_, site), count in open_jobs.items() if site == origin)
    if in_pool >= house.pools[submit.pool] or from_guest >= guest.most_jobs:
        return Verdict(no=End.NO_ROOM, why=f"pool {submit.pool} takes no more jobs now")
    if held_bytes + spec.input_bytes > guest.most_held_bytes:
        return Verdict(no=End.NO_ROOM, why=f"no more input of {origin} is kept there until some of its jobs are over")
    environment = scrub(spec.env, guest.environment)
    return Verdict(user=user, spec=replace(spec, account=account, env=environment.env))
