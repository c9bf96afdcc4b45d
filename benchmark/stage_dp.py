"""CPU seconds of the stage DP on made-up costs, from 12 to 96 layers and 8 to 1,024 devices.

One row per case. The costs are those of a transformer whose memory binds; see
`test/stage/StageDpBench.cpp`, which this runs from the build folder.

Run: python benchmark/stage_dp.py [--schedule NAME] [--micro-batches N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("ALPA_BUILD", Path(__file__).resolve().parents[1] / "build"))
LAYERS = (12, 24, 48, 96)
HOSTS = (1, 4, 16, 64, 128)
DEVICES_PER_HOST = 8


def measure(layers: int, hosts: int, micro_batches: int, schedule: str) -> dict[str, Any]:
    """One row: layers, devices, submeshes, cpu_seconds, plans_seen, stages, step_seconds."""
    sizes = [str(number) for number in (layers, hosts, DEVICES_PER_HOST, micro_batches)]
    done = subprocess.run(
        [BUILD / "bin" / "stage-dp-bench", *sizes, schedule],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(done.stderr or "stage-dp-bench printed nothing")
    return json.loads(done.stdout.replace("inf", "null"))


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        measure(layers, hosts, options.micro_batches, options.schedule)
        for layers in LAYERS
        for hosts in HOSTS
    ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print("layers devices submeshes CPU seconds stages")
    for row in rows:
        print(
            f"{row['layers']:6} {row['devices']:7} {row['submeshes']:9}"
            f" {row['cpu_seconds']:11.4f} {row['stages']:6}"
        )


if __name__ == "__main__":
    main()
