"""How two sites agree on what they speak: the highest version that both know, and the features that both name."""

from dataclasses import dataclass

from federation.errors import Refused
from federation.proto.federation.v1 import federation_pb2 as pb

OLDEST, NEWEST = 1, 1
BATCHES = "batches"  # several messages in one
OVER = "over"  # a submit of what is over: who does not know that could run it
FEATURES = frozenset({"signals", BATCHES, OVER})
SUBMITS = 256  # credit that we give: submits of one peer that may be under way without an answer
MOST_SUBMITS = 65536  # credit that we take
MAX_NAMES = 256  # features of a Hello that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    version: int
    features: frozenset[str]
    submits: int  # how many we may have under way


def hello(site: str, software: str) -> pb.Hello:
    return pb.Hello(
        site=site,
        oldest_version=OLDEST,
        newest_version=NEWEST,
        features=sorted(FEATURES),
        submits=SUBMITS,
        software=software,
    )


def agree(theirs: pb.Hello) -> Agreed:
    """Raises Refused: there is no version that both speak."""
    version = min(NEWEST, theirs.newest_version)
    if version < max(OLDEST, theirs.oldest_version):
        older = "they are too old" if theirs.newest_version < OLDEST else "we are too old"
        spoken = f"they speak {theirs.oldest_version} to {theirs.newest_version}, we {OLDEST} to {NEWEST}"
        raise Refused(f"no common version: {spoken}", hint=f"upgrade: {older}")
    features = FEATURES & set(theirs.features[:MAX_NAMES])
    return Agreed(version=version, features=frozenset(features), submits=min(theirs.submits, MOST_SUBMITS))
