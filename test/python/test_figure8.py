"""One column of Alpa's figure 8: which methods fit, and that the search is the best of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmark"))

from figure8 import PUBLISHED, column


def test_gpt_on_two_gpus():
    methods = list(PUBLISHED["gpt"])
    rows = {row["method"]: row for row in column("gpt", 2, methods, seconds=10)}
    assert [m for m in methods if rows[m]["tflops"] is None] == ["data-parallel"]
    assert [m for m in methods if rows[m]["published_tflops"] is None] == ["data-parallel"]
    best = rows["auto"]["tflops"]
    assert all(row["tflops"] <= best * 1.000001 for row in rows.values() if row["tflops"])
    assert 0.5 < best / rows["auto"]["published_tflops"] < 1.5
