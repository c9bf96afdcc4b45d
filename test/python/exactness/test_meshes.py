"""Every style of step gives the results of `jax.jit` in two stages, and by the default method."""

from __future__ import annotations

import alpa_mlir
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel

from exactness.harness import check
from exactness.styles import STYLES, fast_count, rows

TWO = alpa_mlir.Cluster.nominal("two", "cpu", (2,), 1 << 30)


@pytest.mark.parametrize(
    ("name", "count"),
    rows(lambda i, style: [(1, False), (fast_count(style), i % 12 == 0)]),
)
def test_two_stages(name, count):
    style = STYLES[name]
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=count)
    planned = check(style, TWO, method, count, bool(style.one_stage))
    if not isinstance(planned, Exception):
        assert len(planned.plan.stages) == 2


@pytest.mark.parametrize("name", ["clip", "vicreg"])
@pytest.mark.parametrize(
    "options", [{"remat": "all"}, {"schedule": "interleaved-1f1b", "layers": 4}]
)
def test_a_barrier_in_a_pipeline(name, options):
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=4, **options)
    planned = check(STYLES[name], TWO, method, 4, False)
    assert planned.plan.schedule == "gpipe"
    assert [s.mesh for s in planned.plan.stages if "barrier" in s.functions] == [1]


@pytest.mark.parametrize(("name", "kind"), rows(lambda i, _: [("default", i % 12 == 3)]))
def test_default_method(name, kind):
    check(STYLES[name], TWO, AutoParallel(), None, False)
