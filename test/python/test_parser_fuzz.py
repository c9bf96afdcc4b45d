"""Long runs of the damaged inputs that test/fuzz/parsers.test tries a few of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ALPA_BUILD", ROOT / "build"))
CLUSTERS = [ROOT / "examples/cluster_2x4.yaml", ROOT / "test/sharding/Inputs/cluster.yaml"]
PROBLEMS = [ROOT / "test/fuzz/Inputs/problem.json"]
MODULES = sorted((ROOT / "test").glob("*/*.mlir"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "files", "runs"),
    [
        ("problem", PROBLEMS, 20_000),
        ("solution", PROBLEMS, 4000),
        ("cluster", CLUSTERS, 6000),
        ("module", MODULES, 20_000),
    ],
)
def test_no_damaged_input_ends_the_process(
    kind: str, files: list[Path], runs: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            BUILD / "bin" / "parser-fuzz",
            f"--kind={kind}",
            f"--runs={runs}",
            "--first=1000000",
            f"--keep={tmp_path}",
            *files,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 0 findings\n")
