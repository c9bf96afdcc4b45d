"""One column of Alpa's figure 8: which methods fit, and that the search is the best of them."""

from __future__ import annotations

from paper.figure8 import OURS, column
from paper.results import compare, published


def test_gpt_on_two_gpus():
    paper = published("fig8")
    cells = column("gpt", 2, paper.systems("gpt"), paper, seconds=10)
    assert [cell["system"] for cell in cells if cell["value"] == "OOM"] == ["data"]
    found = compare(cells, paper, OURS)
    assert found["memory"] == {"cells": 5, "agree": 5, "differ": []}
    assert found["behind"] == []
    (ours,) = (cell for cell in cells if cell["system"] == "ilp")
    assert 0.5 < ours["value"] / ours["published"] < 1.5
