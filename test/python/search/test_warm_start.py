"""Searches that begin with a plan from before."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import AutoParallel
from alpa_mlir.errors import AlpaError, InfeasiblePlanError
from clusters import small_hosts
from test_equality import relative_difference

MODEL = dict(layers=6, width=256, batch=32)
CLUSTER = dict(hosts=4, devices=2, memory=10**9, bandwidth=1e8)


def cluster(*, hosts, devices, memory, bandwidth):
    return small_hosts(hosts, devices, memory, bandwidth=bandwidth, name=f"{hosts} hosts")


def step(weights, x):
    def loss(weights):
        y = x
        for first, second in weights:
            y = y + jnp.tanh(y @ first) @ second
        return jnp.mean(y**2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradient), value


def arguments(*, layers, width, batch):
    def weight(index, *shape):
        return jax.random.normal(jax.random.fold_in(jax.random.key(0), index), shape) / 16

    weights = [
        (weight(i, width, 2 * width), weight(100 + i, 2 * width, width)) for i in range(layers)
    ]
    return weights, weight(99, batch, width)


def plan(method=None, start=None, **changed):
    model = {**MODEL, **{k: v for k, v in changed.items() if k in MODEL}}
    where = cluster(**{**CLUSTER, **{k: v for k, v in changed.items() if k in CLUSTER}})
    method = method or AutoParallel(padding="none")
    traced = alpa_mlir.parallelize(step, cluster=where, method=method, cache=False).trace(
        *arguments(**model)
    )
    return traced.plan(start=start)


@pytest.fixture(scope="module")
def before():
    found = plan().plan
    assert len(found.stages) > 2
    return found


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"layers": 8},
        {"layers": 5},
        {"width": 384},
        {"batch": 64},
        {"batch": 40},
        {"hosts": 3},
        {"hosts": 6},
        {"devices": 4},
        {"bandwidth": 1e9},
        {"memory": 7 << 20},
        {"layers": 7, "hosts": 3},
    ],
    ids=str,
)
def test_near_a_plan(before, changed):
    """Never slower than with the plan's own stages, where these are possible, and about as fast as
    a search everywhere."""
    near = plan(start=before, **changed)
    full = plan(**changed)
    assert near.predicted_seconds <= 1.06 * full.predicted_seconds
    method = AutoParallel(padding="none", remat="auto")
    if MODEL["layers"] != changed.get("layers", MODEL["layers"]):
        return
    try:
        kept = plan(alpa_mlir.keep_stages(before, method), **changed)
    except AlpaError:
        assert {"hosts", "batch", "devices", "memory"} & set(changed)
        return
    assert near.predicted_seconds <= 1.002 * kept.predicted_seconds
    if not changed:
        assert near.predicted_seconds == pytest.approx(before.predicted["step_seconds"], rel=2e-3)


def test_results_are_those_of_the_whole_batch(before):
    near, args = plan(start=before, hosts=3, layers=5), arguments(**{**MODEL, "layers": 5})
    assert relative_difference(near.load()(*args), jax.jit(step)(*args)) < 1e-5


def test_several_stages_on_a_mesh_stay():
    """As many, placed alike, where that is no slower."""
    for schedule in ("interleaved-1f1b", "zb-v"):
        method = AutoParallel(padding="none", schedule=schedule, num_micro_batches=8)
        first = plan(method).plan
        near = plan(AutoParallel(padding="none", num_micro_batches=8), first)
        kept = plan(alpa_mlir.keep_stages(first, AutoParallel(padding="none")))
        assert near.predicted_seconds <= 1.002 * kept.predicted_seconds
        again = plan(method, first).plan
        assert len(again.stages) == len(first.stages)
        assert again.schedule == first.schedule


def test_limits_that_rule_the_plan_out(before):
    """Few stages and all devices, although the plan has more stages on less each."""
    assert len(before.stages) > 1
    method = AutoParallel(max_stages=1)
    near, full = plan(method, before).plan, plan(method).plan
    assert len(near.stages) == 1
    assert near.predicted["step_seconds"] <= full.predicted["step_seconds"] * 1.002


def test_where_nothing_near_fits(before):
    """All is searched; and where nothing fits at all, the error is the usual one."""
    few = plan(AutoParallel(padding="none", max_stages=1, remat="none"), hosts=1).plan
    assert len(few.meshes[0].devices) <= 2
    memory = 5 << 19  # Of a state of 12 MiB with its gradients, on 16 devices.
    found = plan(AutoParallel(padding="none"), few, memory=memory, hosts=8)
    assert len({device for mesh in found.plan.meshes for device in mesh.devices}) > 4
    with pytest.raises(InfeasiblePlanError, match="no plan fits into memory"):
        plan(AutoParallel(padding="none"), before, memory=16 * 1024)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (alpa_mlir.ShardParallel(), "start with ShardParallel, which says what the stages are"),
        (AutoParallel(pipeline="uniform"), "start with pipeline 'uniform'"),
    ],
)
def test_what_does_not_start(before, method, text):
    with pytest.raises(AlpaError, match=text):
        plan(method, before)


def test_what_starts_is_a_plan():
    with pytest.raises(AlpaError, match="start=3 is an int"):
        plan(start=3)


def test_a_plan_on_disk_starts(before, tmp_path):
    folder = before.save(tmp_path / "plan")
    found = plan(start=folder).plan
    assert [stage.layers for stage in found.stages] == [stage.layers for stage in before.stages]


def test_what_stays_is_said(before):
    words = before.diff(plan(start=before, hosts=3).plan).in_words()
    kept, changed = words.splitlines()
    assert "mesh of stages 0, 1, 2" in kept
    hosts = "cluster 4 hosts, 4 hosts of 2 d -> 3 hosts, 3 hosts of 2 d"
    assert f"{hosts}; stages 4 -> 3" in changed
    assert "; layers of stage 2" in changed
    assert "predicted step " in changed
    same = before.diff(before).in_words()
    assert f"layers of stages 0, 1, {', '.join(map(str, range(2, len(before.stages))))}" in same
    assert same.endswith("changed: nothing")
