"""Stages of a plan measured on the devices of this process."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, cli
from alpa_mlir.errors import DevicesError, InfeasiblePlanError, MethodError
from alpa_mlir.search import autotune
from alpa_mlir.simulator import simulate
from alpa_runtime.plan import Plan
from test_equality import relative_difference
from test_planning import cluster, mlp, mlp_step


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
    measured = autotune.measure_plan(planned.plan, progress=lambda *args: seen.append(args))
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
    assert 2 * measured.plan.predicted["slowest_stage_seconds"] == pytest.approx(busiest)
    updates = [s.predicted["update_seconds"] for s in measured.plan.stages]
    assert measured.plan.predicted["update_seconds"] == max(updates)
    assert measured.as_text().count("\n") == len(measured.stages)


def test_equal_stages_are_compiled_once(planned, monkeypatch):
    stage = planned.plan.stages[0]
    meshes = (planned.plan.meshes[0], replace(planned.plan.meshes[0], devices=(6, 7)))
    twice = replace(planned.plan, stages=(stage, replace(stage, mesh=1)), meshes=meshes)
    # Its programs and transfers are those of other meshes.
    monkeypatch.setattr(autotune, "simulate", lambda plan: SimpleNamespace(step_seconds=1.0))
    compiled = []
    measured = autotune.measure_plan(twice, progress=lambda *args: compiled.append(args))
    assert len(compiled) == len(stage.functions)
    first, second = ([m.seconds for m in measured.stages if m.stage == i] for i in (0, 1))
    assert first == second


def test_the_fastest_is_the_one_that_was_measured_so(planned, monkeypatch):
    slow, quick = replace(planned.plan, name="slow"), replace(planned.plan, name="quick")

    def pretend(plan, **_):
        step = {"step_seconds": 2.0 if plan.name == "slow" else 1.0}
        return autotune.MeasuredPlan(replace(plan, predicted=step), (), ())

    monkeypatch.setattr(autotune, "measure_plan", pretend)
    best, measured = autotune.fastest([slow, quick])
    assert best == 1
    assert [(m.plan.name, m.step_seconds) for m in measured] == [("slow", 2.0), ("quick", 1.0)]


def test_stages_that_need_more_devices_keep_their_predictions(planned):
    measured = autotune.measure_plan(planned.plan, devices=jax.devices()[:2])
    assert measured.left_out == (1,)
    assert measured.plan.stages[1] == planned.plan.stages[1]
    assert "needs more devices" in measured.as_text()
    with pytest.raises(DevicesError, match="takes 2 devices, this process has 1"):
        autotune.measure_plan(planned.plan, devices=jax.devices()[:1])


def test_running_out_of_memory_is_an_error_of_the_plan(planned, monkeypatch):
    def exhaust(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte\n..")

    monkeypatch.setattr(autotune, "_seconds", exhaust)
    with pytest.raises(InfeasiblePlanError, match=r"out of memory: RESOURCE_EXHAUSTED: .* 1 byte;"):
        autotune.measure_plan(planned.plan)


def test_saved_plans_are_measured_from_the_command_line(planned, tmp_path, capsys):
    names = [str(tmp_path / name) for name in ("one", "two")]
    planned.plan.save(names[0])
    assert cli.main(["measure", "-q", names[0], "-o", names[1]]) == 0
    out = capsys.readouterr().out
    assert re.search(r"one: a step takes [\d.]+ [mu]?s \(predicted [\d.]+ [mu]?s\)\nstage \|", out)
    kept = Plan.load(names[1])
    assert kept.predicted["step_seconds"] != planned.plan.predicted["step_seconds"]
    assert kept.modules == planned.plan.modules
    assert cli.main(["measure", "-q", *names]) == 0
    assert re.search(r"fastest: .*(one|two)\n$", capsys.readouterr().out)


def test_bad_uses_of_the_command_line(planned, tmp_path, capsys, monkeypatch):
    planned.plan.save(tmp_path / "plan")
    assert cli.main(["measure", "/no/such/plan"]) == 1
    assert "cannot read the plan" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["measure", str(tmp_path / "plan"), "-o", str(tmp_path)])
    assert "exists" in capsys.readouterr().err

    def exhaust(*_, **__):
        raise InfeasiblePlanError("a device runs out of memory")

    monkeypatch.setattr(autotune, "measure_plan", exhaust)
    assert cli.main(["measure", "-q", str(tmp_path / "plan")]) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert re.search(r"no plan fits into memory: .*plan: a device runs out of memory", shown.err)


# -- as an option of the methods --------------------------------------------------------------


TWO_STAGES = {"submeshes": [(1, 1), (1, 1)], "num_micro_batches": 4}


def chosen(method, *, where=None, cache=False, **options):
    function = alpa_mlir.parallelize(mlp_step, cluster=where or cluster(), method=method)
    return function.trace(*mlp()).plan(cache=cache, **options)


@pytest.fixture
def pretend(monkeypatch):
    """Let a function of the plan say what measuring it gives."""

    def install(seconds):
        def measure(plan, **_):
            step = {**plan.predicted, "step_seconds": seconds(plan)}
            return autotune.MeasuredPlan(replace(plan, predicted=step), (), ())

        monkeypatch.setattr(autotune, "measure_plan", measure)

    return install


def test_the_choice_is_that_of_the_devices(pretend):
    foreseen = chosen(AutoParallel(remat="none"))
    assert foreseen.plan.num_micro_batches == 1
    pretend(lambda plan: 1.0 / plan.num_micro_batches)
    found = chosen(AutoParallel(remat="none", finalists=3))
    assert found.plan.num_micro_batches == 4
    assert found.predicted_seconds == 0.25
    measured = {t.num_micro_batches: t.measured_seconds for t in found.tried}
    assert measured == {1: 1.0, 2: 0.5, 4: 0.25, 8: None}
    assert {t.num_micro_batches for t in found.tried if t.exact} == {1, 2, 4}
    assert re.search(r"4 micro-batches: [\d.]+ us in 1 stage; measured 250 ms\n", found.as_text())


def test_measured_plans_run():
    said = []
    method = AutoParallel(finalists=2, num_micro_batches=(1, 2))
    found = chosen(method, progress=lambda *what: said.append(what))
    times = [t.measured_seconds for t in found.tried if t.measured_seconds is not None]
    assert len(times) == 2
    assert found.predicted_seconds == min(times)
    assert found.predicted_seconds == pytest.approx(simulate(found.plan).step_seconds)
    assert any(re.fullmatch(r"measuring 1 .*: stage 0 forward", what) for _, _, what in said)
    assert said[-1][0] == said[-1][1]
    w, x = mlp()
    assert relative_difference(found.load()(w, x), jax.jit(mlp_step)(w, x)) < 1e-5


def test_one_count_has_runners_up_in_remat_and_schedule(pretend):
    pretend(lambda plan: 2.0 if plan.schedule != "gpipe" else 1.0)
    method = PipeshardParallel(**TWO_STAGES, schedule="auto", remat="auto", finalists=9)
    found = chosen(method)
    measured = {(t.remat, t.schedule) for t in found.tried if t.measured_seconds is not None}
    assert {remat for remat, _ in measured} == {
        "auto",
        "all",
    }  # Nothing is short: "none" is "auto".
    assert {schedule for _, schedule in measured} == {"1f1b", "1f1b-overlap", "gpipe", "zb-auto"}
    assert found.plan.schedule == "gpipe"
    one = chosen(replace(method, finalists=1))
    assert len([t for t in one.tried if t.measured_seconds is not None]) == 1


def test_plans_that_run_the_same_programs_are_one_finalist(pretend):
    """With one micro-batch there is nothing to schedule but the parts of backward phases."""
    pretend(lambda plan: 1.0)
    method = PipeshardParallel(submeshes=[(1, 1), (1, 1)], schedule="auto", finalists=3)
    measured = [t.schedule for t in chosen(method).tried if t.measured_seconds is not None]
    assert len(measured) == 2
    assert "zb-auto" in measured


def test_what_does_not_fit_on_the_devices_is_not_chosen(pretend):
    def exhausted(plan):
        if plan.num_micro_batches == 1:
            raise InfeasiblePlanError("a device runs out of memory")
        return 1.0

    pretend(exhausted)
    found = chosen(AutoParallel(remat="none", finalists=2))
    assert found.plan.num_micro_batches == 2
    assert re.search(r"1 micro-batch: .*; a device runs out of memory\n", found.as_text())
    with pytest.raises(
        DevicesError, match=r"none of the finalists runs.*memory_fraction below 0.9"
    ):
        chosen(AutoParallel(num_micro_batches=1, remat="none", finalists=2))


def test_finalists_that_cannot_be_measured(monkeypatch):
    large = PipeshardParallel(submeshes=[(4, 4)], num_micro_batches=1, finalists=2)
    with pytest.raises(
        DevicesError, match=r"stage 0 of the plan for 1 micro-batch takes 16 devices.* has 8; fix"
    ):
        chosen(large, where=cluster(hosts=4, devices=4))
    mixed = cluster()
    mixed["device_types"]["other"] = mixed["device_types"]["small"]
    mixed["hosts"] = [mixed["hosts"], {**mixed["hosts"], "device_type": "other"}]
    with pytest.raises(MethodError, match="devices of the kinds other, small"):
        chosen(AutoParallel(finalists=1), where=mixed)
    with pytest.raises(MethodError, match="finalists -1"):
        AutoParallel(finalists=-1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(DevicesError, match="each of 2 processes would choose"):
        chosen(AutoParallel(finalists=1))


def test_measured_plans_are_kept_for_the_devices_that_they_were_measured_on(
    pretend, monkeypatch, tmp_path
):
    pretend(lambda plan: 1.0)

    def searches(method):
        said = []
        found = chosen(method, cache=tmp_path, progress=lambda *what: said.append(what))
        return found, bool(said)

    method = AutoParallel(num_micro_batches=(1, 2), finalists=1)
    first, searched = searches(method)
    assert searched
    again, searched = searches(method)
    assert not searched
    assert again.tried == first.tried
    monkeypatch.setattr(autotune, "devices_text", lambda: "4 x gpu")
    assert searches(method)[1]
    assert searches(replace(method, finalists=0))[1]
    monkeypatch.setattr(autotune, "devices_text", lambda: "8 x gpu")
    assert not searches(replace(method, finalists=0))[1]


def test_the_devices_by_name():
    text = autotune.devices_text()
    assert text.startswith(f"{len(jax.local_devices())} x cpu")
    assert "jaxlib" in text
