"""Steps run under the shardings that the solver chose equal the single-device step."""

from __future__ import annotations

import alpa_mlir
import jax
import numpy as np
import pytest
import zoo
from alpa_mlir import ShardParallel
from clusters import round_figures


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "mesh_shape"),
    [
        ("mlp", (1, 4)),
        ("mlp", (2, 2)),
        ("embedding", (2, 2)),  # gather and scatter-add over a split table
        ("moe", (2, 2)),
        ("lstm", (1, 4)),  # a loop, split along what its iterations keep
        ("gpt_scan", (2, 2)),
        ("wide_resnet", (1, 4)),  # convolutions
        ("sort_top_k", (2, 2)),
    ],
)
def test_step_equals_single_device(name: str, mesh_shape: tuple[int, ...]) -> None:
    model = zoo.get(name)
    state, batch = model.init()
    expected = jax.jit(model.step)(state, batch)
    step = alpa_mlir.parallelize(
        model.step,
        cluster=round_figures(4),
        method=ShardParallel(mesh_shape=mesh_shape),
        donate_state=False,
    )
    found = step(state, batch)
    for want, got in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        want, got = np.asarray(want), np.asarray(got)
        # Adam turns gradients that are zero but for rounding into steps of 1e-3.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-6 + 1e-5 * np.abs(want).max())
