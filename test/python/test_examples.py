"""The examples train and serve, check themselves, and end with one line when input is bad."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import jax
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str, example: str = "train_gpt.py") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def example(monkeypatch, capsys):
    """Imports an example and runs it in this process, which saves starting JAX again.

    Called with the file's name and its options, gives the lines that it prints.
    """
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def call(name: str, *arguments: str) -> list[str]:
        importlib.import_module(name).main(arguments)
        return capsys.readouterr().out.splitlines()

    return call


def numbers(lines: list[str], start: str, pattern: str) -> list[float]:
    """The numbers of the one line that begins so."""
    (line,) = (line for line in lines if line.startswith(start))
    found = re.fullmatch(re.escape(start) + pattern, line)
    assert found is not None, line
    return [float(number) for number in found.groups()]


def difference(lines: list[str]) -> float:
    return numbers(lines, "check: ", r"max relative difference (\S+)")[0]


IMAGES = ("--image", "8", "--rows", "16", "--steps", "10")


@pytest.mark.parametrize(
    ("options", "most"),
    [
        pytest.param(("--model", "vit", "--depth", "2"), 1e-3, id="vit"),
        pytest.param((), 1e-4, id="wide-resnet", marks=pytest.mark.slow),
    ],
)
def test_classifies_images(example, tmp_path, options, most):
    lines = example("train_images", *IMAGES, *options, "--save-plan", str(tmp_path / "plan"))
    assert difference(lines) < most
    first, last = numbers(lines, "loss: ", r"(\S+) -> (\S+)")
    assert last < first
    assert alpa_mlir.Plan.load(tmp_path / "plan").num_micro_batches == 2


@pytest.mark.parametrize("name", ["train_gpt", "train_images"])
def test_entry_points_give_what_can_be_planned(monkeypatch, name):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    step, (state, batch), batches = importlib.import_module(name).entry(shapes_only=True)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))
    forms = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (batch, next(batches))]
    assert forms[0] == forms[1]
    after, _ = jax.eval_shape(step, state, batch)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)


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
