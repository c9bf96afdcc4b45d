"""Plan folders are read back as written; wrong ones are refused before the first step."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys

import handmade
import numpy as np
import pytest
from alpa_mlir import errors
from alpa_runtime.execution.loaded_plan import load
from alpa_runtime.execution.program_merge import merge_step
from alpa_runtime.plan import Plan


@pytest.fixture(scope="module")
def good():
    return handmade.two_stages(2)


def test_save_and_load(good, tmp_path):
    plan = handmade.as_plan(*good)
    again = Plan.load(plan.save(tmp_path / "plan"))
    assert again == plan
    state, batch = handmade.arguments(2)
    args = [state["w0"], state["w1"], batch["x"], batch["y"]]
    np.testing.assert_array_equal(load(plan)(args)[2], load(again)(args)[2])


def test_running_a_plan_needs_no_compiler(good, tmp_path):
    handmade.as_plan(*good).save(tmp_path)
    code = f"""
import sys
sys.modules["alpa_mlir._native"] = None  # importing it fails
from alpa_runtime.plan import Plan
from alpa_runtime.devices import use_virtual_devices
from alpa_runtime.execution.loaded_plan import load
use_virtual_devices(4)
load(Plan.load({str(tmp_path)!r}))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def change(path, value):
    def apply(plan, modules):
        *parents, key = path
        node = plan
        for part in parents:
            node = node[part]
        if value is KeyError:
            del node[key]
        else:
            node[key] = value

    return apply


FORMAT_CASES = [
    (change(["version"], 1), r"version: version 1, expected 5: made by an older alpa_mlir"),
    (change(["format"], "other"), r"format: got 'other', expected 'alpa_mlir.plan'"),
    (change(["num_micro_batches"], 0), r"num_micro_batches: got 0, expected an integer of at le"),
    (change(["stages", 0, "layers"], KeyError), r"stages\[0\]: field 'layers' is missing"),
    (change(["meshes", 1, "devices"], [2, 2]), r"meshes\[1\].devices: got \[2, 2\], expected 2"),
    (
        change(["inputs", 0, "kind"], "weight"),
        r"inputs\[0\].kind: got 'weight', expected 'state' or",
    ),
    (change(["programs", 0, "instructions", 0, "op"], "jump"), r"instructions\[0\]: got 'jump 0'"),
    (
        change(["programs", 0, "instructions", 0, "spec"], [[]]),
        r"instructions\[0\]: got .*, which has 1 entries for 2 dim",
    ),
    (change(["order"], ["0*3 one"]), r"order\[0\]: got 'one', expected MESH or MESH\*INSTRUCTIONS"),
    (change(["stages", 1, "module"], "gone.mlir"), r"stages\[1\].module: module file 'gone.mlir'"),
]


@pytest.mark.parametrize(("edit", "message"), FORMAT_CASES)
def test_malformed_plans(good, edit, message):
    plan, modules = copy.deepcopy(good)
    edit(plan, modules)
    with pytest.raises(errors.PlanFormatError, match=message):
        handmade.as_plan(plan, modules)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(errors.PlanFormatError, match=r"plan.json: cannot read the plan"):
        Plan.load(tmp_path / "nothing")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(errors.PlanFormatError, match=r"plan.json: not JSON"):
        Plan.load(tmp_path)


def first(plan, mesh, op):
    return next(i for i in plan["programs"][mesh]["instructions"] if i["op"] == op)


def edit_first(mesh, op, **fields):
    return lambda plan, modules: first(plan, mesh, op).update(fields)


def drop(mesh, op):
    def apply(plan, modules):
        plan["programs"][mesh]["instructions"].remove(first(plan, mesh, op))

    return apply


def both(*edits):
    def apply(plan, modules):
        for edit in edits:
            edit(plan, modules)

    return apply


def edit_module(old, new):
    def apply(plan, modules):
        assert old in modules["stage_0.mlir"]
        modules["stage_0.mlir"] = modules["stage_0.mlir"].replace(old, new)

    return apply


MISMATCH_CASES = [
    (edit_first(0, "run", micro_batch=7), r"mesh 0, instruction \d+: micro-batch 7 of 2"),
    (
        change(["num_micro_batches"], 4),
        r"stage 0: forward runs 2 times, for 2 of 4 micro-batches",
    ),
    (
        edit_first(0, "run", micro_batch=1),
        r"forward of micro-batch 1 reads micro-batch 0 of the batch",
    ),
    (edit_first(1, "run", micro_batch=1), r"stage 1: forward runs 2 times, for 1 of 2 micro-"),
    (edit_first(1, "recv", tag=77), r"waits at 'recv .* not sent before it in the plan's order"),
    (edit_first(0, "send", tag=1), "tag 1 is sent twice"),
    (drop(1, "recv"), "slot 1 holds nothing"),
    (edit_first(1, "recv", spec=[[], ["y"]]), r"reshard 0 gives .*\[x, R\] .* here .*\[R, y\]"),
    (edit_first(1, "recv", shape=[8, 8]), r"tag 0 brings float32\[8x16\]"),
    (edit_first(0, "run", inputs=[0]), "1 inputs for forward of stage 0, which has 2"),
    (edit_first(0, "run", function="froward"), "stage 0 has no function 'froward', only forward"),
    (edit_first(0, "run", stage=1), "stage 1 belongs to mesh 1"),
    (edit_first(0, "input", arg=9), "argument 9 of 4"),
    (edit_first(0, "input", arg=1), r"\(state\['w1'\]\): float32\[8x16\] \[R, y\], but the argum"),
    (edit_first(0, "output", result=0), r"result state\['w0'\] is float32\[8x16\]|given twice"),
    (drop(1, "output"), r"outputs\[1\] \(state\['w1'\]\): no program gives this result"),
    (drop(0, "output"), r"outputs\[3\] \(h\): values of micro-batches \[1\], expected all 2"),
    (
        edit_first(1, "output", micro_batch=0),
        r"\(state\['w1'\]\): values of micro-batches \[0\], expected one value",
    ),
    (
        both(drop(0, "output"), edit_first(0, "output", micro_batch=None)),
        r"\(h\): one value for a result that joins micro-batches",
    ),
    (edit_first(1, "accumulate", right=2), "adds .* to "),
    (change(["meshes", 1, "devices"], [1, 2]), "device 1 belongs to mesh 0 as well"),
    (change(["programs", 1, "mesh"], 0), r"programs for meshes \[0, 0\]"),
    (
        change(["stages", 0, "functions", "forward", "inputs", 0, "spec"], [[], ["z"]]),
        r"forward: input 0: spec names axis 'z', mesh 0 has x, y",
    ),
    (
        change(["stages", 0, "functions", "forward", "inputs", 0, "spec"], [["y"], ["y"]]),
        "axis 'y' splits two dimensions",
    ),
]


@pytest.mark.parametrize(("edit", "message"), MISMATCH_CASES)
def test_contradicting_tables(good, edit, message):
    plan, modules = copy.deepcopy(good)
    edit(plan, modules)
    with pytest.raises(errors.PlanMismatchError, match=message):
        merge_step(handmade.as_plan(plan, modules))


def count(plan, mesh):
    return len(plan["programs"][mesh]["instructions"])


ORDER_CASES = [
    (lambda plan: [f"0*{count(plan, 0)}"], r"order: takes 0 of the \d+ instructions of mesh 1"),
    (lambda plan: ["0*999 1*99"], r"order: takes 999 of the \d+ instructions of mesh 0"),
    (lambda plan: ["0 2"], "order: mesh 2 of 2"),
    (
        lambda plan: [f"1*{count(plan, 1)}", f"0*{count(plan, 0)}"],
        r"mesh 1, instruction 1: waits at 'recv 1 from 0 tag 0 .* not sent before it in the plan's",
    ),
]


@pytest.mark.parametrize(("order", "message"), ORDER_CASES)
def test_orders_that_are_none(good, order, message):
    plan, modules = copy.deepcopy(good)
    plan["order"] = order(plan)
    with pytest.raises(errors.PlanMismatchError, match=message):
        merge_step(handmade.as_plan(plan, modules))


MODULE_CASES = [
    (edit_module("@forward", "@ahead"), "stage_0.mlir: no function 'forward', only ahead"),
    (edit_module("stablehlo.tanh", "stablehlo.tanhh"), "stage_0.mlir: the stage's module cannot"),
    (edit_module("tensor<8x8xf32>", "tensor<8x8xf64>"), "tensor<8x8xf64>, plan.json says|cannot"),
    (
        # the weights split over the other axis than plan.json says
        edit_module('[{}, {"y"}]', '[{}, {"x"}]'),
        r"stage 0 .*(in|out)put 0 is compiled as .*the plan says float32\[8x16\] \[R, y\]",
    ),
]


@pytest.mark.parametrize(("edit", "message"), MODULE_CASES)
def test_modules_that_contradict_the_plan(edit, message):
    plan, modules = handmade.two_stages(1, first=(2, 2))
    edit(plan, modules)
    with pytest.raises(errors.PlanMismatchError, match=message):
        load(handmade.as_plan(plan, modules))


def test_equal_stages_are_compiled_once():
    """Two meshes of one shape that run the same text share one compilation."""
    from alpa_runtime.backends.xla import named_sharding
    from alpa_runtime.devices import make_meshes
    from alpa_runtime.execution.compilation import Job, compile_jobs

    plan, modules = handmade.two_stages(1)
    real = handmade.as_plan(plan, modules)
    meshes = make_meshes(real)
    tensor = real.stages[0].functions["update_0"].outputs[0]
    attribute = 'sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>'
    main = f"@main(%a: tensor<8x16xf32> {{{attribute}}}) -> (tensor<8x16xf32> {{{attribute}}})"
    text = f"""module {{
  sdy.mesh @mesh = <["x"=1, "y"=2]>
  func.func public {main} {{
    %0 = stablehlo.add %a, %a : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }}
}}"""
    jobs = [Job("twice", text, mesh, (tensor,), (tensor,)) for mesh in (0, 1)]
    seen = []
    compiled = compile_jobs(jobs, meshes, lambda done, total, label: seen.append((done, total)))
    assert seen == [(1, 1)]
    import jax

    for mesh, executable in zip(meshes, compiled, strict=True):
        x = jax.device_put(np.ones((8, 16), np.float32), named_sharding(mesh, tensor))
        (y,) = executable.call([x])
        assert y.sharding.device_set == set(mesh.devices.flat)
        np.testing.assert_array_equal(y, 2 * np.ones((8, 16)))


SPECS_3D = [
    (dims, shape)
    for dims in [
        ((), ()),
        (("x",), ()),
        (("y",), ("x",)),
        (("z", "x"), ()),
        (("x", "z"), ("y",)),
        (("z", "y", "x"), ()),
        ((), ("y", "z")),
    ]
    for shape in [(2, 2, 2), (1, 4, 2), (2, 1, 1)]
]


@pytest.mark.parametrize(("spec", "shape"), SPECS_3D)
def test_shardings_of_three_axes(spec, shape):
    """XLA's shardings of arguments and results are read back as what was written."""
    import jax
    from alpa_runtime.backends.xla import mesh_text, named_sharding, sharding_text
    from alpa_runtime.execution.compilation import Job, compile_jobs
    from alpa_runtime.plan.stage import MeshInfo
    from alpa_runtime.plan.tensor import TensorSpec

    axes, count = ("x", "y", "z"), int(np.prod(shape))
    devices = np.array(jax.devices()[:count][::-1]).reshape(shape)  # not in the usual order
    mesh = jax.sharding.Mesh(devices, axes)
    tensor = TensorSpec((16, 8), "float32", spec)
    held = f"tensor<16x8xf32> {{{sharding_text(tensor)}}}"
    text = f"""module {{
  {mesh_text(MeshInfo(shape, axes, tuple(range(count))))}
  func.func public @main(%a: {held}) -> ({held}) {{
    %0 = stablehlo.add %a, %a : tensor<16x8xf32>
    return %0 : tensor<16x8xf32>
  }}
}}"""
    (executable,) = compile_jobs([Job("twice", text, 0, (tensor,), (tensor,))], [mesh])
    value = np.arange(128, dtype=np.float32).reshape(16, 8)
    (result,) = executable.call([jax.device_put(value, named_sharding(mesh, tensor))])
    np.testing.assert_array_equal(result, 2 * value)


def test_plan_is_immutable(good):
    plan = handmade.as_plan(*good)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"  # pyright: ignore
    with pytest.raises(TypeError):
        plan.predicted["step_seconds"] = 0.0  # pyright: ignore
    assert json.loads(plan.to_json())["format"] == "alpa_mlir.plan"
