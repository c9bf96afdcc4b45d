"""Fits constants of a preset to half of the published runs, and judges them by the other half.

The runs are split into halves: `even` rows and odd ones, or `group` by group (of one model, batch
and number of devices), so that no run like a fitted one is held out. One half is fitted, the other
judges; with `--swap` the other way around.

Each round predicts the fitted half once for every constant with a little more of it, which gives
how the logarithm of each run's seconds depends on that of each constant, and looks for those with
the least mean |log(predicted / published)| nearby. Constants are held to what they are by a small
price, so that runs which say nothing of one leave it as it is. Every prediction plans anew, for a
plan is the best one for its constants; those that were made before are kept, as those of
published_runs.py are. What is kept of the rounds is the constants with the least error.

The result is a cluster file: the preset with the fitted constants, and their errors as comments.

Run: python benchmark/calibrate.py dgx-a100 --source Megatron --constants float16 [--json]
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from alpa_mlir.cluster import Cluster
from published_runs import (
    Constants,
    Run,
    constants_in,
    own_constants,
    predict_all,
    preset_of,
    runs,
    with_constants,
)

_optimize: Any = importlib.import_module("scipy.optimize")
_MOST = {"launch": 1e-3, "host_launch": 1e-3, "multiprocessors": 1e5}  # Others are at most 1.
_STEP = 0.05  # So much more of a constant shows how runs depend on it.
_REACH = 0.25  # So far a round goes from its constants, in their logarithm.
_PRICE = 0.02  # Of a constant that changes by a factor of e, in mean |log error|.


def halves(rows: Sequence[Run], split: str) -> tuple[list[Run], list[Run]]:
    """Every second row, or every second group of rows."""
    if split == "even":
        return list(rows[::2]), list(rows[1::2])
    groups = {group: i for i, group in enumerate(dict.fromkeys(run.group for run in rows))}
    first = [run for run in rows if groups[run.group] % 2 == 0]
    return first, [run for run in rows if groups[run.group] % 2]


class Fit:
    """Predictions of some runs at any constants."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder, self._processes = folder, processes

    def logs(self, rows: Sequence[Run], tried: Sequence[Constants]) -> Any:
        """log(predicted / published), for each of the constants [tried, rows]."""
        questions = [(run, constants) for run in rows for constants in tried]
        found = predict_all(questions, self._folder, self._processes)
        values = [
            math.log(row["step_seconds"] / run.seconds) if "step_seconds" in row else math.nan
            for (run, _), row in zip(questions, found, strict=True)
        ]
        return np.asarray(values).reshape(len(rows), len(tried)).T

    def best(self, rows: Sequence[Run], start: Constants, rounds: int) -> dict[str, float]:
        """The constants with the least mean error that `rounds` rounds find."""
        at = dict(start)
        least, best = math.inf, at
        for turn in range(rounds + 1):
            tried = [at] if turn == rounds else [at, *(_more(at, name) for name in at)]
            logs = self.logs(rows, tried)
            logs = logs[:, np.isfinite(logs).all(axis=0)]
            if (error := float(np.abs(logs[0]).mean())) < least:
                least, best = error, at
            if turn < rounds:
                at = _nearby(at, logs, tried)
        return best


def _more(constants: Constants, name: str) -> dict[str, float]:
    """A little more of a constant, or less of it where it is at its most."""
    step = _STEP if constants[name] * (1 + _STEP) <= _MOST.get(name, 1.0) else -_STEP
    return {**constants, name: constants[name] * math.exp(step)}


def _nearby(at: Constants, logs: Any, tried: Sequence[Constants]) -> dict[str, float]:
    """The best constants by what runs do a little beside them."""
    steps = [math.log(more[name] / at[name]) for name, more in zip(at, tried[1:], strict=True)]
    slopes = (logs[1:] - logs[0]) / np.asarray(steps)[:, None]

    def cost(moves: Any) -> float:
        errors = np.abs(logs[0] + moves @ slopes)
        return float(errors.mean() + _PRICE * np.abs(moves).sum())

    reach = [
        (-_REACH, min(_REACH, math.log(_MOST.get(name, 1.0) / value))) for name, value in at.items()
    ]
    found = _optimize.minimize(cost, np.zeros(len(at)), method="Powell", bounds=reach)
    return {name: value * math.exp(m) for (name, value), m in zip(at.items(), found.x, strict=True)}


def errors(logs: Any, rows: Sequence[Run]) -> dict[str, Any]:
    """Of each source, from log(predicted / published) of its rows."""
    result: dict[str, Any] = {}
    for source in dict.fromkeys(run.source for run in rows):
        ratios = [
            math.exp(value)
            for run, value in zip(rows, logs, strict=True)
            if run.source == source and math.isfinite(value)
        ]
        if ratios:
            result[source] = {
                "runs": len(ratios),
                "median_error": statistics.median(abs(ratio - 1) for ratio in ratios),
                "bias": statistics.median(ratios),
            }
    return result


def as_text(result: Mapping[str, Any], cluster: str) -> str:
    """A cluster file, behind what was fitted to what."""
    lines = [f"# {result['preset']} with constants fitted to published runs:"]
    for name, value in result["constants"].items():
        lines.append(f"#   {name}: {value:.3g}, before {result['before'][name]:.3g}")
    for half in ("fitted", "held out"):
        for source, row in result[half].items():
            lines.append(
                f"# {half}: {source}, {row['after']['runs']} runs: median error "
                f"{row['after']['median_error']:.1%}, before {row['before']['median_error']:.1%}; "
                f"bias {row['after']['bias']:.3f}, before {row['before']['bias']:.3f}"
            )
    return "\n".join([*lines, cluster.rstrip()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the wanted constants, and print the cluster file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", help="whose devices and links the runs have")
    parser.add_argument("--source", default="", help="only sources whose names begin so")
    parser.add_argument("--constants", nargs="+", required=True, help="names, as published_runs's")
    parser.add_argument("--split", choices=("even", "group"), default="even")
    parser.add_argument("--swap", action="store_true", help="fit the other half")
    parser.add_argument("--every", type=int, default=1, help="only every N-th row")
    parser.add_argument("--without", nargs="+", default=[], help="rows left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, default=Path(".benchmarks/published_runs"), help="for predictions"
    )
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    wanted = parser.parse_args(arguments)
    rows = [
        run
        for run in runs()
        if preset_of(run) == wanted.preset
        and run.source.startswith(wanted.source)
        and not run.needs
        and run.name not in wanted.without
    ][:: wanted.every]
    if not rows:
        parser.error(f"no published run of {wanted.source or 'any source'} has {wanted.preset}")
    fitted, held_out = halves(rows, wanted.split)
    if wanted.swap:
        fitted, held_out = held_out, fitted
    preset = json.loads(Cluster.load(wanted.preset).text)
    alike = [
        constants_in(with_constants(preset, own), wanted.constants, own.get("host_launch", 0.0))
        for own in map(own_constants, rows)
    ]
    before = alike[0]
    if any(other != before for other in alike):
        sources = ", ".join(dict.fromkeys(run.source for run in rows))
        parser.error(f"frameworks have others of these constants; take one --source of {sources}")
    if absent := [name for name, value in before.items() if value <= 0]:
        parser.error(f"{wanted.preset} has no {', '.join(absent)} to begin with")
    fit = Fit(wanted.folder.resolve(), wanted.processes)
    constants = fit.best(fitted, before, wanted.rounds)
    result: dict[str, Any] = {"preset": wanted.preset, "constants": constants, "before": before}
    for name, half in (("fitted", fitted), ("held out", held_out)):
        first, last = (errors(logs, half) for logs in fit.logs(half, [{}, constants]))
        result[name] = {s: {"before": first[s], "after": last[s]} for s in last if s in first}
    if wanted.json:
        print(json.dumps(result))
    else:
        print(as_text(result, Cluster.from_dict(with_constants(preset, constants)).text))


if __name__ == "__main__":
    main()
