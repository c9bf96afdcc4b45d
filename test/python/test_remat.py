"""Rematerialized layers give the numbers of plain `jax.jit`, and keep less between the phases."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from test_equality import CLUSTER, relative_difference


def compile_both(model, **options):
    """The step and its twin that computes every layer again, and their arguments."""
    state, batch = model.init()
    steps = [
        alpa_mlir.compile(
            model.step,
            state,
            batch,
            cluster=CLUSTER,
            method=PipeshardParallel(submeshes=[(1, 2), (1, 1)], remat=remat, **options),
        )
        for remat in ("none", "all")
    ]
    return steps, state, batch


def params_of(state):
    return state.params if hasattr(state, "params") else state


def activation_bytes(step) -> int:
    return sum(stage.predicted["activation_bytes"] for stage in step.plan.stages)


def gpt(**options):
    """With plain SGD: Adam makes full steps of gradients that are rounding noise."""
    return zoo.make_gpt(zoo.GPTConfig(optimizer="sgd", learning_rate=0.1, **options))


MODELS = {
    "gpt": gpt,
    "gpt with jax.checkpoint": functools.partial(gpt, remat=True),
    "moe": functools.partial(zoo.get, "moe"),
    "checkpoint": functools.partial(zoo.get, "checkpoint"),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [("gpt", 2), ("gpt with jax.checkpoint", 1), ("moe", 1), ("checkpoint", 1)],
)
def test_numbers_stay(name, count):
    model = MODELS[name]()
    (_, again), state, batch = compile_both(model, num_micro_batches=count)
    new_state, metrics = again(state, batch)
    expected_state, expected = jax.jit(model.step)(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(params_of(new_state), params_of(expected_state)) < 1e-4


@pytest.mark.parametrize("name", ["dropout", "wide_resnet", "while_cond"])
def test_numbers_stay_on_one_mesh(name):
    """Random bits are the same bits; running statistics are updated once."""
    model = zoo.get(name)
    state, batch = model.init()
    step = alpa_mlir.compile(
        model.step,
        state,
        batch,
        cluster=CLUSTER,
        method=ShardParallel(mesh_shape=(1, 2), remat="all"),
    )
    expected_state, expected = jax.jit(model.step)(state, batch)
    new_state, metrics = step(state, batch)
    assert relative_difference(metrics["loss"], expected["loss"]) < 1e-5
    assert relative_difference(new_state, expected_state) < 1e-4


def test_less_is_kept():
    model = gpt(layers=4)
    (kept, again), *_ = compile_both(model, layers=4)
    assert activation_bytes(again) < 0.5 * activation_bytes(kept)


def test_one_layer_of_four():
    model = gpt(layers=4)
    state, batch = model.init()
    steps = [
        alpa_mlir.compile(
            model.step,
            state,
            batch,
            cluster=CLUSTER,
            method=ShardParallel(mesh_shape=(1, 1), layers=4, remat=remat),
        )
        for remat in ("none", [1], [1, 2], "all")
    ]
    found = [activation_bytes(step) for step in steps]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 4


@pytest.mark.parametrize("remat", ["some", [-1], ["a"]])
def test_bad_remat_is_named(remat):
    with pytest.raises(alpa_mlir.MethodError, match="remat"):
        ShardParallel(remat=remat)
