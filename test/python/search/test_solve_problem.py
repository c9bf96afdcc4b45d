"""Intra-op problems solved from Python, by every solver."""

from __future__ import annotations

import doctest
import gzip
import importlib
import json
import random

import alpa_mlir
import pytest
from alpa_mlir import solve_problem, solver
from alpa_mlir.errors import ProblemFormatError, SolverError

METHODS = list(alpa_mlir.solver_methods())


def small(limit=8):
    return {
        "problem": {
            "nodes": {
                "intervals": [[0, 2], [1, 3]],
                "costs": [[1, 10], [2, 12]],
                "usages": [[5, 2], [4, 4]],
            },
            "edges": {"nodes": [[0, 1]], "costs": [[10**18, 0, 9, 0]]},
            "usage_limit": limit,
        }
    }


def grid(side, choices, seed=0):
    rng = random.Random(seed)
    count = side * side
    pairs = [(i, i + 1) for i in range(count) if (i + 1) % side] + [
        (i, i + side) for i in range(count - side)
    ]
    return {
        "problem": {
            "nodes": {
                "intervals": [[i, i + side] for i in range(count)],
                "costs": [[rng.randint(0, 50) for _ in range(choices)] for _ in range(count)],
                "usages": [[rng.randint(1, 9) for _ in range(choices)] for _ in range(count)],
            },
            "edges": {
                "nodes": [list(pair) for pair in pairs],
                "costs": [[rng.randint(0, 50) for _ in range(choices**2)] for _ in pairs],
            },
            "usage_limit": 5 * side,
        }
    }


@pytest.fixture(params=METHODS)
def method(request):
    if request.param != "built-in":
        package = {"highs": "highspy", "gurobi": "gurobipy"}[request.param]
        pytest.importorskip(package)
        try:
            solve_problem(small(), method=request.param)
        except SolverError as error:  # Built without it.
            pytest.skip(str(error))
    return request.param


def test_the_example():
    failed, tried = doctest.testmod(solver)
    assert tried
    assert not failed


def test_small(method):
    found = solve_problem(small(), method=method)
    assert (found.status, found.choices, found.cost, found.lower_bound, found.gap) == (
        "optimal",
        (1, 0),
        21,
        21,
        0,
    )
    assert found.peak_usage_bytes == 6
    assert found.seconds > 0
    assert not found.reason


def test_infeasible(method):
    found = solve_problem(small(limit=5), method=method)
    assert found.status == "infeasible"
    assert found.reason
    assert found.choices == ()
    assert found.cost is found.lower_bound is found.gap is found.peak_usage_bytes is None


def test_all_methods_agree(method):
    # Small enough for the free licence of Gurobi.
    question = grid(4, 3)
    found = solve_problem(question, method=method, threads=2, seed=1)
    assert found.status == "optimal"
    assert found.cost == solve_problem(question).cost


def test_nothing_found_in_time_is_no_proof():
    pytest.importorskip("highspy")
    found = solve_problem(grid(12, 6), method="highs", time_limit_seconds=1e-3)
    assert found.status == "unknown"
    assert found.cost is None
    assert "not proven" in found.reason


def test_files(tmp_path):
    plain, packed = tmp_path / "p.json", tmp_path / "p.json.gz"
    plain.write_text(json.dumps(small()))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert solve_problem(plain).cost == solve_problem(str(packed)).cost == 21


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"p.json: line 1, column 2: expected a field name in quotes, found the end"),
        (b"\x1f\x8b123", r"p.json: cannot be read: "),
        (b"\xff\xff", r"p.json: cannot be read: "),
        (
            json.dumps(small()).replace("12]", "-12]").encode(),
            r"p.json: line 1: node 1: found cost -12 at position 1, expected 0 to 10\^18",
        ),
    ],
)
def test_bad_files(tmp_path, content, message):
    file = tmp_path / "p.json"
    file.write_bytes(content)
    with pytest.raises(ProblemFormatError, match=message):
        solve_problem(file)


def test_absent_file(tmp_path):
    with pytest.raises(ProblemFormatError, match=r"absent.json: cannot be read"):
        solve_problem(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "best"}, "method 'best'; fix: use one of built-in, highs, gurobi"),
        ({"time_limit_seconds": 0}, "time limit of 0 seconds"),
        ({"gap": -1}, "gap -1; fix"),
        ({"threads": 0}, "0 threads; fix"),
        ({"seed": -1}, "seed -1; fix"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(SolverError, match=message):
        solve_problem(small(), **options)


def test_too_large_for_the_free_licence():
    pytest.importorskip("gurobipy")
    with pytest.raises(
        SolverError, match=r"licence of Gurobi does not cover a model of \d+ columns.*fix: install"
    ):
        solve_problem(grid(12, 6), method="gurobi")


def test_missing_packages(monkeypatch):
    real = importlib.import_module

    def fake(name, *args):
        if name == "gurobipy":
            raise ImportError("No module named 'gurobipy'")
        return real(name, *args)

    monkeypatch.setattr(solver.importlib, "import_module", fake)
    named = r"needs the package gurobipy.*fix: pip install 'alpa-mlir\[gurobi\]'"
    with pytest.raises(SolverError, match=named):
        solve_problem(small(), method="gurobi")
