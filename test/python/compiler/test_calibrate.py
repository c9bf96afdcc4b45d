"""Fitting constants to published runs, and judging them by others."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmark"))

import calibrate
from alpa_mlir.cluster import Cluster
from published_runs import constants_in, own_constants, predict, preset_of, runs, with_constants

RUNS = {run.name: run for run in runs()}


def test_halves_have_every_row_once():
    rows = list(RUNS.values())[:100]
    for split in ("even", "group"):
        first, second = calibrate.halves(rows, split)
        assert sorted(run.name for run in (*first, *second)) == sorted(run.name for run in rows)
    assert not {run.group for run in first} & {run.group for run in second}


def test_constants_are_read_as_they_are_written():
    fields = json.loads(Cluster.load("dgx-h100").text)
    wanted = {"bfloat16": 0.5, "launch": 1e-6, "overlap_slowdown": 0.4, "inter_host": 0.7}
    changed = with_constants(fields, wanted)
    assert constants_in(changed, wanted) == wanted
    assert constants_in(fields, ["bfloat16", "inter_host"]) == {"bfloat16": 0.7, "inter_host": 0.9}
    assert Cluster.from_dict(changed).text != Cluster.load("dgx-h100").text


@pytest.mark.slow
def test_hidden_constants_are_found(tmp_path):
    """Runs whose seconds are those of another constant lead to it."""
    names = ("host-0000", "host-0400", "host-1000", "host-0200")
    hidden = {"float16": 0.5}
    rows = []
    for name in names:
        run = replace(RUNS[name], host_launch=0.0, sends=0.0, reached=())
        rows.append(replace(run, seconds=predict(run, hidden)["step_seconds"]))
    fit = calibrate.Fit(tmp_path, 1)
    start = constants_in(json.loads(Cluster.load(preset_of(rows[0])).text), ["float16"])
    found = fit.best(rows[:3], start, rounds=3)
    assert found["float16"] == pytest.approx(0.5, rel=0.1)
    (before, after) = fit.logs(rows[3:], [start, found])
    assert abs(after[0]) < abs(before[0])
    errors = calibrate.errors(after, rows[3:])[rows[3].source]
    assert errors["runs"] == 1
    assert errors["bias"] == pytest.approx(math.exp(after[0]))


def test_frameworks_with_other_constants_are_not_mixed(capsys):
    assert own_constants(RUNS["sc21-1.7B"]) != own_constants(RUNS["jax-pax-00"])
    with pytest.raises(SystemExit):
        calibrate.main(["dgx-a100", "--constants", "float16"])
    assert "take one --source" in capsys.readouterr().err
