"""Sums to which several stages contribute: taken once for all of them, and right."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa_mlir import PipeshardParallel
from alpa_runtime.plan.program import AllReduceOp, SendOp
from test_equality import CLUSTER, relative_difference

_WIDTH, _LAYERS = 16, 4
_TX = optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(0.1, momentum=0.9))


def init():
    keys = jax.random.split(jax.random.PRNGKey(0), _LAYERS + 2)
    blocks = [0.3 * jax.random.normal(k, (_WIDTH, _WIDTH)) for k in keys[:_LAYERS]]
    params = {"embed": 0.3 * jax.random.normal(keys[-2], (8, _WIDTH)), "blocks": blocks}
    batch = jax.random.randint(keys[-1], (8, 5), 0, 8)
    return {"params": params, "opt": _TX.init(params), "count": jnp.int32(0)}, batch


def step(state, batch):
    """A tied embedding, clipping, metrics of all weights, and a step that is left out if the
    gradients are not finite."""

    def loss_fn(params):
        x = params["embed"][batch[:, :-1]]
        for weight in params["blocks"]:
            x = x + jnp.tanh(x @ weight)
        logits = x @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    norm = optax.tree.norm(grads)
    updates, opt = _TX.update(grads, state["opt"], state["params"])
    params = jax.tree.map(
        lambda new, old: jnp.where(jnp.isfinite(norm), new, old),
        optax.apply_updates(state["params"], updates),
        state["params"],
    )
    metrics = {"loss": loss, "norm": norm, "weights": optax.tree.norm(params)}
    return {"params": params, "opt": opt, "count": state["count"] + 1}, metrics


def compile_step(function, arguments, submeshes, micro_batches, layer_ranges=None):
    method = PipeshardParallel(
        submeshes=submeshes,
        num_micro_batches=micro_batches,
        layers=layer_ranges[-1][1] if layer_ranges else 0,
        layer_ranges=layer_ranges,
    )
    return alpa_mlir.compile(function, *arguments, cluster=CLUSTER, method=method)


def sums_of(plan):
    return [
        [op for op in program.instructions if isinstance(op, AllReduceOp)]
        for program in plan.programs
    ]


@pytest.mark.parametrize(
    ("submeshes", "layer_ranges", "micro_batches"),
    [
        ([(1, 1), (1, 1)], [(0, 2), (2, 4)], 1),
        ([(1, 2), (1, 1), (1, 4)], [(0, 1), (1, 2), (2, 4)], 2),
        ([(1, 1)] * 4, [(0, 1), (1, 2), (2, 3), (3, 4)], 4),
    ],
)
def test_clipping_by_global_norm(submeshes, layer_ranges, micro_batches):
    state, batch = init()
    found = compile_step(step, (state, batch), submeshes, micro_batches, layer_ranges)
    plan = found.plan
    everybody = tuple(range(len(submeshes)))
    for program, sums in zip(plan.programs, sums_of(plan), strict=True):
        assert [op.members for op in sums] == [everybody]
        # Behind it, nothing is sent that others wait for with their updates, but the norms of
        # new weights, which go to the stage that adds them up.
        ops = list(program.instructions)
        after = ops[ops.index(sums[0]) :]
        assert {op.to for op in after if isinstance(op, SendOp)} <= {0}
    reference, expected = jax.jit(step), state
    for _ in range(3):
        state, metrics = found(state, batch)
        expected, expected_metrics = reference(expected, batch)
        assert relative_difference(metrics, expected_metrics) < 1e-5
        assert relative_difference(state, expected) < 1e-5


def test_all_stages_have_the_same_bits():
    """The norm of weights and gradients, as each of three stages sees it."""
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    state = [jax.random.normal(key, (_WIDTH, _WIDTH)) for key in keys]

    def norms(state, batch):
        def loss_fn(state):
            x = batch
            for weight in state:
                x = jnp.tanh(x @ weight)
            return x.mean()

        squares = [jnp.sum(w * w) for w in (*state, *jax.grad(loss_fn)(state))]
        norm = jnp.sqrt(sum(squares))
        return [w * 0 + norm for w in state], None

    batch = jnp.ones((8, _WIDTH))
    found = compile_step(norms, (state, batch), [(1, 1)] * 3, 2)
    assert [len(sums) for sums in sums_of(found.plan)] == [1, 1, 1]
    expected = jax.jit(norms)(state, batch)[0]
    of_stages = np.stack([np.asarray(w) for w in found(state, batch)[0]])
    assert len(np.unique(of_stages.view(np.uint32))) == 1
    np.testing.assert_allclose(of_stages, np.stack(expected), rtol=1e-6)
