"""`jax.lax.ragged_dot` of rows that no sort is seen to have put in order: groups are split too."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_runtime.backends import xla
from strategy_programs import decompose_ragged_dots
from test_fused_attention import GPUS, assert_equal_update, step_of

# Widths are odd, so that nothing but rows and groups can be split.
ROWS, WIDTH, HIDDEN, GROUPS = 16, 9, 15, 8
METHODS = {
    "one micro-batch": ShardParallel(num_micro_batches=1),
    "two axes": ShardParallel(num_micro_batches=1, mesh_shape=(2, 4)),
    "collectives": ShardParallel(num_micro_batches=1, mesh_shape=(2, 4), export="collectives"),
    "two": ShardParallel(num_micro_batches=2),
    "two stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
}


def layer(x, params, batch):
    """Sizes are an argument: rows may belong to no group."""
    del batch
    sizes = params["sizes"].astype(jnp.int32)
    made = jnp.tanh(jax.lax.ragged_dot(x, params["up"], sizes))
    return x + jax.lax.ragged_dot(made, params["down"], sizes)


def inputs(sizes):
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 8))

    def draw(*shape):
        return 0.3 * jax.random.normal(next(keys), shape)

    state = [
        {
            "up": draw(GROUPS, WIDTH, HIDDEN),
            "down": draw(GROUPS, HIDDEN, WIDTH),
            "sizes": jnp.asarray(sizes, jnp.float32),
        }
        for _ in range(2)
    ]
    return state, {"x": 3 * draw(ROWS, WIDTH)}


@pytest.fixture
def composed(monkeypatch):
    """JAX's composition of the op, which XLA lacks on CPUs."""
    compiled = xla.compile_text

    def compile_text(text, *args, **options):
        return compiled(decompose_ragged_dots(text), *args, **options)

    monkeypatch.setattr(xla, "compile_text", compile_text)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [(2, 0, 5, 1, 0, 0, 4, 4), (0, 3, 0, 0, 1, 0, 7, 2)])
@pytest.mark.usefixtures("kernels_to_the_end", "composed")
def test_groups_are_split(sizes, method):
    state, batch = inputs(sizes)
    step = step_of(layer)
    split = alpa_mlir.compile(step, state, batch, cluster=GPUS, method=METHODS[method])
    text = "".join(split.plan.modules.values())
    weights = re.findall(rf"chlo.ragged_dot.*tensor<(\d+)x{WIDTH}x{HIDDEN}xf32>, ", text)
    # With fewer rows, or devices, splitting rows alone is cheaper.
    assert method in ("two", "two stages") or any(int(groups) < GROUPS for groups in weights)
    assert "stablehlo.sort" not in text
    assert_equal_update(split(state, batch), jax.jit(step)(state, batch), state)
