"""The bytes that a problem counts are those that its values add up to, for any choices."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace

_FORBIDDEN = 10**18


def _follower(matrix: list[int], columns: int) -> list[int] | None:
    """The one column that each row allows, or None if some row allows more or none."""
    rows = [matrix[i : i + columns] for i in range(0, len(matrix), columns)]
    allowed = [[j for j, cost in enumerate(row) if cost < _FORBIDDEN] for row in rows]
    return [row[0] for row in allowed] if all(len(row) == 1 for row in allowed) else None


def _peak(problem: dict[str, Any], choices: list[int]) -> int:
    """Most bytes at any time, added up time by time."""
    nodes = problem["nodes"]
    times: dict[int, int] = {}
    for choice, intervals, usages in zip(
        choices, _lists(nodes["intervals"]), nodes["usages"], strict=True
    ):
        for time in range(*intervals) if intervals else ():
            times[time] = times.get(time, 0) + usages[choice]
    return max(times.values())


def _lists(intervals: list[Any]) -> list[list[int]]:
    """One interval a node, or none."""
    return [i[0] if i and isinstance(i[0], list) else i for i in intervals]


@pytest.mark.parametrize(
    ("name", "micro_batches", "mesh"),
    [("mlp", 1, "1,8"), ("gpt", 4, "2,4"), ("gpt_remat", 1, "2,4"), ("moe", 2, "2,2,2")],
)
def test_counts_agree(name: str, micro_batches: int, mesh: str, tmp_path: Path) -> None:
    """Random choices: the passes' own sum, the problem's, and what is reported."""
    model = zoo.get(name)
    state, batch = model.init(32)
    traced = trace(model.step, state, batch)
    imported = (
        Module(traced.text, name)
        .annotate(traced.signature.to_json())
        .run(f"alpa-import,alpa-split-batch{{micro-batches={micro_batches}}}")
    )
    text = imported.as_text()
    options = f"cluster=cpu-test mesh-shape={mesh} micro-batches={micro_batches}"
    file, solution = tmp_path / "problem.json", tmp_path / "choices.json"
    Module(text, name).run(f"alpa-build-sharding-problem{{{options} output={file}}}")
    problem = json.loads(file.read_text())["problem"]
    counts = [len(costs) for costs in problem["nodes"]["costs"]]
    edges = list(zip(problem["edges"]["nodes"], problem["edges"]["costs"], strict=True))
    forced = {
        b: (a, column)
        for (a, b), matrix in edges
        if (column := _follower(matrix, counts[b])) is not None
    }
    assert forced  # Values that live at other times than their node's own.
    for seed in range(5):
        pick = random.Random(seed)
        choices = [pick.randrange(count) for count in counts]
        for node, (leader, column) in sorted(forced.items()):
            choices[node] = column[choices[leader]]
        solution.write_text(json.dumps(choices))
        # An error, were the pass's two sums not equal.
        applied = Module(text, name).run(
            f"alpa-apply-sharding-solution{{{options} solution={solution}}}"
        )
        predicted = re.search(r"alpa\.predicted = \{([^}]*)\}", applied.as_text())
        assert predicted is not None
        held = dict(re.findall(r"(\w+)_bytes = (\d+)", predicted[1]))
        total = sum(int(held[kind]) for kind in ("state", "activation", "temporary"))
        assert total == _peak(problem, choices)
