"""How long planning takes, from a Python call to a Plan: time, memory and what was found.

Each case is planned twice, each time in a process of its own: with an empty cache folder, and again
with what the first has left in it. Seconds begin when JAX is imported and the model described;
`cpu_seconds` are those of all its threads, which other work on the machine does not change much.

Run: python benchmark/planning.py CASE .. [--json]     CASE: gpt-39b, moe-70b, .., opt-175b, all
     python benchmark/planning.py --growth [--csv FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper.models import CASES
from planning_job import Job, run_fresh

LAYERS = (12, 24, 48, 96)
# Deep ones of a larger model would not fit on few devices.
GROWTH_CASE = "gpt-2.6b"
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)


def measure(job: Job, timeout_seconds: float) -> dict[str, Any]:
    """One object: the first run's numbers, and `cached_seconds`, those of the second."""
    with tempfile.TemporaryDirectory() as folder:
        row = run_fresh(job, Path(folder), timeout_seconds)
        if "failed" not in row:
            again = run_fresh(job, Path(folder), timeout_seconds)
            row["cached_seconds"] = again.get("seconds")
            row["cached_cpu_seconds"] = again.get("cpu_seconds")
            row["cached_breakdown"] = again.get("breakdown")
    return row


def growth(job: Job, timeout_seconds: float) -> list[dict[str, Any]]:
    """A GPT of the width of `job`'s: deeper and deeper, then on more and more devices."""
    rows: list[dict[str, Any]] = []
    jobs = [("layers", n, dataclasses.replace(job, depth=n, gpus=64)) for n in LAYERS]
    jobs += [("devices", n, dataclasses.replace(job, depth=48, gpus=n)) for n in DEVICES]
    for axis, value, one in jobs:
        row = measure(one, timeout_seconds)
        rows.append({"axis": axis, "value": value, **row})
        print(_line(f"{value} {axis}", row), file=sys.stderr, flush=True)
    return rows


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _line(name: str, row: dict[str, Any]) -> str:
    """One line of the table."""
    if "failed" in row:
        return f"{name:<14} failed: {row['failed']}"
    parts = " ".join(f"{key} {value:.1f}" for key, value in row["breakdown"].items())
    found = f"out of memory: {row['oom']}" if "oom" in row else _plan_text(row)
    return (
        f"{name:<14}{row['parameters'] / 1e9:>7.1f}B{row['gpus']:>6}"
        f"{_seconds(row['seconds']):>9}{_seconds(row['cpu_seconds']):>9}"
        f"{_seconds(row.get('cached_seconds')):>9}"
        f"{row['peak_bytes'] / 2**30:>7.2f}  ({parts})  {found}"
    )


def _plan_text(row: dict[str, Any]) -> str:
    stages = " ".join(
        f"{stage['layers'][1] - stage['layers'][0]}@{'x'.join(map(str, stage['mesh']))}"
        for stage in row["stages"]
    )
    return (
        f"{row['tflops_per_device']:.1f} TFLOPS, {row['num_micro_batches']} micro-batches, "
        f"{row['schedule']}, stages {stages}"
    )


def _write_growth(rows: Sequence[dict[str, Any]], csv_path: str, plot_path: str) -> None:
    if csv_path:
        fields = (
            "axis",
            "value",
            "seconds",
            "cpu_seconds",
            "cached_seconds",
            "peak_bytes",
            "failed",
        )
        with Path(csv_path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(fields)
            writer.writerows([row.get(name, "") for name in fields] for row in rows)
    if plot_path:
        try:
            pyplot: Any = importlib.import_module("matplotlib.pyplot")
        except ImportError:
            raise SystemExit("--plot needs matplotlib; take --csv") from None
        figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.5))
        for panel, axis in zip(panels, ("layers", "devices"), strict=True):
            points = [row for row in rows if row["axis"] == axis and "failed" not in row]
            for key in ("seconds", "cpu_seconds", "cached_seconds"):
                panel.plot([p["value"] for p in points], [p[key] for p in points], "o-", label=key)
            panel.set(xlabel=axis, ylabel="seconds", xscale="log", yscale="log")
            panel.legend()
        figure.tight_layout()
        figure.savefig(plot_path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the wanted cases and print a table, or an object for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[*CASES, "all", []])
    parser.add_argument("--json", action="store_true", help="one object a case, for machines")
    parser.add_argument("--growth", action="store_true", help="12 to 96 layers, 8 to 1024 devices")
    parser.add_argument("--csv", default="", help="with --growth: write the table here")
    parser.add_argument("--plot", default="", help="with --growth: draw it here, with matplotlib")
    parser.add_argument("--scan", action="store_true", help="layers as a lax.scan")
    parser.add_argument("--gpus", type=int, default=0, help="devices; default: the paper's")
    parser.add_argument("--layers", type=int, default=0, help="that stages are made from")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=(), help="counts to try")
    parser.add_argument(
        "--automatic",
        action="store_true",
        help="search counts of micro-batches, layers and rematerialization as AutoParallel() does",
    )
    parser.add_argument("--timeout", type=float, default=3600, help="seconds; default: 3600")
    given = parser.parse_args(arguments)
    if given.growth == bool(given.cases):
        parser.error("give cases or --growth")
    job = Job(
        case=GROWTH_CASE,
        gpus=given.gpus,
        scan=given.scan,
        layers=given.layers,
        micro_batches=tuple(given.micro_batches),
        automatic=given.automatic,
    )
    if given.growth:
        rows = growth(job, given.timeout)
        _write_growth(rows, given.csv, given.plot)
        if given.json:
            print(json.dumps(rows))
        return
    if not given.json:
        print(
            f"{'case':<14}{'size':>8}{'GPUs':>6}{'seconds':>9}{'CPU s':>9}{'cached':>9}{'GiB':>7}"
        )
    for case in CASES if "all" in given.cases else given.cases:
        row = measure(dataclasses.replace(job, case=case), given.timeout)
        print(json.dumps(row) if given.json else _line(case, row), flush=True)


if __name__ == "__main__":
    main()
