"""benchmark/gpu.py, on the processor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from alpa_mlir import Cluster
from alpa_runtime.backends.gpus import GPUS

BENCHMARK = Path(__file__).parents[3] / "benchmark"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))
    import gpu

    return gpu


def run(*arguments):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, BENCHMARK / "gpu.py", "--platform", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    "parts",
    [
        ["device", "pipeline"],
        pytest.param(["stages", "shipped", "plans", "collectives"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_parts_on_the_processor(tmp_path, parts):
    output = tmp_path / "rows.json"
    done = run("--minutes", "10", "--parts", *parts, "-o", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(output.read_text())
    assert not document["stopped"]
    assert {row["part"] for row in document["rows"]} == set(parts)
    shown = run("--show", str(output)).stdout
    assert len(shown.splitlines()) == len(document["rows"]) + 4


def test_what_is_over_says_so(tmp_path):
    output = tmp_path / "rows.json"
    done = run("--minutes", "0.02", "--parts", "device", "-o", str(output))
    assert done.returncode == 1
    assert json.loads(output.read_text())["stopped"] == {"device": "over after 1 s"}


def test_preset_of_each_described_gpu(gpu):
    from xla_gpu import PRESETS

    assert PRESETS.keys() == GPUS.keys()
    for target, described in GPUS.items():
        cluster = Cluster.load(PRESETS[target])
        assert cluster.compute_capability == "{}.{}".format(*described.capability)


def test_difference_is_that_of_the_update(gpu):
    before, expected = {"w": [1.0, 2.0]}, {"w": [1.5, 2.0]}
    assert gpu.difference(before, expected, expected) == 0
    assert gpu.difference(before, expected, {"w": [1.5, 2.05]}) == pytest.approx(0.1)
    assert gpu.difference({"n": 1}, {"n": 2}, {"n": 1}) == 1


def test_bad_files_to_show(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("[]")
    for path in (other, tmp_path / "none"):
        done = run("--show", str(path))
        assert done.returncode == 2
        assert "give a file that -o wrote" in done.stderr
        assert "Traceback" not in done.stderr
