"""Published figures beside ours: reading them, out-of-memory cells, the ranking of systems.

Two values within 3% of each other are a tie. A pair of systems in one column agrees unless one
source puts the first ahead and the other the second; out of memory is behind everything.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

TIE = 0.03
RESULTS = Path(__file__).resolve().parent / "results.tsv"

Column = tuple[str, int]  # model, GPUs
Value = float | Literal["OOM"]


@dataclass(frozen=True)
class Published:
    """One figure: TFLOPS per GPU or `"OOM"` by column and system."""

    values: Mapping[Column, Mapping[str, Value]]
    extrapolated: frozenset[tuple[str, int, str]]

    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.values))

    def gpus(self, model: str) -> list[int]:
        return [gpus for name, gpus in self.values if name == model]

    def systems(self, model: str) -> list[str]:
        names = (name for (m, _), row in self.values.items() if m == model for name in row)
        return list(dict.fromkeys(names))


def published(figure: str) -> Published:
    """The cells of `fig7`, `fig8` or `fig9`."""
    values: dict[Column, dict[str, Value]] = {}
    extrapolated: set[tuple[str, int, str]] = set()
    lines = (line for line in RESULTS.read_text().splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines, delimiter="\t"):
        if row["figure"] != figure:
            continue
        model, gpus, system = row["model"], int(row["gpus"]), row["system"]
        text = row["tflops_per_gpu"]
        values.setdefault((model, gpus), {})[system] = "OOM" if text == "OOM" else float(text)
        if row["note"]:
            extrapolated.add((model, gpus, system))
    return Published(values, frozenset(extrapolated))


def order(left: Value, right: Value) -> int:
    """1 if left is ahead, -1 if right is, 0 for a tie.

    Example:
        >>> order(60.0, 59.0), order(60.0, 50.0), order("OOM", 1.0)
        (0, 1, -1)
    """
    a = 0.0 if left == "OOM" else left
    b = 0.0 if right == "OOM" else right
    if abs(a - b) <= TIE * max(a, b):
        return 0
    return 1 if a > b else -1


def compare_column(ours: Mapping[str, Value], theirs: Mapping[str, Value]) -> dict[str, Any]:
    """Pairs of systems that both know: how many, and those that are the other way round."""
    pairs = list(combinations([name for name in theirs if name in ours], 2))
    reversed_pairs: list[list[str]] = []
    tied_once = 0
    for a, b in pairs:
        mine, paper = order(ours[a], ours[b]), order(theirs[a], theirs[b])
        if mine * paper < 0:
            reversed_pairs.append([a, b])
        elif mine != paper:
            tied_once += 1
    return {"pairs": len(pairs), "reversed": reversed_pairs, "tied_in_one": tied_once}


def compare(
    cells: Sequence[Mapping[str, Any]], paper: Published, best: Sequence[str]
) -> dict[str, Any]:
    """What a figure's cells say beside the published ones.

    Args:
        cells: `model`, `gpus`, `system`, and `value`: TFLOPS, `"OOM"`, or None for no answer.
        best: names of our own system; whatever is faster than it by more than a tenth of a percent
            puts it behind.
    """
    found: dict[Column, dict[str, Value]] = {}
    for cell in cells:
        if cell["value"] is not None:
            column = found.setdefault((cell["model"], cell["gpus"]), {})
            column[cell["system"]] = cell["value"]
    memory: list[dict[str, Any]] = []
    known, agree = 0, 0
    behind: list[dict[str, Any]] = []
    ranking: list[dict[str, Any]] = []
    for (model, gpus), row in found.items():
        theirs = paper.values.get((model, gpus), {})
        for system, value in row.items():
            if system not in theirs:
                continue
            known += 1
            same = (value == "OOM") == (theirs[system] == "OOM")
            agree += same
            if not same:
                memory.append({"model": model, "gpus": gpus, "system": system, "ours": value})
        ranking.append({"model": model, "gpus": gpus, **compare_column(row, theirs)})
        behind += [{"model": model, "gpus": gpus, **item} for item in _behind(row, best)]
    return {
        "memory": {"cells": known, "agree": agree, "differ": memory},
        "ranking": ranking,
        "behind": behind,
    }


def _behind(row: Mapping[str, Value], best: Iterable[str]) -> list[dict[str, Any]]:
    """Systems ahead of ours."""
    found: list[dict[str, Any]] = []
    for name in best:
        mine = row.get(name)
        if mine is None:
            continue
        least = 0.0 if mine == "OOM" else mine * 1.001
        for other, value in row.items():
            if other not in best and value != "OOM" and value > least:
                found.append({"system": other, "tflops": value, "ours": mine})
    return found


def cell_text(value: Value | None) -> str:
    """A value as it stands in tables; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(
    title: str, systems: Sequence[str], gpus: Sequence[int], texts: Mapping[tuple[str, int], str]
) -> str:
    """A table in Markdown: a row for each system, a column for each number of GPUs."""
    lines = [f"| {title} | " + " | ".join(f"{n} GPU{'s' * (n > 1)}" for n in gpus) + " |"]
    lines.append("|---" * (len(gpus) + 1) + "|")
    for system in systems:
        lines.append(
            f"| {system} | " + " | ".join(texts.get((system, n), "-") for n in gpus) + " |"
        )
    return "\n".join(lines)
