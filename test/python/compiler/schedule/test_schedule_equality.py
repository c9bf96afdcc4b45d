"""Steps in every schedule give the numbers of plain `jax.jit`: all kinds of models, unequal stages.

Each schedule runs one model here; `make test-full` runs all of them on more stages.
"""

from __future__ import annotations

import functools
from functools import partial

import alpa_mlir
import jax
import jax.numpy as jnp
import optax
import pytest
from alpa_mlir import PipeshardParallel
from alpa_mlir.compiler import schedule_table
from test_equality import CLUSTER, relative_difference
from zoo import gpt, moe, vision
from zoo.base import cross_entropy, training_model

MICRO_BATCHES = 4
STEPS = 2
MODELS = ("gpt", "moe", "unet", "vit")
# Unequal meshes; and equal ones for the schedule that puts several stages on each.
STAGES = {
    "two meshes": ([(1, 2), (1, 1)], [(1, 2), (1, 2)]),
    "three meshes": ([(1, 1), (1, 4), (1, 2)], [(1, 2), (1, 2), (1, 2)]),
}
# Those of training steps that are known by their name alone.
SCHEDULES = [
    name for name, row in schedule_table().items() if not row.forward_only and name != "custom"
]


@functools.cache
def model(name):
    """A zoo model that the norm of all its gradients clips.

    SGD with momentum, since Adam makes full steps of gradients that are rounding noise only.
    """
    tx = optax.chain(optax.clip_by_global_norm(0.2), optax.sgd(0.1, momentum=0.9))
    if name == "unet":
        return _unet(tx)
    if name == "moe":
        return training_model(
            name, partial(moe._init_params, scan=False), moe._make_batch, moe._loss, tx
        )
    if name == "vit":
        net = vision.ViT()

        def params_of(key):
            return net.init(key, vision._image_batch(key, 1)["image"])

        def loss(params, batch):
            return cross_entropy(net.apply(params, batch["image"]), batch["label"])

        return training_model(name, params_of, vision._image_batch, loss, tx)
    config = gpt.GPTConfig(hidden=16, vocab=32, seq=8)
    gpt_net = gpt.GPT(config)

    def gpt_loss(params, batch):
        return cross_entropy(gpt_net.apply(params, batch["tokens"]), batch["targets"])

    def gpt_batch(key, size):
        return gpt.token_batch(key, size, config)

    def gpt_params(key):
        return gpt_net.init(key, gpt_batch(key, 1)["tokens"])

    return training_model(name, gpt_params, gpt_batch, gpt_loss, tx)


def _unet(tx):
    net = vision.UNet()

    def params_of(key):
        return net.init(key, vision._image_batch(key, 1)["image"])

    def loss(params, batch):
        return jnp.mean((net.apply(params, batch["image"]) - batch["image"]) ** 2)

    return training_model("unet", params_of, vision._image_batch, loss, tx)


@functools.cache
def reference(name):
    """State and metrics after some steps of `jax.jit`."""
    step = jax.jit(model(name).step)
    state, batch = model(name).init()
    metrics = None
    for _ in range(STEPS):
        state, metrics = step(state, batch)
    return state, metrics


def submeshes_of(schedule, stages):
    """Meshes of equal size for schedules that put several stages on each."""
    unequal, equal = STAGES[stages]
    return equal if schedule_table()[schedule].stages_per_mesh > 1 else unequal


def parallel(schedule, name, submeshes):
    """The model's step with as many meshes."""
    method = PipeshardParallel(
        submeshes=submeshes,
        num_micro_batches=MICRO_BATCHES,
        schedule=schedule,
        layers=2 * len(submeshes),
    )
    return alpa_mlir.parallelize(model(name).step, cluster=CLUSTER, method=method)


def check(schedule, name, stages):
    submeshes = submeshes_of(schedule, stages)
    step = parallel(schedule, name, submeshes).get_executable(*model(name).init())
    assert step.plan.schedule == schedule
    assert [len(mesh.devices) for mesh in step.plan.meshes] == [n for _, n in submeshes]
    row, meshes = schedule_table()[schedule], list(range(len(submeshes)))
    assert len(step.plan.stages) == row.stages_per_mesh * len(submeshes)
    if row.stages_per_mesh == 2:
        again = meshes[::-1] if row.in_v else meshes
        assert [stage.mesh for stage in step.plan.stages] == meshes + again
    check_steps(step, name)


def check_steps(step, name):
    """A step makes of a model what the reference makes of it."""
    state, batch = model(name).init()
    metrics = None
    for _ in range(STEPS):
        state, metrics = step(state, batch)
    expected, expected_metrics = reference(name)
    assert relative_difference(metrics, expected_metrics) < 1e-4
    assert relative_difference(state, expected, 1e-2 if name == "vit" else 1e-3) < 1e-4


@pytest.mark.parametrize(
    ("schedule", "name"), [(s, MODELS[i % len(MODELS)]) for i, s in enumerate(SCHEDULES)]
)
def test_each_schedule(schedule, name):
    check(schedule, name, "two meshes")


@pytest.mark.slow
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all(schedule, name, stages):
    check(schedule, name, stages)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("schedule", "submeshes", "ranges", "count", "options"),
    [
        # Neither a multiple of the meshes, nor as many layers in each stage.
        ("zb-v", [(1, 2), (1, 2)], [(0, 1), (1, 3), (3, 4), (4, 5)], 3, {"remat": "all"}),
        # Fewer micro-batches than meshes.
        ("v-half", [(1, 1)] * 3, None, 2, {}),
        ("v-min", [(1, 2), (1, 2)], None, 6, {"method": "zero-2", "remat": [0, 2]}),
        ("dualpipe-v", [(1, 4), (1, 4)], [(0, 2), (2, 3), (3, 4), (4, 5)], 6, {}),
        ("breadth-first", [(1, 2), (1, 2)], [(0, 2), (2, 3), (3, 4), (4, 5)], 3, {}),
    ],
)
def test_tied_weights_clipped_by_norm(schedule, submeshes, ranges, count, options):
    """The embedding is used by the first and the last stage, and the norm is that of all."""
    state, batch = model("gpt").init(12)
    method = PipeshardParallel(
        submeshes=submeshes,
        layer_ranges=ranges,
        layers=ranges[-1][1] if ranges else 2 * len(submeshes),
        num_micro_batches=count,
        schedule=schedule,
        **options,
    )
    step = alpa_mlir.compile(model("gpt").step, state, batch, cluster=CLUSTER, method=method)
    assert step.plan.schedule == schedule
    found = step(state, batch)
    state, batch = model("gpt").init(12)
    expected = jax.jit(model("gpt").step)(state, batch)
    assert relative_difference(found, expected, 1e-4) < 2e-5
