"""`jax.lax.ragged_dot` of rows that no sort is seen to have put in order: groups are split too."""

from __future__ import annotations

import functools
import re
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.lib import xla_client
from strategy_programs import opt
from test_fused_attention import GPUS, assert_equal_update, step_of

# Widths are odd, so that nothing but rows and groups can be split.
WIDTH, HIDDEN, GROUPS = 9, 15, 8
# Of the groups. Of many rows devices multiply those of a group in loops.
SIZES = {
    "few": (2, 0, 5, 1, 0, 0, 4, 4),
    "rows without a group": (0, 3, 0, 0, 1, 0, 7, 2),
    "many": (500, 0, 2000, 90, 0, 6, 1244, 256),
}
ROWS = {"few": 16, "rows without a group": 16, "many": 4096}
METHODS = {
    "one micro-batch": ShardParallel(num_micro_batches=1),
    "two axes": ShardParallel(num_micro_batches=1, mesh_shape=(2, 4)),
    "collectives": ShardParallel(num_micro_batches=1, mesh_shape=(2, 4), export="collectives"),
    "two": ShardParallel(num_micro_batches=2),
    "two stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
    "by name": ShardParallel(num_micro_batches=2, mesh_shape=(2, 4), method="expert-parallel"),
}


def layer(x, params, batch):
    """Sizes are an argument: rows may belong to no group."""
    del batch
    sizes = params["sizes"].astype(jnp.int32)
    made = jnp.tanh(jax.lax.ragged_dot(x, params["up"], sizes))
    return x + jax.lax.ragged_dot(made, params["down"], sizes)


def inputs(case):
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 8))

    def draw(*shape):
        return 0.3 * jax.random.normal(next(keys), shape)

    state = [
        {
            "up": draw(GROUPS, WIDTH, HIDDEN),
            "down": draw(GROUPS, HIDDEN, WIDTH),
            "sizes": jnp.asarray(SIZES[case], jnp.float32),
        }
        for _ in range(2)
    ]
    return state, {"x": 3 * draw(ROWS[case], WIDTH)}


@pytest.mark.sweep(9)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", SIZES)
@pytest.mark.usefixtures("kernels_to_the_end")
def test_groups_are_split(case, method):
    state, batch = inputs(case)
    step = step_of(layer)
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=METHODS[method])
    text = "".join(split.plan.modules.values())
    weights = re.findall(rf"tensor<(\d+)x{WIDTH}x{HIDDEN}xf32>", text)
    # With fewer rows, or devices, splitting rows alone is cheaper.
    assert method in ("two", "two stages") or any(int(groups) < GROUPS for groups in weights)
    if method == "by name":
        specs = {w.name: w.spec for stage in split.plan.stages for w in stage.weights}
        experts = [spec for name, spec in specs.items() if "up" in name or "down" in name]
        assert len(experts) == 4
        assert all(spec == (("x", "y"), (), ()) for spec in experts), specs
    # A device with the rows of one group needs no loop.
    assert ("stablehlo.while" in text) == (case == "many" and method != "by name")
    assert "stablehlo.sort" not in text
    assert_equal_update(split(state, batch), jax.jit(step)(state, batch), state)


ROWS_OF_PRODUCTS, ROWS_OF_SUMS = 1000, 2000


@functools.cache
def loops():
    """A product and a sum that become loops, compiled for one device."""
    text = opt(
        """
    func.func public @main(
        %x: tensor<1000x4xf32>, %w: tensor<5x4x3xf32>, %g: tensor<1000xi32>,
        %y: tensor<2000x4xf32>, %h: tensor<2000xi32>) -> (tensor<1000x3xf32>, tensor<5x4x4xf32>) {
      %0 = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64}
          : (tensor<1000x4xf32>, tensor<5x4x3xf32>, tensor<1000xi32>) -> tensor<1000x3xf32>
      %1 = alpa.grouped_sum %y, %y of %h
          : (tensor<2000x4xf32>, tensor<2000x4xf32>, tensor<2000xi32>) -> tensor<5x4x4xf32>
      return %0, %1 : tensor<1000x3xf32>, tensor<5x4x4xf32>
    }""",
        "--alpa-expand-grouped-dots",
    )
    assert text.count("stablehlo.while") == 2
    device = jax.devices("cpu")[0]
    client: Any = device.client
    devices = xla_client.DeviceList((device,))
    loaded = client.compile_and_load(text, devices, xla_client.CompileOptions())

    def run(*args):
        out = loaded.execute_sharded([jax.device_put(arg, device) for arg in args])
        return [np.asarray(part[0]) for part in out.disassemble_into_single_device_arrays()]

    return run


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 1000), min_size=7, max_size=7),
    st.integers(0, 2**31),
)
def test_any_sizes(weights, seed):
    """Rows of five groups and of none, in any numbers, with infinite ones among the latter."""
    random = np.random.default_rng(seed)
    share = np.asarray(weights, np.float64) + 1e-9
    groups = [
        random.choice(np.arange(-1, 6), rows, p=share / share.sum()).astype(np.int32)
        for rows in (ROWS_OF_PRODUCTS, ROWS_OF_SUMS)
    ]
    x, y = (random.standard_normal((len(of), 4)).astype(np.float32) for of in groups)
    w = random.standard_normal((5, 4, 3)).astype(np.float32)
    inside = [(of >= 0) & (of < 5) for of in groups]
    product = np.where(inside[0][:, None], np.einsum("rk,rkn->rn", x, w[groups[0] % 5]), 0)
    sums = np.stack([y[groups[1] == g].T @ y[groups[1] == g] for g in range(5)])
    x[~inside[0]], y[~inside[1]] = np.inf, np.inf
    got = loops()(x, w, groups[0], y, groups[1])
    np.testing.assert_allclose(got[0], product, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], sums, rtol=1e-4, atol=1e-3)
