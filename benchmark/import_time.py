"""How long it takes to import alpa_mlir and to show the help of `alpa-mlir`.

Each time is that of a fresh process; the least of several counts, since everything else on the
machine only adds to it. `jax` is imported first: what counts is what `alpa_mlir` adds.

Run: python benchmark/import_time.py [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

IMPORT = """
import time
{before}
start = time.perf_counter()
{after}
print(time.perf_counter() - start)
"""
# What is timed: imported before, then the timed lines.
CASES = {
    "jax": ("", "import jax"),
    "alpa_mlir": ("import jax", "import alpa_mlir"),
    "every public name": (
        "import jax",
        "import alpa_mlir\nfor name in alpa_mlir.__all__: getattr(alpa_mlir, name)",
    ),
}
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "alpa-mlir --help": ["-m", "alpa_mlir", "--help"],
    "alpa-mlir plan --help": ["-m", "alpa_mlir", "plan", "--help"],
}


def import_seconds(before: str, after: str) -> float:
    code = IMPORT.format(before=before, after=after)
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(run.stdout)


def command_seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description="How long it takes to import alpa_mlir and to show the help of `alpa-mlir`."
    )
    parser.add_argument("--times", type=int, default=5, help="processes for each (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    seconds: dict[str, float] = {}
    for name, (before, after) in CASES.items():
        print(f"importing {name}", file=sys.stderr)
        seconds[name] = min(import_seconds(before, after) for _ in range(options.times))
    for name, arguments in COMMANDS.items():
        print(f"running {name}", file=sys.stderr)
        seconds[name] = min(command_seconds(arguments) for _ in range(options.times))
    if options.json:
        print(json.dumps({"seconds": seconds}))
        return
    for name, value in seconds.items():
        print(f"{name:<24}{value * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
