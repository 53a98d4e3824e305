"""PURE: what the two credentials of a handshake say, and when they are believed.

The caller sends a credential over (a fresh nonce, the fingerprint of the certificate it sees). The server believes it
only when the fingerprint is its own, so that a credential caught by a host in between is worth nothing; it answers with
a credential over the same nonce and fingerprint, so that only a server which munged knows as root or SlurmUser can.
"""

from slurm_plugin.errors import Untrusted

METADATA_KEY = "vgpu-munge-bin"
SERVER_NAME = "vgpu-controller"  # the name in the certificate; hosts are not names here, the pinned certificate is
NONCE_BYTES = 16
_WORD = "vgpu-link-1"


def call_payload(nonce: str, fingerprint: str) -> str:
    return f"{_WORD} call {nonce} {fingerprint}"


def answer_payload(nonce: str, fingerprint: str) -> str:
    return f"{_WORD} answer {nonce} {fingerprint}"


def nonce_of_call(payload: str, own_fingerprint: str) -> str:
    """The caller's nonce. Raises Untrusted when the call was not made to the holder of this certificate."""
    words = payload.split(" ")
    if len(words) != 4 or words[:2] != [_WORD, "call"] or len(words[2]) != 2 * NONCE_BYTES:
        raise Untrusted("the credential is not a call of this link", hint="are both ends the same version?")
    if words[3] != own_fingerprint:
        raise Untrusted("the call was made to another certificate", hint="something sits between caller and controller")
    return words[2]


def check_answer(payload: str, uid: int, *, expected: str, trusted: frozenset[int]) -> None:
    """Raises Untrusted unless a trusted user answered exactly this call."""
    if payload != expected:
        raise Untrusted("the controller answered another call")
    if uid not in trusted:
        raise Untrusted(
            f"the controller runs as uid {uid}", hint="it must run as root or SlurmUser; see controller_uid"
        )
