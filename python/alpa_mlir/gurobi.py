"""Gurobi as a solver of intra-op problems.

The integer program is the compiler's (compiler/Solver/Ilp.h), the same that HiGHS gets, and the
compiler's evaluator recomputes cost and memory of the answer. `gurobipy` is imported only here, and
only when it is asked for. Its free licence takes models of up to 2,000 columns and 2,000 rows.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from alpa_mlir.errors import SolverError

# Of gurobipy.GRB.Error, which cannot be named before it is imported.
_NO_LICENSE, _SIZE_LIMIT_EXCEEDED = 10009, 10010


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SolverError(
            f"method 'gurobi' needs the package {name} ({error})",
            fix="pip install 'alpa-mlir[gurobi]'",
        ) from None


def solve_ilp(
    ilp: Any, *, time_limit_seconds: float, gap: float, threads: int, seed: int
) -> dict[str, Any]:
    """Solve an integer program of the compiler.

    Args:
        ilp: what `compiler.Problem.as_ilp` returns.
        time_limit_seconds: seconds to search at most.
        gap: stop when (cost - bound) / cost is no more than this.
        threads: threads to search with; 0 for Gurobi's choice.
        seed: seed of the search.

    Returns:
        The checked answer as named values, like `compiler.Problem.solve`.

    Raises:
        SolverError: gurobipy is missing, has no licence, or the model is too large for it.
    """
    if ilp.impossible:
        return ilp.finish("Gurobi", [], 0.0, True)
    gurobi = _import("gurobipy")
    try:
        with gurobi.Env(params={"OutputFlag": 0}) as env:
            return _solve(gurobi, env, ilp, time_limit_seconds, gap, threads, seed)
    except gurobi.GurobiError as error:
        if error.errno == _SIZE_LIMIT_EXCEEDED:
            raise SolverError(
                f"the licence of Gurobi does not cover a model of {len(ilp.costs) // 8} columns and"
                f" {len(ilp.row_lower) // 8} rows (the free one: 2000 of each)",
                fix="install a full licence, or use method 'highs' or 'built-in'",
            ) from None
        if error.errno == _NO_LICENSE:
            raise SolverError(
                f"Gurobi has no licence here: {error}",
                fix="install a licence, or use method 'highs' or 'built-in'",
            ) from None
        raise SolverError(f"Gurobi failed: {error}", fix="use method 'built-in'") from None


def _solve(
    gurobi: Any, env: Any, ilp: Any, seconds: float, gap: float, threads: int, seed: int
) -> dict[str, Any]:
    numpy, sparse = _import("numpy"), _import("scipy.sparse")
    status = gurobi.GRB.Status
    end = time.monotonic() + seconds
    costs = numpy.frombuffer(ilp.costs)
    bound = 0.0
    while True:
        lower, upper = numpy.frombuffer(ilp.row_lower), numpy.frombuffer(ilp.row_upper)
        starts = numpy.frombuffer(ilp.row_starts, numpy.int32)
        columns = numpy.frombuffer(ilp.columns, numpy.int32)
        values = numpy.frombuffer(ilp.values)
        kinds = numpy.where(numpy.arange(costs.size) < ilp.num_binaries, "B", "C")
        with gurobi.Model(env=env) as model:
            model.Params.TimeLimit = max(0.0, end - time.monotonic())
            model.Params.Threads = threads
            model.Params.Seed = seed % 2_000_000_000
            model.Params.MIPGap = gap
            # Costs are integers: a difference below one is none.
            model.Params.MIPGapAbs = min(0.5, 0.99 / ilp.unit)
            model.Params.FeasibilityTol = model.Params.IntFeasTol = 1e-9
            x = model.addMVar(costs.size, lb=0.0, ub=1.0, obj=costs, vtype=kinds)
            matrix = sparse.csr_matrix((values, columns, starts), (lower.size, costs.size))
            # Rows are equations, or have an upper bound only.
            model.addMConstr(matrix, x, numpy.where(lower == upper, "=", "<"), upper)
            model.optimize()
            infeasible = model.Status in (status.INFEASIBLE, status.INF_OR_UNBD)
            found = model.SolCount > 0 and not infeasible
            choices: list[int] = ilp.choices(x.X.tolist()) if found else []
            bound = bound if infeasible else max(bound, model.ObjBound)
        # An answer that only the tolerances let through is excluded.
        if not found or not ilp.cut_off(choices):
            return ilp.finish("Gurobi", choices, bound, infeasible)
