"""Predictions beside published training runs: what rows say, and a few of the runs."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmark"))

from published_runs import DATA, WITHIN_A_HOST, compare, kendall_tau, predict, runs

RUNS = {run.name: run for run in runs()}


def test_rows_are_read():
    with (DATA / "published_runs.tsv").open() as file:
        rows = {row["id"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert len(RUNS) == len(rows) + 1440
    for name, row in rows.items():
        run = RUNS[name]
        if row["params_b"]:
            assert 0.8 < run.model.parameters / (float(row["params_b"]) * 1e9) < 1.3, name
    for run in RUNS.values():
        if "context parallelism" not in run.needs:
            assert run.tensor * run.data * run.pipeline == run.gpus, run.name
        assert run.batch % (run.micro_batch * run.data) == 0 or run.needs, run.name


# One of each form: data parallel, tensor parallel, sequence parallel, interleaved pipeline, and
# small ones that launches bound.
@pytest.mark.parametrize(
    "name",
    ["sc21-1.7B", "seqsel-22B-full", "seqsel-22B-selective", "host-0000", "host-0400", "host-1000"],
)
def test_prediction_is_near(name):
    run = RUNS[name]
    found = predict(run, {})
    assert "oom" not in found
    assert found["step_seconds"] == pytest.approx(run.seconds, rel=0.25)


def test_what_does_not_fit_has_seconds():
    run = RUNS["seqsel-22B-full"]
    found = predict(replace(run, model=replace(run.model, layers=96)), {})
    assert "no plan fits" in found["oom"]
    assert 1.8 < found["step_seconds"] / predict(run, {})["step_seconds"] < 2.1


def test_constants_count():
    run = RUNS["host-0000"]
    slow = predict(run, {"launch": 1e-3})["step_seconds"]
    assert slow > 5 * predict(run, {"launch": 0})["step_seconds"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8))
def test_kendall_tau(pairs):
    left, right = zip(*pairs, strict=True)
    tau = kendall_tau(left, right)
    assert -1.0000001 <= tau <= 1.0000001
    assert tau == kendall_tau(right, left)
    if len(set(left)) > 1:
        assert kendall_tau(left, left) == pytest.approx(1)
        assert kendall_tau(left, [-x for x in left]) == pytest.approx(-1)


def test_compare():
    rows = [run for run in RUNS.values() if run.source == WITHIN_A_HOST][:4]
    rows = [replace(run, batch=rows[0].batch, model=rows[0].model, gpus=2) for run in rows]
    rows = [replace(run, seconds=second) for run, second in zip(rows, (1, 2, 3, 4), strict=True)]
    found = {
        run.name: {"step_seconds": value} for run, value in zip(rows, (2, 1, 3, 6), strict=True)
    }
    result = compare(rows, found)
    assert result["sources"][WITHIN_A_HOST]["median_error"] == 0.5
    (group,) = result["groups"].values()
    assert group["runs"] == 4
    assert math.isclose(group["regret"], 1)  # The second was predicted to be the fastest.
    assert math.isclose(group["tau"], 4 / 6)
