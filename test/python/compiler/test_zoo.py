"""Every zoo entry runs under plain `jax.jit` and keeps the form of its state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo


def _avals(tree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), tree)


def _is_heavy(name):
    """Takes seconds to compile, and is run by other tests or is a variant of one that stays."""
    return name in ("unet", "wide_resnet") or (name.startswith("gpt_") and name != "gpt_nnx_scan")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if _is_heavy(n) else n for n in zoo.names()],
)
def test_step_runs(name):
    model = zoo.get(name)
    state, batch = model.init()
    assert all(leaf.shape[0] == 8 for leaf in jax.tree.leaves(batch))
    outputs = jax.eval_shape(model.forward, state, batch)
    assert jax.tree.leaves(outputs)

    new_state, metrics = jax.jit(model.step)(state, batch)
    assert np.isfinite(metrics["loss"])
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert jax.tree.leaves(_avals(new_state)) == jax.tree.leaves(_avals(state))


def test_training_falls():
    model = zoo.make_gpt(zoo.GPTConfig(layers=1, hidden=16, learning_rate=1e-2))
    state, batch = model.init()
    step = jax.jit(model.step)
    losses = []
    for _ in range(20):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.75 * losses[0]


def test_init_is_deterministic():
    first, second = zoo.get("gpt").init(), zoo.get("gpt").init()
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_unknown_name_lists_known():
    with pytest.raises(KeyError, match=r"known: .*gpt"):
        zoo.get("nothing")
