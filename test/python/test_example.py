"""The example trains, checks itself, and ends with one line when its input is bad."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, env=environment
    )


def test_trains_and_checks_itself(tmp_path):
    result = run("--steps", "12", "--layers", "2", "--batch", "16", "--save-plan", str(tmp_path))
    assert result.returncode == 0, result.stderr
    *_, check, loss = result.stdout.strip().splitlines()
    difference = re.fullmatch(r"check: max relative difference (\S+)", check)
    assert difference is not None
    assert float(difference[1]) < 1e-4
    losses = re.fullmatch(r"loss: (\S+) -> (\S+)", loss)
    assert losses is not None
    assert float(losses[2]) < 0.9 * float(losses[1])
    plan = alpa_mlir.Plan.load(tmp_path)
    assert len(plan.stages) > 1 or any(any(w.spec) for s in plan.stages for w in s.weights)
    assert plan.as_text() in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "nowhere.yaml"], r"error: cluster file 'nowhere.yaml'"),
        (["--cluster", "dgx"], r"error: cluster 'dgx': no such preset"),
        (["--micro-batches", "5"], r"error: batch\['\w+'\]: .*32.*5"),
        (["--micro-batches", "0"], r"error: AutoParallel: 0 micro-batches"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = run(*arguments, "--layers", "1")
    assert result.returncode != 0
    (line,) = result.stderr.strip().splitlines()
    assert re.match(message, line), line
