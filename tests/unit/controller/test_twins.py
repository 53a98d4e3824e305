"""Two agents of one node's name are told apart from one that was restarted or lost its connection."""

import pytest

from slurm_plugin.controller.twins import TIMES, TOLD_S, Twins, Who


def one(host: str, port: int = 1, started_at: float = 100.0) -> Who:
    return Who(peer=f"ipv4:{host}:{port}", started_at=started_at)


def after(*came: Who) -> Twins:
    twins = Twins()
    for nth, who in enumerate(came):
        twins.came(who, float(nth))
    return twins


A, B = one("10.0.0.1"), one("10.0.0.2")


def test_two_that_come_by_turns_are_named_both() -> None:
    twins = after(*(A, B) * TIMES)
    problem = twins.problem(10.0)
    assert "10.0.0.1 (started" in problem
    assert "10.0.0.2 (started" in problem
    assert not twins.problem(TOLD_S * 2), "one of them is gone"


@pytest.mark.parametrize(
    "came",
    [
        [one("10.0.0.1", port) for port in range(9)],
        [one("10.0.0.1", port, 100.0 + port) for port in range(9)],
        [A, A, B, B, B],
        [A, B, A],
    ],
    ids=["connection-lost", "restarted", "moved", "once"],
)
def test_an_agent_that_comes_back_alone_is_no_twin(came: list[Who]) -> None:
    assert not after(*came).problem(10.0)


def test_an_ipv6_peer_is_named_without_its_port() -> None:
    assert Who(peer="ipv6:[fe80::1]:4242", started_at=0).host == "[fe80::1]"
