"""The examples train and serve, check themselves, and end with one line when input is bad."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str, example: str = "train_gpt.py") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


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


def test_serves_and_checks_itself(tmp_path):
    sizes = ("--layers", "2", "--hidden", "32", "--length", "16", "--batch", "8", "--calls", "2")
    result = run(*sizes, "--stages", "2", "--save-plan", str(tmp_path), example="serve_gpt.py")
    assert result.returncode == 0, result.stderr
    check = re.fullmatch(r"check: max relative difference (\S+)", result.stdout.splitlines()[-1])
    assert check is not None
    assert float(check[1]) < 1e-4
    plan = alpa_mlir.Plan.load(tmp_path)
    assert (len(plan.stages), plan.num_micro_batches) == (2, 4)
    result = run("--micro-batches", "3", *sizes, example="serve_gpt.py")
    assert re.match(r"error: batch\['\w+'\]: .*8.*3", result.stderr.strip())


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
