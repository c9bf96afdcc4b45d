"""Intra-op problems by themselves, with any of the solvers."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpa_runtime.errors import NUMBER, PATH, WHOLE, check_type

from alpa_mlir import compiler
from alpa_mlir.errors import ProblemFormatError, SolverError

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


@dataclass(frozen=True)
class ProblemSolution:
    """What a solver answered, as the evaluator recomputed it.

    Attributes:
        status: "optimal" (proven), "feasible", "infeasible" (proven), or "unknown" (nothing was
            found in time).
        choices: one per node; empty without an answer.
        cost: exact, in the problem's unit (the compiler's problems count picoseconds); None
            without an answer.
        lower_bound: no answer costs less; None without an answer.
        gap: (cost - lower_bound) / cost; None without an answer.
        peak_usage_bytes: most bytes in use at one moment; None without an answer.
        seconds: reading the problem included.
        reason: why there is no answer; empty with one.
    """

    status: str
    choices: tuple[int, ...]
    cost: int | None
    lower_bound: int | None
    gap: float | None
    peak_usage_bytes: int | None
    seconds: float
    reason: str


def _read(problem: str | os.PathLike[str] | Mapping[str, Any]) -> compiler.Problem:
    if isinstance(problem, Mapping):
        return compiler.Problem(json.dumps(dict(problem)))
    path = Path(problem)
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        text = data.decode()
    except (OSError, EOFError, ValueError) as error:
        raise ProblemFormatError(f"cannot be read: {error}", where=str(path)) from None
    return compiler.Problem(text, str(path))


def _highs_library() -> str:
    """The shared library inside the package highspy; empty if that is not installed."""
    spec = importlib.util.find_spec("highspy")
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / "libhighs.so.1" for folder in folders or ()]
    return next((str(file) for file in files if file.exists()), "")


def solve_problem(
    problem: str | os.PathLike[str] | Mapping[str, Any],
    *,
    method: str = "built-in",
    time_limit_seconds: float = 60.0,
    gap: float = 0.0,
    threads: int = 1,
    seed: int = 0,
) -> ProblemSolution:
    """Choose one strategy per node at least cost under the problem's memory limit.

    Args:
        problem: a file in the JSON form of the IOPDDL contest, plain or gzipped, or its content as
            nested dictionaries.
        method: one of `solver_methods()`.
        time_limit_seconds: seconds to use at most.
        gap: stop when (cost - lower bound) / cost is no more than this; 0 asks for a proof.
        threads: threads to search with, at least 1.
        seed: seed of the search; the same seed gives the same answer, whatever the threads,
            unless the time limit ends the search.

    Raises:
        ProblemFormatError: the problem cannot be read, is malformed or has a number out of range.
        SolverError: unknown method, bad option, or a solver that is missing, fails or has no
            licence for the problem's size.

    Source: Alpa (OSDI 2022), section 4.2; the memory limit is the IOPDDL contest's.

    Example:
        >>> found = solve_problem({"problem": {
        ...     "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 10], [2, 12]],
        ...               "usages": [[5, 2], [4, 4]]},
        ...     "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 9, 0]]}, "usage_limit": 8}})
        >>> found.status, found.cost, found.choices
        ('optimal', 21, (1, 0))
    """
    where = "solve_problem"
    check_type(where, "problem", problem, PATH, Mapping)
    check_type(where, "time_limit_seconds", time_limit_seconds, NUMBER)
    check_type(where, "gap", gap, NUMBER)
    check_type(where, "threads", threads, WHOLE)
    check_type(where, "seed", seed, WHOLE)
    start = time.monotonic()
    methods = compiler.solver_methods()
    if method not in methods:
        raise SolverError(f"method '{method}'", fix=f"use one of {', '.join(methods)}")
    if not (time_limit_seconds > 0 and math.isfinite(time_limit_seconds)):
        raise SolverError(f"time limit of {time_limit_seconds} seconds", fix="give a positive one")
    if not (gap >= 0 and math.isfinite(gap)):
        raise SolverError(f"gap {gap}", fix="give 0 or a positive number")
    if not 1 <= threads <= 1024:
        raise SolverError(f"{threads} threads", fix="give 1 to 1024")
    if not 0 <= seed < 2**64:
        raise SolverError(f"seed {seed}", fix="give 0 or a positive number of 64 bits")
    read = _read(problem)
    spent = time.monotonic() - start
    if method == "gurobi":
        answer = solve_ilp(
            read.as_ilp(),
            time_limit_seconds=max(1e-3, time_limit_seconds - spent),
            gap=gap,
            threads=threads,
            seed=seed,
        )
    else:
        answer = read.solve(
            method,
            time_limit_seconds=time_limit_seconds,
            spent_seconds=spent,
            gap=gap,
            threads=threads,
            seed=seed,
            library=_highs_library() if method == "highs" else "",
        )
    none = answer["status"] in ("infeasible", "unknown")
    return ProblemSolution(
        status=answer["status"],
        choices=tuple(answer["choices"]),
        cost=None if none else int(answer["cost"]),
        lower_bound=None if none else int(answer["lower_bound"]),
        gap=None if none else answer["gap"],
        peak_usage_bytes=None if none else answer["peak_usage_bytes"],
        seconds=time.monotonic() - start,
        reason=answer["reason"],
    )
