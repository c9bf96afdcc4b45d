"""Compares the shardings and predictions of two modules; the solver's report may differ.

usage: same_shardings.py applied.mlir solved.mlir
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def annotations(path: str) -> tuple[str, list[str], list[str]]:
    """The objective and predictions, arguments' shardings, and ops with theirs."""
    text = Path(path).read_text()
    objective = re.search(r"objective_seconds = ([^ ,]+)", text)
    predicted = re.search(r"alpa.predicted = \{[^}]*\}", text)
    assert objective is not None
    assert predicted is not None
    arguments = re.findall(r"%arg\d+: [^{]*\{[^}]*alpa.sharding = #alpa.sharding<\[[^>]*\]>", text)
    ops = [line.strip() for line in text.splitlines() if "alpa.shardings = " in line]
    return objective[1] + predicted[0], arguments, ops


def main() -> None:
    applied, solved = annotations(sys.argv[1]), annotations(sys.argv[2])
    for mine, other in zip(applied[1] + applied[2], solved[1] + solved[2], strict=True):
        if mine != other:
            raise SystemExit(f"applied: {mine}\nsolved:  {other}")
    if applied[0] != solved[0]:
        raise SystemExit(f"applied: {applied[0]}\nsolved:  {solved[0]}")
    print(f"equal: {len(solved[1])} arguments, {len(solved[2])} ops")


if __name__ == "__main__":
    main()
