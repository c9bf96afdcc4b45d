"""Programs compiled ahead of time: stored with their plan, taken where they suit, and they fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import alpa_mlir
import handmade
import jax
import numpy as np
import pytest
import zoo
from alpa_mlir import errors
from alpa_mlir.cli import main
from alpa_mlir.simulator.figures import figures_of
from alpa_runtime import aot, parallel_step
from alpa_runtime.backends import iree, xla
from alpa_runtime.backends import xla as xla_backend
from alpa_runtime.backends.gpus import GPUS
from alpa_runtime.execution.compilation import check_memory, check_peaks, compiled_peaks, part_of
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Copy,
    Place,
    Reshard,
    Run,
    Zero,
    merge_step,
)
from alpa_runtime.hosts.threads import ThreadWorkers
from alpa_runtime.plan import Plan
from alpa_runtime.worker_group import Placement

ONE = {"first": (1, 1), "second": (1, 1)}


@pytest.fixture
def saved(tmp_path):
    """A function that saves a plan of two stages, for a cluster of a type of device."""

    def save(micro_batches=2, device_type="cpu-device", memory="1GiB", **meshes):
        plan, modules = handmade.two_stages(micro_batches, **meshes)
        count = sum(len(mesh["devices"]) for mesh in plan["meshes"])
        size = int(memory.removesuffix("GiB")) << 30 if memory.endswith("GiB") else int(memory)
        plan["cluster"] = {
            "device_types": {device_type: {"memory_bytes": size}},
            "hosts": [{"count": 1, "devices": count, "device_type": device_type}],
        }
        return handmade.as_plan(plan, modules).save(tmp_path / "plan")

    return save


def results_of(step):
    state, batch = handmade.arguments(2)
    found = step([state["w0"], state["w1"], batch["x"], batch["y"]])
    return [np.asarray(x) for x in found]


@pytest.fixture
def nothing_compiles(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("compiled")

    monkeypatch.setattr(xla_backend, "compile_text", refuse)
    monkeypatch.setattr(iree, "compile_binary", refuse)


def test_programs_for_this_host(saved, monkeypatch, request):
    folder = saved(first=(1, 2), second=(2, 1))
    seen = []
    done = aot.compile_ahead(folder, "cpu", progress=lambda *row: seen.append(row))
    assert [row[0] for row in seen] == list(range(1, seen[-1][1] + 1))
    assert {row[2] for row in seen} >= {"stage 0 forward", "stage 1 backward"}
    labels = {item.label for item in done.binaries}
    assert labels >= {f"stage {s} {f}" for s in (0, 1) for f in ("forward", "backward", "update_0")}
    assert done.limits == (None, None)  # The plan's devices are others.
    assert "stage 0 backward  cpu by xla: " in done.as_text()
    plan = Plan.load(folder)
    assert {item.key for item in plan.binaries} == {item.key for item in done.binaries}
    step = load(plan, backend="xla", cache=False)
    expected = results_of(step)
    memory = {peak.mesh: peak.bytes for peak in done.peaks}
    assert step.peak_bytes() == memory
    assert {m.mesh: m.bytes for m in plan.compiled_memory} == memory
    assert Plan.load(plan.save(folder / "copy")).compiled_memory == plan.compiled_memory
    workers = ThreadWorkers(Placement(((0, 1), (2, 3))))
    on_workers = parallel_step.load_on(plan, None, workers, True, False, "xla", False)
    # Each worker in its own order.
    assert all(0 < size <= memory[mesh] for mesh, size in on_workers.peak_bytes().items())
    assert {*on_workers.peak_bytes()} == {*memory}
    on_workers.close()
    request.getfixturevalue("nothing_compiles")
    for found in (results_of(load(plan, cache=False)), results_of(load(Plan.load(folder)))):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(AssertionError, match="compiled"):  # Asked for by name, XLA compiles.
        load(plan, backend="xla", cache=False)


def test_programs_of_iree_for_this_host(saved, request):
    pytest.importorskip("iree.compiler")
    folder = saved(**ONE)
    expected = results_of(load(Plan.load(folder), cache=False))
    aot.compile_ahead(folder, "cpu", backend="iree")
    aot.compile_ahead(folder, "cpu")
    plan = Plan.load(folder)
    assert {item.compiler for item in plan.binaries} == {"xla", "iree"}
    assert sorted({item.compiler for item in plan.compiled_memory}) == ["iree", "xla"]
    request.getfixturevalue("nothing_compiles")
    for found, wanted in zip(results_of(load(plan, cache=False)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)

    def version(name):
        raise iree.PackageNotFoundError(name)

    request.getfixturevalue("monkeypatch").setattr(iree, "version", version)
    for found, wanted in zip(results_of(load(plan, cache=False)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_damaged_programs_are_compiled_again(saved, tmp_path):
    folder = saved(first=(1, 2), second=(2, 1))
    aot.compile_ahead(folder, "cpu")
    expected = results_of(load(Plan.load(folder)))
    (path,) = folder.glob("stage_0_forward.*.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"stage_0_forward.*is not used: it is not what was writ"):
        plan = Plan.load(folder)
    np.testing.assert_array_equal(results_of(load(plan))[0], expected[0])
    path.unlink()
    with pytest.warns(UserWarning, match="No such file"):
        Plan.load(folder)
    table = json.loads((folder / "compiled.json").read_text())
    for broken in ({**table, "version": 7}, {"programs": []}, {**table, "programs": [{}]}):
        (folder / "compiled.json").write_text(json.dumps(broken))
        with pytest.warns(UserWarning, match=r"compiled\.json is not used: it is malformed"):
            assert Plan.load(folder).binaries == ()
    (folder / "compiled.json").write_text("{")
    with pytest.warns(UserWarning, match="malformed"):
        Plan.load(folder)


def test_plans_are_saved_with_their_programs(saved, tmp_path):
    folder = saved(first=(1, 2), second=(2, 1))
    done = aot.compile_ahead(folder, "cpu")
    copy = Plan.load(folder).save(tmp_path / "copy")
    assert {b.file for b in Plan.load(copy).binaries} == {b.file for b in done.binaries}
    again = aot.compile_ahead(copy, "cpu")  # Replaces what is there for this target.
    assert len(list(copy.glob("*.bin"))) == len({item.file for item in again.binaries})


@pytest.mark.parametrize("name", [pytest.param("v100", marks=pytest.mark.slow), "h200"])
def test_iree_for_gpus(saved, name):
    pytest.importorskip("iree.compiler")
    folder = saved(device_type=name, memory="16GiB", **ONE)
    done = aot.compile_ahead(folder, backend="iree")
    assert {(item.target, item.compiler) for item in done.binaries} == {(name, "iree")}
    for item in done.binaries:
        binary = iree.IreeBinary.from_bytes(item.program)
        has_code = item.label != "stage 1 forward"  # It hands its argument on.
        assert (GPUS[name].iree_arch.encode() in binary.module) == has_code
        assert item.memory_bytes > binary.transient_bytes
    assert done.limits == (16 << 30, 16 << 30)


def test_iree_wants_collectives_for_several_devices(saved):
    pytest.importorskip("iree.compiler")
    folder = saved(device_type="h100", first=(1, 2), second=(1, 1))
    with pytest.raises(errors.BackendError, match=r'stage 0 .*: IREE .*export="collectives"'):
        aot.compile_ahead(folder, backend="iree")
    assert not list(folder.glob("*.bin"))


@pytest.mark.slow
def test_collectives_by_iree(tmp_path):
    pytest.importorskip("iree.compiler")
    model = zoo.get("moe")
    state, batch = model.init()
    method = alpa_mlir.PipeshardParallel(
        num_micro_batches=2, submeshes=[(1, 4), (1, 4)], export="collectives"
    )
    function = alpa_mlir.parallelize(model.step, cluster="p4d.24xlarge", method=method)
    planned = function.plan(state, batch)
    assert any("stablehlo.all" in text for text in planned.plan.modules.values())
    folder = planned.save(tmp_path / "plan")
    done = aot.compile_ahead(folder, backend="iree")
    functions = sum(len(stage.functions) for stage in planned.plan.stages)
    assert len(done.binaries) == functions
    assert done.limits == (40 << 30, 40 << 30)
    assert len(Plan.load(folder).binaries) == functions


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_plugins") is None, reason="needs JAX's plugin for CUDA")
@pytest.mark.parametrize("export", ["shardy", "collectives"])
def test_xla_for_gpus(tmp_path, export):
    model = zoo.get("gpt")
    state, batch = model.init()
    method = alpa_mlir.PipeshardParallel(
        num_micro_batches=2, submeshes=[(1, 4), (1, 4)], export=export
    )
    function = alpa_mlir.parallelize(model.step, cluster="dgx-h100", method=method)
    folder = function.plan(state, batch).save(tmp_path / "plan")
    done = aot.compile_ahead(folder)
    assert {item.target for item in done.binaries} == {"h100"}
    assert done.limits == (80 << 30, 80 << 30)
    for item in done.binaries:
        assert b"sm_90" in item.program or len(item.program) > 1000
        assert item.memory_bytes > 0


def test_either_plugin(monkeypatch):
    def version(name):
        if name == "jax-cuda13-pjrt":
            return "0.12.0"
        raise xla.PackageNotFoundError(name)

    monkeypatch.setattr(xla, "version", version)
    assert xla.plugin_version() == "0.12.0"


def test_missing_plugin(saved, monkeypatch):
    def version(name):
        raise xla.PackageNotFoundError(name)

    monkeypatch.setattr(xla, "version", version)
    with pytest.raises(errors.BackendError) as error:
        aot.compile_ahead(saved(device_type="h100"))
    assert str(error.value).endswith(
        "is installed; fix: pip install 'alpa-mlir[cuda12]', or [cuda13]"
    )


def test_unknown_targets(saved, capsys):
    folder = saved()
    with pytest.raises(errors.BackendError) as error:
        aot.compile_ahead(folder)
    assert "mesh 1x2 on devices 0-1: no compiler knows 'cpu-device'" in str(error.value)
    assert "cpu, v100, a100-40gb" in str(error.value)
    with pytest.raises(errors.BackendError, match="backend 'tvm'; fix: use one of xla, iree"):
        aot.compile_ahead(folder, "cpu", backend="tvm")
    assert main(["compile", str(folder)]) == 1
    assert "no compiler knows" in capsys.readouterr().err


def test_command(saved, capsys):
    folder = saved(first=(1, 2), second=(2, 1))
    assert main(["compile", str(folder), "--target", "cpu", "-q"]) == 0
    printed = capsys.readouterr().out
    assert "stage 1 backward  cpu by xla: " in printed
    assert f"programs to {folder}" in printed
    assert Plan.load(folder).binaries


def test_command_for_the_plans_own_processors(tmp_path):
    """In a process of its own, where JAX has one device until the command asks for more."""
    plan, modules = handmade.two_stages(2, first=(1, 2), second=(2, 1))
    plan["cluster"] = {
        "name": "here",
        "device_types": {"cpu": {"memory_bytes": 1 << 30}},
        "hosts": [{"count": 1, "devices": 4, "device_type": "cpu"}],
    }
    folder = handmade.as_plan(plan, modules).save(tmp_path / "plan")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": ""}
    words = [sys.executable, "-m", "alpa_mlir", "compile", str(folder), "-q"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {m.target for m in Plan.load(folder).compiled_memory} == {"cpu"}
    found = figures_of(Plan.load(folder)).fullest
    assert found.compiled_bytes == max(m.bytes for m in Plan.load(folder).compiled_memory)


def test_plan_that_does_not_fit(saved):
    """Weights fit, and so does each program by itself, but not on top of what the step holds."""
    pytest.importorskip("iree.compiler")
    fits_in = saved(4, "h100", "1GiB", **ONE)
    fits = aot.compile_ahead(fits_in, backend="iree")
    worst = max(fits.peaks, key=lambda peak: peak.bytes)
    largest = max(item.memory_bytes for item in fits.binaries)
    assert worst.bytes > largest
    check_peaks(Plan.load(fits_in), fits.peaks, {0: worst.bytes, 1: worst.bytes}, "h100")
    for path in fits_in.glob("*.bin"):
        path.unlink()
    (fits_in / "compiled.json").unlink()
    folder = saved(4, "h100", str(worst.bytes - 1), **ONE)
    with pytest.raises(errors.InfeasiblePlanError) as error:
        aot.compile_ahead(folder, backend="iree")
    text = str(error.value)
    assert f"mesh {worst.mesh}: {worst.label} compiled for h100 by iree needs" in text
    assert "fix: plan with more micro-batches" in text
    assert not list(folder.glob("*.bin"))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("meshes", [ONE, {"first": (1, 2), "second": (2, 2)}])
def test_peaks_are_those_of_live_values(schedule, meshes):
    plan = handmade.as_plan(*handmade.two_stages(3, schedule, **meshes))
    step = merge_step(plan)

    def size(v):
        part = part_of(step.values[v].tensor, plan.meshes[step.values[v].mesh])
        return int(np.prod(part.shape)) * 4

    def io(action):
        match action:
            case Place():
                return (), (action.value,)
            case Run():
                return action.inputs, action.outputs
            case Accumulate():
                reads = [v for _, a, b in action.sums for v in (a, b)]
                return tuple(reads), tuple(v for v, _, _ in action.sums)
            case Copy() | Reshard():
                return (action.source,), (action.value,)
            case Zero():
                return (), action.values

    kept = {v for result in step.results for v in result}
    born, died = {}, {}
    for i, action in enumerate(step.actions):
        reads, makes = io(action)
        state = isinstance(action, Place) and plan.inputs[action.arg].kind == "state"
        for v in makes:
            born[v] = -1 if state else i
            died.setdefault(v, i)
        for v in reads:
            died[v] = i
    for v in kept:
        died[v] = len(step.actions)
    scratch, programs, expected = 1000, {}, [0] * len(plan.meshes)
    for i, action in enumerate(step.actions):
        mesh = step.values[io(action)[1][0]].mesh
        live = sum(
            size(v) for v in born if step.values[v].mesh == mesh and born[v] < i and died[v] >= i
        )
        made = sum(map(size, io(action)[1]))
        if isinstance(action, Run):
            key = action.stage, action.function
            programs[key] = sum(map(size, action.inputs)) + made + scratch
            expected[mesh] = max(expected[mesh], live + made + scratch)
        elif isinstance(action, Accumulate):
            expected[mesh] = max(expected[mesh], live)  # In the left operands' buffers.
        elif not isinstance(action, Place):
            expected[mesh] = max(expected[mesh], live + made)
    assert [peak.bytes for peak in compiled_peaks(plan, step, programs)] == expected
    state = [0] * len(plan.meshes)  # Each weight is read last by the update, which makes the next.
    for action in step.actions:
        if isinstance(action, Place) and plan.inputs[action.arg].kind == "state":
            state[step.values[action.value].mesh] += size(action.value)
    kept = compiled_peaks(plan, step, programs, donate_state=False)
    for peak, before, held in zip(kept, expected, state, strict=True):
        assert before <= peak.bytes <= before + held


def test_loading_refuses_what_does_not_fit(monkeypatch):
    """As on a GPU, whose runtime knows its limit; the CPU's has none."""
    from alpa_runtime.execution import compilation

    plan = handmade.as_plan(*handmade.two_stages(2, **ONE))
    step = load(plan)
    mesh = jax.sharding.Mesh(jax.devices()[:1], "x")
    assert compilation.device_limits({0: mesh}) == {}
    linear, programs = merge_step(plan), step._bound.stages
    for limit, fits in ((1 << 30, True), (3000, False)):
        monkeypatch.setattr(compilation, "device_limits", lambda m, n=limit: dict.fromkeys(m, n))
        if fits:
            check_memory(plan, linear, programs, {0: mesh, 1: mesh}, True)
        else:
            with pytest.raises(errors.InfeasiblePlanError, match=r"on a device of 2\.93 KiB"):
                load(plan)
