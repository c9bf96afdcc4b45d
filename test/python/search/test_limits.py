"""Limits that people set on plans: so many stages, so many devices, these layers."""

from __future__ import annotations

import re

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel
from alpa_mlir.errors import AlpaError, InfeasiblePlanError, MethodError
from clusters import small_hosts
from test_equality import relative_difference

LAYERS = 6


def cluster(hosts=4, devices=2, memory=10**9, bandwidth=3e6):
    return small_hosts(hosts, devices, memory, bandwidth=bandwidth, name="slow links")


def step(weights, x):
    def loss(weights):
        y = x
        for w in weights:
            y = y + jnp.tanh(y @ w)
        return jnp.mean(y**2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradient), value


def arguments():
    key = jax.random.key(0)
    weights = [jax.random.normal(jax.random.fold_in(key, i), (64, 64)) / 8 for i in range(LAYERS)]
    return weights, jax.random.normal(jax.random.fold_in(key, LAYERS), (32, 64))


def plan(method, where=None, **shape):
    where = where or cluster(**shape)
    return (
        alpa_mlir.parallelize(step, cluster=where, method=method, cache=False)
        .trace(*arguments())
        .plan()
    )


def options(**more):
    return AutoParallel(layers=LAYERS, padding="none", num_micro_batches=8, **more)


def test_at_most_so_many_stages():
    """None is faster than with more, and all are as many as are worth it."""

    def written(**more):
        return options(remat="none", **more)

    free = plan(written()).plan
    assert len(free.stages) > 3
    before = float("inf")
    for most in (1, 2, 3, len(free.stages)):
        found = plan(written(max_stages=most)).plan
        assert len(found.stages) <= most
        assert found.predicted["step_seconds"] <= 1.01 * before
        before = found.predicted["step_seconds"]
    assert before == pytest.approx(free.predicted["step_seconds"], rel=0.01)
    alone = plan(written(max_stages=1)).plan.predicted["step_seconds"]
    assert alone <= 1.01 * plan(written(pipeline="intra-only")).plan.predicted["step_seconds"]
    both = plan(written(max_stages=2, max_devices=3)).plan
    assert len(both.stages) <= 2
    assert len({device for mesh in both.meshes for device in mesh.devices}) <= 3


@pytest.mark.parametrize("ranges", [((0, 1), (1, 6)), ((0, 2), (2, 3), (3, 5), (5, 6))])
def test_layers_of_stages_are_kept(ranges):
    found = plan(options(layer_ranges=ranges))
    assert tuple(stage.layers for stage in found.plan.stages) == ranges
    # Nothing else is given, so that it is no slower than with these meshes.
    kept = alpa_mlir.keep_stages(found.plan, options())
    again = plan(kept).plan
    assert [stage.layers for stage in again.stages] == list(ranges)
    assert [mesh.shape for mesh in again.meshes] == [mesh.shape for mesh in found.plan.meshes]
    assert found.predicted_seconds <= 1.01 * again.predicted["step_seconds"]
    loaded, args = found.load(), arguments()
    assert relative_difference(loaded(*args), jax.jit(step)(*args)) < 1e-5


def test_given_layers_say_how_many_there_are():
    ranges = ((0, 1), (1, 3))
    given = PipeshardParallel(submeshes=[(1, 2)] * 2, layer_ranges=ranges, num_micro_batches=8)
    assert tuple(stage.layers for stage in plan(given).plan.stages) == ranges
    with pytest.raises(MethodError, match="layer_ranges of 3 layers with layers=6; fix: leave"):
        PipeshardParallel(submeshes=[(1, 2)] * 2, layer_ranges=ranges, layers=6)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_stages": 0}, "max_stages 0; fix: use a whole number of at least 1"),
        ({"max_stages": True}, "max_stages True"),
        ({"max_stages": 1, "schedule": "zb-v"}, "max_stages 1 with 2 stages on each mesh"),
        ({"layer_ranges": [(0, 2), (3, 4)]}, r"layer_ranges \[\(0, 2\), \(3, 4\)\]; fix: give all"),
        ({"layer_ranges": []}, r"layer_ranges \[\]"),
        ({"layer_ranges": [(0, 2, 3)]}, r"layer range \(0, 2, 3\)"),
        ({"layer_ranges": 4}, "layer_ranges=4 is an int"),
        ({"layer_ranges": [(0, 2)], "layers": 3}, "layer_ranges of 2 layers with layers=3"),
        ({"layer_ranges": [(0, 2)], "pipeline": "uniform"}, "layer_ranges with pipeline 'uniform'"),
        ({"layer_ranges": [(0, 1), (1, 2)], "max_stages": 1}, "2 layer_ranges with max_stages 1"),
    ],
)
def test_what_limits_do_not_take(given, text):
    with pytest.raises(AlpaError, match=text):
        AutoParallel(**given)


@pytest.mark.parametrize("name", ["max_stages", "max_devices", "layer_ranges"])
def test_what_fits_with_another_limit(name):
    """The least that does is said, where the limit is why nothing fits."""
    where = cluster(hosts=4, devices=1, memory=120 * 1024)
    limits = {"max_stages": 1, "max_devices": 1, "layer_ranges": [(0, 6)]}
    method = options(remat="none", memory_fraction=1.0, **{name: limits[name]})
    if name != "max_devices":  # Shared among devices, the weights of one stage would fit.
        method = AutoParallel(**{**vars(method), "method": "data-parallel"})
    with pytest.raises(InfeasiblePlanError) as caught:
        plan(method, where)
    if name == "layer_ranges":
        assert f"fits without {name}" in caught.value.fix
        return
    least = int(re.search(rf"fits with {name}=(\d+)", caught.value.fix)[1])
    other = {**vars(method), name: least}
    assert plan(AutoParallel(**other), where).plan.stages
    if least > 2:
        with pytest.raises(InfeasiblePlanError):
            plan(AutoParallel(**{**other, name: least - 1}), where)
