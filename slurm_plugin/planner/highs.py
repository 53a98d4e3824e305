"""A linear or integer program with several goals, one after the other, solved by HiGHS. Nothing else knows HiGHS."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SERVE = 20_000  # what the last goal counts against the cost of changes: reaching more of it always wins
NODES_MAX = 2_000  # of one integer program's tree
FEASIBLE = 2  # HiGHS's word for a solution that keeps every row
PRIMAL = 4  # its primal simplex: nothing changed is a corner to start from, and so is what the goal before reached
UNSCALED = 0  # all entries are small whole numbers
EPSILON = 1e-6
SLACK = 1e-9  # by this share an earlier goal may be missed, for the sake of rounding: less than one slice
# ... and by so much among integers, where a goal is a whole number and HiGHS may tell a little more than there is
WHOLE_SLACK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A sparse matrix, column after column, with what each column costs and how much of it there may be."""

    starts: "NDArray[np.int32]"
    rows: "NDArray[np.int32]"
    values: "NDArray[np.float64]"
    cost: "NDArray[np.float64]"  # of the last goal: what changing costs
    upper: "NDArray[np.float64]"


@dataclass(slots=True)
class Matrix:
    """Columns as they are added."""

    starts: list[int] = field(default_factory=lambda: [0])
    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, entries: list[tuple[int, int]], cost: float, upper: float) -> None:
        self.rows += [row for row, _ in entries]
        self.values += [value for _, value in entries]
        self.starts.append(len(self.rows))
        self.cost.append(cost)
        self.upper.append(upper)

    def columns(self) -> Columns:
        import numpy as np

        return Columns(
            starts=np.array(self.starts, dtype=np.int32),
            rows=np.array(self.rows, dtype=np.int32),
            values=np.array(self.values, dtype=float),
            cost=np.array(self.cost, dtype=float),
            upper=np.array(self.upper, dtype=float),
        )


@dataclass(frozen=True, slots=True)
class Found:
    columns: "NDArray[np.float64]"
    reached: list[float]  # by goal
    cut_short: bool


class Highs:
    """One HiGHS, whose time is counted over all its runs."""

    def __init__(self, columns: Columns, limits: "Sequence[float] | NDArray[np.float64]", time_s: float) -> None:
        import highspy  # both are heavy, and only a plan needs them
        import numpy as np

        self._h, self._np, self._cost = highspy, np, columns.cost
        self._rows = len(limits)
        self._solver: Any = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 1),
            ("presolve", "off"),
            ("simplex_strategy", PRIMAL),
            ("simplex_scale_strategy", UNSCALED),
            ("time_limit", time_s),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.5),
            ("mip_max_nodes", NODES_MAX),
        ):
            self._solver.setOptionValue(option, value)
        self._pass(columns, np.asarray(limits, dtype=float))
        self._kept = 0  # rows that hold what earlier goals reached
        self._whole = False

    def _pass(self, columns: Columns, limits: "NDArray[np.float64]") -> None:
        """All in one call of arrays: set one by one they would be copied a number at a time."""
        nothing = self._np.zeros(len(columns.cost))
        self._solver.passModel(
            len(columns.cost),
            len(limits),
            len(columns.rows),
            int(self._h.MatrixFormat.kColwise),
            int(self._h.ObjSense.kMaximize),
            0.0,
            nothing,
            nothing,
            columns.upper,
            self._np.full(len(limits), -self._h.kHighsInf),
            limits,
            columns.starts,
            columns.rows,
            columns.values,
            nothing.astype(self._np.int32),
        )

    def run(self, goals: "Sequence[Sequence[float] | NDArray[np.float64]]") -> Found | None:
        reached: list[float] = []
        columns = self._np.zeros(0)
        cut_short = False
        for nth, goal in enumerate(goals):
            values = self._np.asarray(goal, dtype=float)
            last = nth == len(goals) - 1
            worth = SERVE * values + self._cost if last else values
            self._solver.changeColsCost(len(worth), self._range(len(worth)), worth)
            self._solver.run()
            if self._solver.getModelStatus() != self._h.HighsModelStatus.kOptimal:
                cut_short = True
                if self._solver.getInfo().primal_solution_status != FEASIBLE:
                    return None
            columns = self._np.array(self._solver.getSolution().col_value)
            reached.append(float(values @ columns))
            if not last:
                self._hold(values, reached[-1])
        return Found(columns, reached, cut_short)

    def restrict(self, lower: Sequence[float], upper: Sequence[float], changes: int) -> None:
        """From now on all columns are integers, the first ones within these bounds, and no goal is held yet.

        What serves whom would be whole by itself, but for the rows that hold what earlier goals reached.
        """
        if self._kept:
            self._solver.deleteRows(
                self._kept, self._np.arange(self._rows, self._rows + self._kept, dtype=self._np.int32)
            )
            self._kept = 0
        self._whole = True
        kinds = self._np.array([self._h.HighsVarType.kInteger] * len(self._cost))
        self._solver.setOptionValue("presolve", "on")
        self._solver.changeColsBounds(changes, self._range(changes), self._np.array(lower), self._np.array(upper))
        self._solver.changeColsIntegrality(len(kinds), self._range(len(kinds)), kinds)

    def _hold(self, values: "NDArray[np.float64]", reached: float) -> None:
        some = self._np.flatnonzero(values).astype(self._np.int32)
        slack = WHOLE_SLACK if self._whole else max(EPSILON, SLACK * reached)
        self._solver.addRow(reached - slack, self._h.kHighsInf, len(some), some, values[some])
        self._kept += 1

    def _range(self, count: int, first: int = 0) -> Any:
        return self._np.arange(first, first + count, dtype=self._np.int32)
