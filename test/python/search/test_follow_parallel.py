"""Functions that follow another one's plan, beside what a row of Alpa's names says of them."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import MethodError, PipeshardParallel
from alpa_rows import (
    CLUSTER,
    PIPELINE,
    check_same,
    example,
    expected,
    follow,
    loss_of,
    make_batch,
    trained,
)


def test_followers_with_specs_and_marks_of_their_own():
    step = trained(PIPELINE)
    state, _loss = step(*example())
    source = step.get_last_executable()
    params = source.get_input_placement_specs()[0]["params"]
    evaluate = follow(
        step,
        get_input_placement_specs=lambda: (params, None),
        layer_option="manual",
        num_micro_batches=2,
    )
    check_same(
        evaluate(state["params"], make_batch()),
        jax.jit(loss_of)(expected()[0]["params"], make_batch()),
    )
    assert evaluate.get_last_executable().plan.num_micro_batches == 2

    def first(params, batch):  # Of one mesh's weights only.
        return jnp.tanh(batch["x"] @ params["w1"])

    method = alpa_mlir.FollowParallel(step)
    half = alpa_mlir.parallelize(first, method=method)
    check_same(half(state["params"], make_batch()), first(expected()[0]["params"], make_batch()))
    (_mesh,) = half.get_last_executable().plan.meshes
    assert half.get_last_executable().loaded.devices_of(0) == source.loaded.devices_of(1)
    with pytest.raises(MethodError, match="layer_option 'auto'"):
        alpa_mlir.FollowParallel(step, layer_option="auto")
    with pytest.raises(MethodError, match="a cluster for a function that follows"):
        alpa_mlir.parallelize(loss_of, cluster=CLUSTER, method=method)
    with pytest.raises(MethodError, match="placement specs of argument 0: "):
        follow(step, get_input_placement_specs=lambda: ({"w0": None}, None))(
            state["params"], make_batch()
        )


def test_follows_a_function_without_gradients():
    def apply(state, x):
        x = x + state["count"]
        for w in state["weights"]:
            x = jnp.tanh(x @ w)
        return {**state, "count": state["count"] + (x[0, 0] > 0)}, x

    weights = [0.3 * jax.random.normal(jax.random.key(i), (16, 16)) for i in range(4)]
    state, x = {"weights": weights, "count": jnp.int32(2)}, np.ones((8, 16), np.float32)
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)])
    step = alpa_mlir.parallelize(apply, cluster="cpu-test", method=method)
    check_same(step(state, x), apply(state, x))

    def summed(state, x):
        return apply(state, x)[1].sum(-1)

    follower = alpa_mlir.parallelize(summed, method=alpa_mlir.FollowParallel(step))
    check_same(follower(state, x), summed(state, x))
    mine, theirs = (f.get_last_executable() for f in (follower, step))
    specs = [found.get_input_placement_specs()[0] for found in (mine, theirs)]
    assert specs[1]["count"].mesh_ids == (1,)  # Which does not cut the function where it is read.
    assert specs[0]["weights"] == specs[1]["weights"]
    assert mine.plan.predicted["step_seconds"] < float("inf")
