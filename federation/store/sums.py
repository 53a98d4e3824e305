"""What budgets and limits ask for, kept in memory: what an account has spent, how much input of a peer's is here."""

import sqlite3

from federation.model.job import Attempt, Job
from federation.model.states import Target
from federation.store.transactions import Transactions

MOST_SPENT = 10_000  # sums of an account's day that are kept; of peers there are fewer


class Sums(Transactions):
    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._spent: dict[tuple[str, int], float] = {}
        self._held: dict[str, int] = {}

    def _forget_all(self) -> None:
        super()._forget_all()
        self._spent.clear()
        self._held.clear()

    def spent(self, account: str, day: int) -> float:
        """What its jobs of that day cost, or have reserved. A busy day has 100,000 jobs."""
        known = self._spent.get((account, day))
        if known is None:
            row = self._one("spent", account=account, day=day)
            if len(self._spent) >= MOST_SPENT:
                self._spent.clear()
            known = self._spent[account, day] = float(row["cost"]) if row else 0.0
        return known

    def charge(self, account: str, day: int, money: float) -> None:
        """What an attempt cost that is over, when its job begins another one."""
        if money:
            self._run("charge", account=account, day=day, money=money)
        if (account, day) in self._spent:
            self._spent[account, day] += money

    def forget_charges(self, before_day: int) -> None:
        self._run("drop_charges", day=before_day)

    def held_bytes(self, origin: str) -> int:
        """Input of its attempts that is kept here."""
        if origin not in self._held:
            row = self._one("held_bytes", origin=origin)
            self._held[origin] = row["n"] if row else 0
        return self._held[origin]

    def _count_cost(self, job: Job, was: Job | None) -> None:
        if not job.cost and (was is None or not was.cost):
            return
        for one, sign in ((was, -1.0), (job, 1.0)):
            if one is not None and (one.account, one.cost_day) in self._spent:
                self._spent[one.account, one.cost_day] += sign * one.cost

    def _count_held(self, attempt: Attempt, was: Attempt | None) -> None:
        if attempt.input_bytes and attempt.origin in self._held:
            self._held[attempt.origin] += _held(attempt) - (_held(was) if was is not None else 0)


def _held(attempt: Attempt) -> int:
    return 0 if attempt.state is Target.RELEASED else attempt.input_bytes
