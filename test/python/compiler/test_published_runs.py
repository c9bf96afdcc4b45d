"""Predictions beside published training runs: what rows say, and a few of the runs."""

from __future__ import annotations

import csv
import json
import math
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmark"))

import published_runs
from published_runs import DATA, WITHIN_A_HOST, compare, kendall_tau, predict, runs, search

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


def test_search_is_not_behind_its_authors():
    run = RUNS["host-0000"]
    searched = search(run)
    assert searched["step_seconds"] <= predict(run, {})["step_seconds"] + run.overhead
    assert "micro-batches" in searched["text"]


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
    assert group["predicted"] == 4
    assert math.isclose(group["regret"], 1)  # The second was predicted to be the fastest.
    assert math.isclose(group["tau"], 4 / 6)


def test_predictions_are_kept(tmp_path):
    run = RUNS["host-0000"]
    (first,) = published_runs.predict_all([(run, {})], tmp_path, 1)
    (again, other) = published_runs.predict_all([(run, {}), (run, {"launch": 0.0})], tmp_path, 1)
    assert (first["is_kept"], again["is_kept"], other["is_kept"]) == (False, True, False)
    assert again["step_seconds"] == first["step_seconds"] > other["step_seconds"]
    # What is added to each step is no part of what is kept.
    (more,) = published_runs.predict_all([(replace(run, overhead=1.0), {})], tmp_path, 1)
    assert more["is_kept"]
    assert more["step_seconds"] == pytest.approx(first["step_seconds"] - run.overhead + 1)


def test_what_is_written(tmp_path, monkeypatch):
    for name, text in (("DOCS", f"a\n{published_runs._TABLE_BEGINS}\nold\n"), ("JUDGED", "")):
        path = tmp_path / name
        path.write_text(text + (f"{published_runs._TABLE_ENDS}\nb\n" if text else ""))
        monkeypatch.setattr(published_runs, name, path)
    monkeypatch.setattr(published_runs, "PLOT", tmp_path / "plot.svg")
    rows = [RUNS["sc21-1.7B"], RUNS["sc21-3.6B"], RUNS["jax-pax-05"], RUNS["titan-8b-8-fp8"]]
    ratios = dict(zip((run.name for run in rows), (1.1, 0.8, 0.5), strict=False))
    found = {
        run.name: {"step_seconds": ratios[run.name] * run.seconds, "peak_bytes": 2**30}
        for run in rows[:3]
    }
    found["jax-pax-05"]["oom"] = "no plan fits"
    seconds = {name: row["step_seconds"] for name, row in found.items()}
    published_runs.write_result(rows, compare(rows, found), seconds)
    judged = json.loads((tmp_path / "JUDGED").read_text())
    (row,) = judged["dgx-a100"]
    assert row["median_error"] == pytest.approx(0.15)
    assert row["own_parts"] == ["bfloat16", "float16", "launch", "overlap_slowdown"]
    assert [row["said_not_to_fit"] for row in judged["dgx-h100"]] == [1]
    text = (tmp_path / "DOCS").read_text()
    assert text.startswith("a\n")
    assert text.endswith("b\n")
    assert "old" not in text
    assert "| Megatron-LM SC21 table 1 | A100 80GB | 2 of 2 | 15.0% |" in text
    dots = [e for e in ET.parse(tmp_path / "plot.svg").iter() if e.tag.endswith("circle")]
    assert len(dots) == 3 + 2  # And one of each source in the legend.
