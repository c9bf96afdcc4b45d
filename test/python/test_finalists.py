"""Stages of a plan measured on the devices of this process."""

from __future__ import annotations

from dataclasses import replace

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import finalists
from alpa_mlir.errors import DevicesError
from alpa_mlir.search import PipeshardParallel
from alpa_mlir.simulator import simulate


@pytest.fixture(scope="module")
def planned() -> alpa_mlir.PlannedStep:
    def loss(params, batch):
        x = batch
        for weight in params:
            x = jnp.tanh(x @ weight)
        return (x**2).mean()

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], value

    shape = jax.ShapeDtypeStruct((64, 64), "float32")
    method = PipeshardParallel(submeshes=[(1, 2), (1, 4)], num_micro_batches=2)
    function = alpa_mlir.parallelize(step, cluster="cpu-test", method=method)
    return function.plan([shape] * 4, shape)


def test_measured_seconds_take_the_place_of_predictions(planned):
    seen = []
    measured = finalists.measure_plan(planned.plan, progress=lambda *args: seen.append(args))
    assert measured.left_out == ()
    functions = {(i, f) for i, s in enumerate(planned.plan.stages) for f in s.functions}
    assert {(m.stage, m.function) for m in measured.stages} == functions
    assert seen[-1][0] == seen[-1][1] == len(seen)
    for index, stage in enumerate(measured.plan.stages):
        for phase in ("forward", "backward", "update"):
            times = [
                m.seconds
                for m in measured.stages
                if m.stage == index and m.function.startswith(phase)
            ]
            assert stage.predicted[f"{phase}_seconds"] == pytest.approx(sum(times))
            assert all(time > 0 for time in times)
        assert stage.predicted["state_bytes"] == planned.plan.stages[index].predicted["state_bytes"]
    assert all(m.memory_bytes > 0 for m in measured.stages)
    step = measured.plan.predicted["step_seconds"]
    busiest = max(
        2 * (s.predicted["forward_seconds"] + s.predicted["backward_seconds"])
        for s in measured.plan.stages
    )
    assert step == pytest.approx(simulate(measured.plan).step_seconds)
    assert step >= busiest
    assert measured.as_text().count("\n") == len(measured.stages)


def test_equal_stages_are_compiled_once(planned):
    stage = planned.plan.stages[0]
    meshes = (planned.plan.meshes[0], replace(planned.plan.meshes[0], devices=(6, 7)))
    twice = replace(planned.plan, stages=(stage, replace(stage, mesh=1)), meshes=meshes)
    compiled = []
    measured = finalists.measure_plan(twice, progress=lambda *args: compiled.append(args))
    assert len(compiled) == len(stage.functions)
    first, second = ([m.seconds for m in measured.stages if m.stage == i] for i in (0, 1))
    assert first == second


def test_the_fastest_is_the_one_that_was_measured_so(planned, monkeypatch):
    slow, quick = replace(planned.plan, name="slow"), replace(planned.plan, name="quick")

    def pretend(plan, **_):
        step = {"step_seconds": 2.0 if plan.name == "slow" else 1.0}
        return finalists.MeasuredPlan(replace(plan, predicted=step), (), ())

    monkeypatch.setattr(finalists, "measure_plan", pretend)
    best, measured = finalists.fastest([slow, quick])
    assert best == 1
    assert [m.plan.name for m in measured] == ["slow", "quick"]


def test_stages_that_need_more_devices_keep_their_predictions(planned):
    measured = finalists.measure_plan(planned.plan, devices=jax.devices()[:2])
    assert measured.left_out == (1,)
    assert measured.plan.stages[1] == planned.plan.stages[1]
    assert "needs more devices" in measured.as_text()
    with pytest.raises(DevicesError, match="takes 2 devices, this process has 1"):
        finalists.measure_plan(planned.plan, devices=jax.devices()[:1])
