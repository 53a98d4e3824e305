"""A linear or integer program with several goals, one after the other, solved by HiGHS. Nothing else knows HiGHS."""

from dataclasses import dataclass, field
from typing import Any

SERVE = 20_000  # what the last goal counts against the cost of changes: reaching more of it always wins
NODES_MAX = 2_000  # of one integer program's tree
FEASIBLE = 2  # HiGHS's word for a solution that keeps every row
EPSILON = 1e-6
SLACK = 1e-9  # by this share an earlier goal may be missed, for the sake of rounding: less than one slice


@dataclass(slots=True)
class Matrix:
    """Columns of a sparse matrix as they are added."""

    starts: list[int] = field(default_factory=lambda: [0])
    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)  # of the last goal: what changing costs
    upper: list[float] = field(default_factory=list)

    def add(self, entries: list[tuple[int, int]], cost: float, upper: float) -> None:
        self.rows += [row for row, _ in entries]
        self.values += [value for _, value in entries]
        self.starts.append(len(self.rows))
        self.cost.append(cost)
        self.upper.append(upper)


@dataclass(frozen=True, slots=True)
class Found:
    columns: list[float]
    reached: list[float]  # by goal
    cut_short: bool


class Highs:
    """One HiGHS, whose time is counted over all its runs."""

    def __init__(self, matrix: Matrix, limits: list[float], time_s: float) -> None:
        import highspy  # both are heavy, and only a plan needs them
        import numpy as np

        self._h, self._np, self._matrix = highspy, np, matrix
        self._rows = len(limits)
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(matrix.cost), len(limits)
        program.col_cost_ = np.zeros(len(matrix.cost))
        program.col_lower_ = np.zeros(len(matrix.cost))
        program.col_upper_ = np.array(matrix.upper, dtype=float)
        program.row_lower_ = np.full(len(limits), -highspy.kHighsInf)
        program.row_upper_ = np.array(limits, dtype=float)
        program.sense_ = highspy.ObjSense.kMaximize
        program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        program.a_matrix_.start_ = np.array(matrix.starts, dtype=np.int32)
        program.a_matrix_.index_ = np.array(matrix.rows, dtype=np.int32)
        program.a_matrix_.value_ = np.array(matrix.values, dtype=float)
        self._solver: Any = highspy.Highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("random_seed", 1),
            ("presolve", "off"),
            ("time_limit", time_s),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.5),
            ("mip_max_nodes", NODES_MAX),
        ):
            self._solver.setOptionValue(option, value)
        self._solver.passModel(program)
        self._kept = 0  # rows that hold what earlier goals reached

    def run(self, goals: list[list[float]]) -> Found | None:
        reached: list[float] = []
        columns: list[float] = []
        cut_short = False
        for nth, values in enumerate(goals):
            last = nth == len(goals) - 1
            worth = [SERVE * v + c for v, c in zip(values, self._matrix.cost, strict=True)] if last else values
            self._solver.changeColsCost(len(worth), self._range(len(worth)), self._np.array(worth))
            self._solver.run()
            status = self._solver.getModelStatus()
            solution = self._solver.getSolution()
            if status != self._h.HighsModelStatus.kOptimal:
                cut_short = True
                if self._solver.getInfo().primal_solution_status != FEASIBLE:
                    return None
            columns = list(solution.col_value)
            reached.append(sum(v * x for v, x in zip(values, columns, strict=True)))
            if not last:
                self._hold(values, reached[-1])
        return Found(columns, reached, cut_short)

    def restrict(self, lower: list[float], upper: list[float], changes: int) -> None:
        """From now on the first columns are integers within these bounds, and no goal is held yet."""
        if self._kept:
            self._solver.deleteRows(
                self._kept, self._np.arange(self._rows, self._rows + self._kept, dtype=self._np.int32)
            )
            self._kept = 0
        kinds = self._np.array([self._h.HighsVarType.kInteger] * changes)
        self._solver.setOptionValue("presolve", "on")
        self._solver.changeColsBounds(changes, self._range(changes), self._np.array(lower), self._np.array(upper))
        self._solver.changeColsIntegrality(changes, self._range(changes), kinds)

    def _hold(self, values: list[float], reached: float) -> None:
        some = [nth for nth, value in enumerate(values) if value]
        self._solver.addRow(
            reached - max(EPSILON, SLACK * reached),
            self._h.kHighsInf,
            len(some),
            self._np.array(some, dtype=self._np.int32),
            self._np.array([values[nth] for nth in some]),
        )
        self._kept += 1

    def _range(self, count: int, first: int = 0) -> Any:
        return self._np.arange(first, first + count, dtype=self._np.int32)
