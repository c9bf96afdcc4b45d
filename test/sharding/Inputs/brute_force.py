"""Compares a solved module with the best of all combinations of its problem.

usage: brute_force.py problem.json solved.mlir [micro-batches]
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path


def least_cost(problem: dict) -> int:
    """Cost in picoseconds of the cheapest combination of choices, found by trying all."""
    costs = problem["nodes"]["costs"]
    edges = list(zip(problem["edges"]["nodes"], problem["edges"]["costs"], strict=True))
    best = None
    for choices in itertools.product(*(range(len(node)) for node in costs)):
        total = sum(node[choice] for node, choice in zip(costs, choices, strict=True))
        for (a, b), matrix in edges:
            total += matrix[choices[a] * len(costs[b]) + choices[b]]
        best = total if best is None else min(best, total)
    assert best is not None
    return best


def number(text: str, name: str) -> float:
    match = re.search(rf"\b{name} = ([-+.0-9eE]+)", text)
    if not match:
        raise SystemExit(f"no {name} in the solved module")
    return float(match.group(1))


def main() -> None:
    problem = json.loads(Path(sys.argv[1]).read_text())["problem"]
    solved = Path(sys.argv[2]).read_text()
    micro_batches = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    best = least_cost(problem) * 1e-12
    claimed = number(solved, "objective_seconds")
    if abs(claimed - best) > 1e-9 * best:
        raise SystemExit(f"the solver claims {claimed} s, the best of all is {best} s")
    # The phases add up to the objective and what no choice can change.
    step = micro_batches * (
        number(solved, "forward_seconds") + number(solved, "backward_seconds")
    ) + number(solved, "update_seconds")
    if step < best * (1 - 1e-9):
        raise SystemExit(f"the phases add up to {step} s, less than the objective {best} s")
    print(f"combinations: {len(problem['nodes']['costs'])} nodes, best {best:.6e} s, equal")


if __name__ == "__main__":
    main()
