"""Instances of the IOPDDL contest at their time limits: cost, bounds, best known cost, seconds.

Without arguments, the instances beside `best_known.tsv` in ../shared/reference/iopddl. Files of
the same family that the table does not list have no best known cost; their time limit is
--time-limit. Each instance is one process of `alpa-solve`; its seconds include reading the file.
With --limit-factor, memory limits are multiplied: the contest's are close to the least that has an
answer, and prices have more to decide where there is room for some fast choices.

Run: python benchmark/iopddl.py [FILE ...] [--time-limit S | --work-limit W] [--limit-factor F ...]
     [--threads N] [--json]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
TOOL = Path(os.environ.get("ALPA_BUILD", ROOT / "build"), "bin", "alpa-solve")
REFERENCE = ROOT.parent / "shared" / "reference" / "iopddl"


def known(folder: Path) -> dict[str, dict[str, str]]:
    """Rows of best_known.tsv by instance; none if there is no such file."""
    table = folder / "best_known.tsv"
    if not table.exists():
        return {}
    with table.open() as file:
        return {row["instance"]: row for row in csv.DictReader(file, delimiter="\t")}


def with_limit(path: Path, factor: float, folder: Path) -> Path:
    """A copy of an instance with another memory limit."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        text = file.read()
    copy = folder / path.name.removesuffix(".gz")
    copy.write_text(
        re.sub(r'("usage_limit":\s*)(\d+)', lambda m: f"{m[1]}{int(int(m[2]) * factor)}", text)
    )
    return copy


def measure(path: Path, factor: float, options: argparse.Namespace) -> Json:
    """One row."""
    match = re.search(r"([A-Z])\.json", path.name)
    name = match[1] if match else path.name.split(".")[0]
    facts = known(path.parent).get(name) or known(REFERENCE).get(name, {})
    limit = options.time_limit or float(facts.get("time_limit_s", 60))
    if factor != 1:
        with tempfile.TemporaryDirectory() as folder:
            row = solve(with_limit(path, factor, Path(folder)), limit, options)
        name, facts = f"{name} x {factor:g}", {}
    else:
        row = solve(path, limit, options)
    row = {"instance": name, "time_limit": limit, **row}
    for key in ("contest_best", "best_known", "best_lower_bound"):
        row[key] = int(facts[key]) if key in facts else None
    return row


def solve(path: Path, limit: float, options: argparse.Namespace) -> Json:
    """What `alpa-solve` says, and its memory."""
    command = [TOOL, path, "--json", f"--time-limit={limit}", f"--threads={options.threads}"]
    if options.work_limit:
        command.append(f"--work-limit={options.work_limit:g}")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if not output:
        raise SystemExit(errors.strip() or f"alpa-solve ended with code {process.returncode}")
    row: Json = json.loads(output)
    row["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    row["peak_mib"] = usage.ru_maxrss / 1024
    return row


def show(row: Json) -> None:
    """One line of the table."""

    def number(key: str, width: int = 16) -> str:
        return f"{'-' if row[key] is None else format(row[key], ','):>{width}}"

    over = "-"
    if row["cost"] is not None and row["best_known"] is not None:
        over = f"{100 * (row['cost'] / row['best_known'] - 1):+.4f} %"
    gap = "-" if row["gap"] is None else f"{100 * row['gap']:.4f} %"
    print(
        f"{row['instance'].split('.')[0]:<12}{number('cost')}{number('best_known')}{over:>12}"
        f"{number('lower_bound')}{gap:>11}{row['status']:>11}{row['seconds']:>9.1f}"
        f"{row['cpu_seconds']:>8.1f}{row['time_limit']:>7.0f}{row['peak_mib']:>7.0f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve the wanted instances and print the table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help=f"default: those in {REFERENCE}")
    parser.add_argument("--time-limit", type=float, help="seconds; default: the contest's")
    parser.add_argument("--work-limit", type=float, help="table entries; default: none")
    parser.add_argument("--limit-factor", type=float, nargs="+", default=[1.0], metavar="F")
    parser.add_argument("--threads", type=int, default=0, help="default: 0, one a core")
    parser.add_argument("--json", action="store_true", help="one object a row, for machines")
    options = parser.parse_args(arguments)
    files = options.files or sorted(REFERENCE.glob("*.json.gz"))
    if not files:
        parser.error(f"no instances in {REFERENCE}; give files")
    if not options.json:
        print(
            f"{'instance':<12}{'cost':>16}{'best known':>16}{'over it':>12}{'lower bound':>16}"
            f"{'gap':>11}{'status':>11}{'seconds':>9}{'CPU s':>8}{'limit':>7}{'MiB':>7}"
        )
    for path in files:
        for factor in options.limit_factor:
            row = measure(path, factor, options)
            print(json.dumps(row), flush=True) if options.json else show(row)


if __name__ == "__main__":
    main()
