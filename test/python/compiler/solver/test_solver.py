"""The solver against brute force, and against itself on problems too large for that."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_paths import BUILD

PROGRAM = BUILD / "bin" / "alpa-solve"
FORBIDDEN = 10**18

Json = dict[str, Any]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="alpa-solve is not built")


def solve(
    problem: Json,
    folder: Path,
    time_limit: float = 20.0,
    quick_work: float = 2e6,
    gap: float = 0.0,
    method: str = "built-in",
) -> Json:
    """Runs alpa-solve on a problem and returns its JSON answer, with the choices."""
    file, choices = folder / "problem.json", folder / "choices.json"
    file.write_text(json.dumps({"problem": problem}))
    choices.unlink(missing_ok=True)
    done = subprocess.run(
        [
            PROGRAM,
            file,
            "--json",
            f"--time-limit={time_limit}",
            f"--quick-work={quick_work}",
            f"--gap={gap}",
            f"--method={method}",
            f"--solution={choices}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 2), done.stderr
    answer: Json = json.loads(done.stdout)
    assert (answer["status"] == "infeasible") == (done.returncode == 2)
    if done.returncode == 0:
        answer["choices"] = json.loads(choices.read_text())
    return answer


def evaluate(problem: Json, choices: tuple[int, ...] | list[int]) -> tuple[int, int] | None:
    """Cost and peak usage of some choices; None if they are forbidden or need too much."""
    nodes, edges = problem["nodes"], problem["edges"]
    taken = [costs[c] for costs, c in zip(nodes["costs"], choices, strict=True)]
    for (a, b), costs in zip(edges["nodes"], edges["costs"], strict=True):
        taken.append(costs[choices[a] * len(nodes["costs"][b]) + choices[b]])
    changes: list[tuple[int, int]] = []
    for (begin, end), usages, c in zip(nodes["intervals"], nodes["usages"], choices, strict=True):
        if usages and begin < end:
            changes += [(begin, usages[c]), (end, -usages[c])]
    usage = peak = 0
    for _, change in sorted(changes):
        usage += change
        peak = max(peak, usage)
    limit = problem.get("usage_limit")
    if max(taken, default=0) >= FORBIDDEN or (limit is not None and peak > limit):
        return None
    return sum(taken), peak


def brute_force(problem: Json) -> int | None:
    """The least cost of all combinations, or None if all are forbidden."""
    sizes = [range(len(costs)) for costs in problem["nodes"]["costs"]]
    results = [evaluate(problem, choices) for choices in itertools.product(*sizes)]
    return min((result[0] for result in results if result), default=None)


@st.composite
def problems(draw: st.DrawFn) -> Json:
    """None to 7 nodes with up to 4 choices; parallel edges, forbidden pairs, empty intervals."""
    count = draw(st.integers(0, 7))
    sizes = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    cost = st.one_of(st.integers(0, 30), st.integers(0, 30), st.just(FORBIDDEN))
    if draw(st.booleans()):
        cost = st.integers(0, 10**15)

    def costs(size: int) -> list[int]:
        return draw(st.lists(cost, min_size=size, max_size=size))

    def usages(size: int) -> list[int]:
        return draw(
            st.one_of(st.just([]), st.lists(st.integers(0, 9), min_size=size, max_size=size))
        )

    index = st.integers(0, max(count - 1, 0))
    pairs = draw(st.lists(st.tuples(index, index), max_size=12 if count else 0))
    edges = [[a, b] for a, b in pairs if a != b]
    begins = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    problem: Json = {
        "name": "drawn",
        "nodes": {
            "intervals": [[begin, begin + draw(st.integers(0, 5))] for begin in begins],
            "costs": [costs(size) for size in sizes],
            "usages": [usages(size) for size in sizes],
        },
        "edges": {"nodes": edges, "costs": [costs(sizes[a] * sizes[b]) for a, b in edges]},
    }
    if draw(st.booleans()):
        problem["usage_limit"] = draw(st.integers(0, 30))
    return problem


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), quick_work=st.sampled_from([0.0, 2e6]))
def test_small_problems_equal_brute_force(
    problem: Json, quick_work: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    answer = solve(problem, tmp_path_factory.getbasetemp(), quick_work=quick_work)
    best = brute_force(problem)
    if best is None:
        assert answer["status"] == "infeasible"
        assert answer["reason"]
        return
    assert answer["status"] == "optimal"
    assert answer["cost"] == answer["lower_bound"] == best
    assert evaluate(problem, answer["choices"]) == (best, answer["peak_usage"])


def chain_with_residuals(nodes: int, choices: int, limit: int | None, seed: int) -> Json:
    """Looks like a deep network: a chain with skip connections that do not nest."""
    rng = random.Random(seed)
    sizes = [rng.choice((2, choices // 2, choices)) for _ in range(nodes)]
    edges = [[i - 1, i] for i in range(1, nodes)]
    edges += [[i - 6, i] for i in range(6, nodes, 6)] + [[i - 3, i] for i in range(4, nodes, 4)]
    problem: Json = {
        "name": "chain",
        "nodes": {
            "intervals": [[i, i + rng.randint(1, 8)] for i in range(nodes)],
            "costs": [[rng.randint(0, 10**9) for _ in range(size)] for size in sizes],
            "usages": [[rng.randint(1, 100) for _ in range(size)] for size in sizes],
        },
        "edges": {
            "nodes": edges,
            "costs": [
                [rng.choice((0, rng.randint(0, 10**9))) for _ in range(sizes[a] * sizes[b])]
                for a, b in edges
            ],
        },
    }
    if limit is not None:
        problem["usage_limit"] = limit
    return problem


@pytest.mark.parametrize("seed", range(4))
def test_bounds_and_elimination_agree(seed: int, tmp_path: Path) -> None:
    problem = chain_with_residuals(100, 8, None, seed)
    at_once, bounded = solve(problem, tmp_path), solve(problem, tmp_path, quick_work=0)
    assert at_once["status"] == bounded["status"] == "optimal"
    assert at_once["cost"] == bounded["cost"]


def test_thousands_of_nodes_are_proven_in_little_time(tmp_path: Path) -> None:
    problem = chain_with_residuals(3000, 12, None, 0)
    answer = solve(problem, tmp_path)
    assert answer["status"] == "optimal"
    assert answer["seconds"] < 5
    result = evaluate(problem, answer["choices"])
    assert result is not None
    assert result[0] == answer["cost"]


@pytest.mark.parametrize("seed", range(3))
def test_memory_bound_answers_hold_their_promises(seed: int, tmp_path: Path) -> None:
    free = solve(chain_with_residuals(120, 6, None, seed), tmp_path)
    previous = free["cost"]
    for share in (0.9, 0.7):
        limit = int(free["peak_usage"] * share)
        problem = chain_with_residuals(120, 6, limit, seed)
        answer = solve(problem, tmp_path, time_limit=1.5)
        assert answer["status"] in ("optimal", "feasible")
        result = evaluate(problem, answer["choices"])
        assert result == (answer["cost"], answer["peak_usage"])
        # Less memory never makes the bound or the cost better than without.
        assert free["cost"] <= answer["lower_bound"] <= answer["cost"]
        assert answer["gap"] < 0.2
        assert answer["cost"] >= previous or answer["status"] == "feasible"
        previous = answer["lower_bound"]


def test_an_acceptable_gap_ends_the_search(tmp_path: Path) -> None:
    free = solve(chain_with_residuals(400, 8, None, 1), tmp_path)
    problem = chain_with_residuals(400, 8, int(free["peak_usage"] * 0.85), 1)
    answer = solve(problem, tmp_path, time_limit=30, gap=0.1)
    assert answer["seconds"] < 10
    assert answer["gap"] <= 0.1
    assert evaluate(problem, answer["choices"]) == (answer["cost"], answer["peak_usage"])


def test_same_seed_same_answer(tmp_path: Path) -> None:
    problem = chain_with_residuals(24, 4, 450, 3)
    first, second = solve(problem, tmp_path), solve(problem, tmp_path)
    assert first["choices"] == second["choices"]


def test_damaged_files_end_in_one_line(tmp_path: Path) -> None:
    text = json.dumps({"problem": chain_with_residuals(4, 2, 100, 0)})
    rng = random.Random(0)
    for _ in range(100):
        at = rng.randrange(len(text))
        bad = text[:at] + rng.choice(('"', "{", "[", "]", "-1", "x", "")) + text[at + 1 :]
        file = tmp_path / "bad.json"
        file.write_text(bad)
        done = subprocess.run([PROGRAM, file], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1, 2)
        if done.returncode == 1:
            assert done.stderr.startswith(f"alpa-solve: {file}: ")
            assert done.stderr.count("\n") == 1
