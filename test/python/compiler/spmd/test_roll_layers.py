"""Stages with loops over their equal layers compute what `jax.jit` does."""

from __future__ import annotations

import alpa_mlir
import jax
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from test_equality import CLUSTER, relative_difference, run

PAIR = [(1, 2), (1, 2)]
METHODS = {
    "two stages": PipeshardParallel(submeshes=PAIR, num_micro_batches=2),
    "two stages, collectives": PipeshardParallel(
        submeshes=PAIR, num_micro_batches=2, export="collectives"
    ),
    "backward in two": PipeshardParallel(submeshes=PAIR, num_micro_batches=4, schedule="zb-h1"),
    "one mesh": ShardParallel(mesh_shape=(2, 2), num_micro_batches=2),
    "zero-3": ShardParallel(mesh_shape=(2, 2), num_micro_batches=2, method="zero-3"),
    "one mesh, collectives": ShardParallel(mesh_shape=(2, 2), export="collectives"),
}


def compiled(config, method):
    model = zoo.make_gpt(config)
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    return model, state, batch, step


def loops(step):
    return [text.count("stablehlo.while") for text in step.plan.modules.values()]


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_loops_compute_what_layers_do(name, remat):
    config = zoo.GPTConfig(layers=8, scan=True, remat=remat, optimizer="sgd", learning_rate=0.1)
    model, state, batch, step = compiled(config, METHODS[name])
    # Forward and backward. Where the backward pass is two functions that read what the forward
    # pass keeps at different layers, a stage may stay as it is.
    assert (max if name == "backward in two" else min)(loops(step)) >= 2
    losses, params = run(step, state, batch)
    expected_losses, expected = run(jax.jit(model.step), state, batch)
    assert relative_difference(losses, expected_losses) < 1e-5
    assert relative_difference(params, expected, 1e-6) < 1e-5


@pytest.mark.parametrize("name", ["two stages", "one mesh"])
def test_modules_are_as_long_for_more_layers(name):
    """What a device compiles does not grow with the layers, the optimizer included."""
    lengths = []
    for layers in (8, 12):
        _, _, _, step = compiled(zoo.GPTConfig(layers=layers, scan=True), METHODS[name])
        assert min(loops(step)) >= 2
        lengths.append(sum(len(text.splitlines()) for text in step.plan.modules.values()))
    assert lengths[1] < 1.1 * lengths[0]


def test_layers_written_out_stay_so():
    """Their weights are arrays of their own, which no loop can go through."""
    _, _, _, step = compiled(zoo.GPTConfig(layers=4), METHODS["two stages"])
    assert not any(loops(step))
