"""What micro-batches compute where somebody asks for other results than the whole batch's."""

from __future__ import annotations

import operator
from pathlib import Path

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import ShardParallel
from alpa_mlir.errors import MethodError, MicroBatchError

ONE = alpa_mlir.Cluster.nominal("one", "cpu", (1,), 1 << 30)
COUNT = 4
X = jax.random.normal(jax.random.key(0), (16, 8)) * jnp.linspace(0.5, 2, 16)[:, None]
Y = jax.random.normal(jax.random.key(1), (16, 4))
MASK = (jnp.arange(16) % 5 != 0).astype(jnp.float32)
PARAMS = {
    "w": jax.random.normal(jax.random.key(2), (8, 8)) / 3,
    "v": jax.random.normal(jax.random.key(3), (8, 4)) / 3,
}
BATCH = {"x": X, "y": Y, "mask": MASK}


def normalized(params, b):
    h = b["x"] @ params["w"]
    h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)
    return jnp.mean((jnp.tanh(h) @ params["v"] - b["y"]) ** 2)


def masked(params, b):
    losses = jnp.sum((jnp.tanh(b["x"] @ params["w"]) @ params["v"] - b["y"]) ** 2, -1)
    return jnp.sum(losses * b["mask"]) / jnp.sum(b["mask"])


def balanced(params, b):
    gates = jax.nn.softmax(b["x"] @ params["w"])
    share = jnp.mean(jax.nn.one_hot(jnp.argmax(gates, -1), 8), 0)
    balance = 8 * jnp.sum(share * gates.mean(0))
    return jnp.mean((gates @ params["v"] - b["y"]) ** 2) + 0.1 * balance


def contrastive(params, b):
    h = jnp.tanh(b["x"] @ params["w"]) @ params["v"]
    scores = h @ b["y"].T
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(scores)))


def step_of(loss):
    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def micro_batches_apart(loss):
    """Each micro-batch is a batch of its own; gradients and losses are averaged."""
    parts = jax.tree.map(lambda a: a.reshape(COUNT, -1, *a.shape[1:]), BATCH)
    made = [
        jax.jit(jax.value_and_grad(loss))(PARAMS, jax.tree.map(operator.itemgetter(i), parts))
        for i in range(COUNT)
    ]
    values, grads = jax.tree.map(lambda *xs: sum(xs) / COUNT, *made)
    return jax.tree.map(lambda p, g: p - 0.1 * g, PARAMS, grads), values


def compiled(loss, semantics):
    method = ShardParallel(num_micro_batches=COUNT, micro_batch_semantics=semantics)
    return alpa_mlir.compile(step_of(loss), PARAMS, BATCH, cluster=ONE, method=method, cache=False)


def assert_near(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("loss", [normalized, masked, balanced])
def test_independent_micro_batches_are_batches_of_their_own(loss):
    step = compiled(loss, "independent")
    assert not step.plan.exactness.exact
    assert step.plan.exactness.estimates
    assert_near(step(PARAMS, BATCH), micro_batches_apart(loss))


def test_relaxed_is_exact_where_that_is_possible():
    step = compiled(masked, "relaxed")
    assert step.plan.exactness.exact
    assert_near(step(PARAMS, BATCH), jax.jit(step_of(masked))(PARAMS, BATCH))


@pytest.mark.parametrize("loss", [normalized, balanced])
def test_relaxed_takes_couplings_within_a_micro_batch(loss):
    step = compiled(loss, "relaxed")
    assert not step.plan.exactness.exact
    params, value = step(PARAMS, BATCH)
    apart, value_apart = micro_batches_apart(loss)
    assert_near(params, apart)
    whole = jax.jit(loss)(PARAMS, BATCH)
    # What the update makes of sums is the whole batch's.
    assert min(abs(float(value - whole)), abs(float(value - value_apart))) < 1e-5


@pytest.mark.parametrize("semantics", ["exact", "relaxed"])
def test_examples_that_meet_each_other_meet_at_a_barrier(semantics):
    step = compiled(contrastive, semantics)
    assert step.plan.exactness.exact
    assert step.plan.schedule == "gpipe"
    assert [Path(place).name.split(":")[0] for place in step.plan.exactness.barriers] == [
        Path(__file__).name
    ]
    assert "4 micro-batches, a barrier, predicted" in step.plan.as_text()
    assert_near(step(PARAMS, BATCH), jax.jit(step_of(contrastive))(PARAMS, BATCH))


def test_examples_that_meet_each_other_are_no_batches_of_their_own():
    with pytest.raises(MicroBatchError, match="couples examples"):
        compiled(contrastive, "independent")


def test_statistics_within_the_network_have_one_micro_batch():
    """Forward runs would wait for each other, and backward runs again."""
    with pytest.raises(MicroBatchError, match="couples examples"):
        compiled(normalized, "exact")


def over_rows(params, rows):
    def advance(h, x):
        h = jnp.tanh(x @ params["w"] + h)
        return h, h.mean()

    return jax.lax.scan(advance, jnp.zeros(8), rows)[1].mean()


def test_scans_over_rows_of_the_batch_may_mean_time():
    with pytest.raises(MicroBatchError, match=r"if that of \w+\['x'\] is time, transpose it"):
        compiled(lambda params, b: over_rows(params, b["x"]), "exact")


def test_scans_over_activations_say_nothing_of_time():
    with pytest.raises(MicroBatchError, match="takes examples one after another") as error:
        compiled(lambda params, b: over_rows(params, jnp.tanh(b["x"] @ params["w"])), "exact")
    assert "is time" not in str(error.value)


def test_the_search_says_why_it_takes_one_micro_batch():
    function = alpa_mlir.parallelize(step_of(normalized), cluster=ONE, cache=False)
    planned = function.plan(PARAMS, BATCH)
    assert planned.plan.num_micro_batches == 1
    assert any("couples examples" in tried.reason for tried in planned.tried)
    assert "couples examples" in planned.as_text()


def test_unknown_semantics_are_an_error():
    with pytest.raises(MethodError, match="use one of exact, relaxed, independent"):
        ShardParallel(micro_batch_semantics="roughly")


def test_the_argument_of_parallelize_counts():
    function = alpa_mlir.parallelize(
        step_of(masked),
        cluster=ONE,
        method=ShardParallel(num_micro_batches=COUNT),
        micro_batch_semantics="independent",
        cache=False,
    )
    assert_near(function(PARAMS, BATCH), micro_batches_apart(masked))


def test_complex_parameters_whose_gradients_wait():
    """Of two matrices on a mesh of two axes, whose sums are put off to the update."""

    def step(params, x):
        def loss(w, z):
            return (jnp.abs(jnp.tanh(x @ w) @ z) ** 2).mean()

        value, (dw, dz) = jax.value_and_grad(loss, (0, 1))(params["w"], params["z"])
        return {"w": params["w"] - 0.1 * dw, "z": params["z"] - 0.1 * dz.conj()}, value

    params = {"w": jnp.ones((3, 3)) / 3, "z": jnp.full((3, 3), 1 + 0.5j, jnp.complex64)}
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    cluster = alpa_mlir.Cluster.nominal("two", "cpu", (4, 4), 1 << 30)
    method = alpa_mlir.ShardParallel(
        mesh_shape=(2, 4), method="megatron", num_micro_batches=3, padding="none"
    )
    found = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)(params, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(params, x)), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)
