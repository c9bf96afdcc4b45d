"""Steps of one mesh run as one program: equal to `jax.jit`, and no larger than several."""

from __future__ import annotations

import logging
import re

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_runtime.devices import make_meshes
from alpa_runtime.execution import executor
from alpa_runtime.execution.compilation import compile_jobs, compiled_peaks, stage_jobs
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import merge_step, sums_of
from alpa_runtime.execution.whole_step import whole_step
from test_equality import CLUSTER

ROWS, WIDTH, LAYERS = 32, 16, 3


def draw(key, *shape):
    return 0.3 * jax.random.normal(jax.random.key(key), shape)


def train_step(state, batch):
    """Layers, a tied head, per-example results, a count and a weight that is handed through."""

    def loss_of(weights):
        x = batch["x"] @ weights["in"]
        for w in weights["layers"]:
            x = x + jnp.tanh(x @ w)
        out = x @ weights["in"].T
        each = jnp.mean((out - batch["y"]) ** 2, axis=1)
        return jnp.mean(each), each

    (loss, each), grads = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, 0.5 / norm)
    weights = jax.tree.map(lambda w, g: w - 0.1 * scale * g, state["weights"], grads)
    new = {"weights": weights, "steps": state["steps"] + 1, "fixed": state["fixed"]}
    return new, {"loss": loss, "each": each, "positive": jnp.sum(batch["y"] > 0)}


@pytest.fixture(scope="module")
def example():
    weights = {"in": draw(0, WIDTH, WIDTH), "layers": [draw(k, WIDTH, WIDTH) for k in (1, 2, 3)]}
    state = {"weights": weights, "steps": jnp.int32(3), "fixed": jnp.ones(3)}
    return state, {"x": draw(5, ROWS, WIDTH), "y": draw(6, ROWS, WIDTH)}


def plan_of(method, example, cluster=CLUSTER):
    step = alpa_mlir.parallelize(train_step, cluster=cluster, method=method, cache=False)
    return step.plan(*example)


def is_whole(step):
    return list(step.loaded.memory_bytes()) == ["0/step"]


METHODS = {
    "data": ShardParallel(method="data-parallel", num_micro_batches=1),
    "data, 4 micro-batches": ShardParallel(method="data-parallel", num_micro_batches=4),
    "zero-3": ShardParallel(method="zero-3", num_micro_batches=2),
    "zero-2, rematerialized": ShardParallel(method="zero-2", num_micro_batches=4, remat="all"),
    "megatron": ShardParallel(method="megatron", mesh_shape=(4, 2), num_micro_batches=2),
    "collectives": ShardParallel(method="zero-3", num_micro_batches=1, export="collectives"),
    "collectives, 4 micro-batches": ShardParallel(
        method="zero-3", num_micro_batches=4, export="collectives"
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_equals_jit(name, example):
    step = plan_of(METHODS[name], example).load(cache=False)
    # Devices' parts of micro-batches do not join to a device's part of the batch.
    assert is_whole(step) == (name != "collectives, 4 micro-batches")
    state, expected = example[0], example[0]
    for _ in range(3):
        given = state
        state, found = step(state, example[1])
        expected, metrics = jax.jit(train_step)(expected, example[1])
        jax.tree.map(
            lambda want, got: np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6),
            (expected, metrics),
            (state, found),
        )
    assert all(x.is_deleted() for x in jax.tree.leaves(given["weights"]))
    assert not any(x.is_deleted() for x in jax.tree.leaves(example))


def test_state_may_be_kept(example):
    method = METHODS["zero-3"]
    parallel = alpa_mlir.parallelize(
        train_step, cluster=CLUSTER, method=method, cache=False, donate_state=False
    )
    step = parallel.plan(*example).load(cache=False)
    assert is_whole(step)
    first, _ = step(*example)
    again, _ = step(first, example[1])
    jax.tree.map(np.asarray, (first, again))


@pytest.mark.parametrize("name", ["data", "data, 4 micro-batches", "zero-3", "megatron"])
def test_arguments_of_the_batch_may_be_results(name, example):
    def with_batch(state, batch):
        state, metrics = train_step(state, batch)
        return batch["x"], state, metrics, batch

    method = METHODS[name]
    step = alpa_mlir.parallelize(with_batch, cluster=CLUSTER, method=method, cache=False)
    loaded = step.plan(*example).load(cache=False)
    assert is_whole(loaded)
    batch, wanted = example[1], jax.jit(with_batch)(*example)
    for _ in range(2):
        found = loaded(example[0], batch)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, wanted
        )
        batch = found[3]


def programs_of(plan):
    """The step apart and as one program: their texts, and the most bytes of a device."""
    step = merge_step(plan)
    jobs = stage_jobs(plan, donations(plan, step, True), sums_of(step))
    whole, in_one = whole_step(plan, step, jobs, True)
    (job,) = in_one.values()
    meshes = make_meshes(plan, None)
    apart = compile_jobs(list(jobs.values()), meshes)
    (one,) = compile_jobs([job], meshes)
    needed = {key: p.memory_bytes() for key, p in zip(jobs, apart, strict=True)}
    (several,) = compiled_peaks(plan, step, needed)
    (single,) = compiled_peaks(plan, whole, {(0, "step"): one.memory_bytes()})
    return job.text, one.handle.hlo_modules()[0].to_string(), several.bytes, single.bytes


def test_micro_batches_are_a_loop(example):
    """The program does not grow with their number."""
    sizes = []
    for count in (2, 4, 8):
        method = ShardParallel(method="data-parallel", num_micro_batches=count, mesh_shape=(4, 1))
        text = programs_of(plan_of(method, example).plan)[0]
        assert len(re.findall(r"call @f\d", text)) == 3
        sizes.append(text.count("\n"))
    assert max(sizes) - min(sizes) <= 2 * 2 * 6  # Only the parts of the batch are more.


def test_weights_are_gathered_again(example):
    """As planned: a weight that is gathered for the backward run too is not kept whole."""
    compiled = programs_of(plan_of(METHODS["zero-3"], example).plan)[1]
    gathers = compiled.count(" all-gather(") + compiled.count(" all-gather-start(")
    assert gathers >= 2 * LAYERS


@pytest.mark.parametrize("name", ["data", "zero-2, rematerialized"])
def test_takes_no_more_memory(name, example):
    _, _, several, one = programs_of(plan_of(METHODS[name], example).plan)
    assert one <= 1.1 * several


def test_recorded_apart(example):
    """A recording has the functions, and steps go on with the state in between."""
    step = plan_of(METHODS["data, 4 micro-batches"], example).load(cache=False)
    state, _ = step(*example)
    with step.record() as recording:
        state, _ = step(state, example[1])
    names = {event.name for own in recording.trace.events for event in own}
    assert {"forward 0", "backward 3"} <= names
    state, found = step(state, example[1])
    expected = example[0]
    for _ in range(3):
        expected, metrics = jax.jit(train_step)(expected, example[1])
    np.testing.assert_allclose(found["loss"], metrics["loss"], rtol=1e-5)


def test_too_large_in_one(example, monkeypatch, caplog):
    """Where one program needs more memory than the device has, several run."""
    planned = plan_of(METHODS["data, 4 micro-batches"], example)
    whole = programs_of(planned.plan)[3]
    first = executor.check_memory

    def check(plan, step, programs, meshes, donate_state):
        if (0, "step") in programs:
            raise alpa_mlir.errors.InfeasiblePlanError("too much", where="a test", fix="none")
        first(plan, step, programs, meshes, donate_state)

    monkeypatch.setattr(executor, "check_memory", check)
    with caplog.at_level(logging.INFO, logger="alpa_mlir"):
        step = planned.load(cache=False)
    assert whole > 0
    assert not is_whole(step)
    assert "the step runs as several programs" in caplog.text
    found = step(*example)[1]
    np.testing.assert_allclose(found["loss"], jax.jit(train_step)(*example)[1]["loss"], rtol=1e-5)


def test_stages_stay_apart(example):
    method = PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2)
    step = plan_of(method, example).load(cache=False)
    assert not is_whole(step)


def test_one_device(example):
    cluster = CLUSTER | {"hosts": {"count": 1, "devices": 1, "device_type": "small"}}
    planned = plan_of(AutoParallel(num_micro_batches=2), example, cluster)
    step = load(planned.plan, cache=False)
    assert list(step.memory_bytes()) == ["0/step"]
    assert "run stage 0 step" in step.as_text()


def with_dropout(state, x):
    """Each micro-batch makes the next key alike."""
    key, used = jax.random.split(state["key"])

    def loss(w):
        kept = jax.random.bernoulli(used, 0.8, x.shape)
        return jnp.mean(jnp.tanh(jnp.where(kept, x, 0) @ w) ** 2)

    value, grad = jax.value_and_grad(loss)(state["w"])
    return {"w": state["w"] - 0.1 * grad, "key": key}, value


def test_a_key_of_the_last_micro_batch():
    state = {"w": draw(0, WIDTH, WIDTH), "key": jax.random.key(1)}
    x = draw(2, ROWS, WIDTH)
    method = ShardParallel(method="data-parallel", num_micro_batches=4)
    parallel = alpa_mlir.parallelize(with_dropout, cluster=CLUSTER, method=method, cache=False)
    step = parallel.plan(state, x).load(cache=False)
    assert is_whole(step)
    found = expected = state
    for _ in range(3):
        found, value = step(found, x)
        expected, wanted = jax.jit(with_dropout)(expected, x)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5, atol=1e-6)
    assert jnp.all(jax.random.key_data(found["key"]) == jax.random.key_data(expected["key"]))


def test_an_array_given_twice():
    """As state that a step uses up, and beside it as other state or as its batch."""

    def distill(w, teacher, x):
        def loss(w):
            return jnp.mean((jnp.tanh(x @ w) - jnp.tanh(x @ teacher)) ** 2)

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    def square(w, x):
        value, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * grad, value

    cluster = CLUSTER | {"hosts": {"count": 1, "devices": 1, "device_type": "small"}}
    w, x = draw(0, WIDTH, WIDTH), draw(1, ROWS, WIDTH)
    for function, args, twice in (
        (distill, (w, w, x), lambda new: (new, new, x)),
        (square, (w, w), lambda new: (new, new)),
    ):
        method = ShardParallel(num_micro_batches=1)
        step = alpa_mlir.parallelize(function, cluster=cluster, method=method, cache=False)
        step = step.plan(*args).load(cache=False)
        new, _ = step(*args)
        expected = jax.jit(function)(*twice(new))
        found = step(*twice(new))
        for want, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_keys_of_examples():
    """Keys are whole on the devices that have them, whatever the plan does with their words."""

    def step(w, batch):
        return w + jnp.sum(batch["x"]), jax.vmap(lambda key: jax.random.split(key)[0])(batch["k"])

    batch = {"x": draw(1, 4, WIDTH), "k": jax.random.split(jax.random.key(1), 4)}
    parallel = alpa_mlir.parallelize(
        step, cluster=CLUSTER, method=ShardParallel(mesh_shape=(2, 4)), cache=False
    )
    keys = parallel.plan(jnp.ones(()), batch).load(cache=False)(jnp.ones(()), batch)[1]
    expected = jax.jit(step)(jnp.ones(()), batch)[1]
    assert jnp.all(jax.random.key_data(keys) == jax.random.key_data(expected))
