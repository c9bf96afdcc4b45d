"""Plans in Shardy's MPMD dialect: jaxlib reads them, and they compute what the step does."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

import alpa_mlir
import jax
import jaxlib
import numpy as np
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import ExportError, PlanMismatchError
from alpa_mlir.export import export_plan
from alpa_runtime import trees
from alpa_runtime.plan.program import InputOp, OutputOp, RunOp
from conditioned import check_state, plain
from jax.extend import backend
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import mpmd


def planned(name: str, method):
    model = zoo.get(name)
    step = alpa_mlir.parallelize(model.step, cluster="cpu-test:2", method=method)
    return step.plan(*model.init())


def parsed(text: str) -> ir.Module:
    context = mlir.make_ir_context()
    mpmd.register_dialect(context)
    with context:
        module = ir.Module.parse(text)
        module.operation.verify()
    return module


def calls_of(module: ir.Module) -> list[ir.Operation]:
    (main,) = (op for op in functions_of(module) if name_of(op) == "main")
    return [op.operation for op in main.regions[0].blocks[0]]


def functions_of(module: ir.Module) -> list[ir.Operation]:
    return [op.operation for op in module.body if op.operation.name == "func.func"]


def name_of(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def attribute(op: ir.Operation, name: str) -> str:
    return str(op.attributes[name]).strip('@"')


def runner(function: ir.Operation):
    """A function of the module, compiled for one device."""

    def without_shardings(op):
        if op.name == "sdy.sharding_constraint":
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        return ir.WalkResult.ADVANCE

    with function.context, ir.Location.unknown():
        module = ir.Module.create()
        copy = function.clone(ir.InsertionPoint(module.body))
        copy.walk(without_shardings)
        copy.attributes["sym_name"] = ir.StringAttr.get("main")
        for name in ("arg_attrs", "res_attrs", "sym_visibility", "mesh_shape"):
            if name in copy.attributes:
                del copy.attributes[name]
        text = str(module)
    client = backend.get_backend("cpu")
    devices = jax.devices()[:1]
    assignment = np.array(devices)[None]
    options = backend.get_compile_options(1, 1, device_assignment=assignment, backend=client)
    program = client.compile_and_load(text, devices, options)

    def run(values):
        arrays = [jax.device_put(x, devices[0]) for x in values]
        found = program.execute_sharded(arrays).disassemble_into_single_device_arrays()
        return [np.asarray(shards[0]) for shards in found]

    return run


def interpret(module: ir.Module, arguments):
    """Run `@main` op by op."""
    functions = {name_of(op): op for op in functions_of(module)}
    programs = {}
    *ops, result = calls_of(module)
    values = {}
    for place, value in zip(result.block.arguments, arguments, strict=True):
        values[place] = value
    for op in ops:
        given = [values[x] for x in op.operands]
        if op.name == "mpmd.transfer":
            found = given
        else:
            assert op.name == "mpmd.fragment_call"
            name = attribute(op, "callee")
            if name not in programs:
                programs[name] = runner(functions[name])
            found = programs[name](given)
        values.update(zip(op.results, found, strict=True))
    return [values[x] for x in result.operands]


def run_as_step(planned, module, args):
    """The step by its exported module: arguments cut, results put together."""
    plan, form = planned.plan, planned.form
    flat = form.flatten_args(*args)
    count = plan.num_micro_batches
    places = sorted(
        {
            (op.arg, -1 if op.micro_batch is None else op.micro_batch, program.mesh)
            for program in plan.programs
            for op in program.only(InputOp)
        }
    )
    given = []
    for arg, part, _ in places:
        value = plain(flat[arg])
        given.append(value if part < 0 else np.split(value, count)[part])
    found = interpret(module, given)
    keys = sorted(
        (op.result, -1 if op.micro_batch is None else op.micro_batch)
        for program in plan.programs
        for op in program.only(OutputOp)
    )
    parts = {}
    for (result, _), value in zip(keys, found, strict=True):
        parts.setdefault(result, []).append(value)
    joined = [x[0] if len(x) == 1 else np.concatenate(x) for _, x in sorted(parts.items())]
    return form.unflatten_results(joined)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gpt", PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2)),
        ("mlp", PipeshardParallel(submeshes=[(1, 4), (1, 2)], num_micro_batches=4)),
        ("mlp", ShardParallel(mesh_shape=(2, 4))),
    ],
    ids=["norm over meshes", "unequal meshes", "one mesh"],
)
def test_computes_the_step(name, method):
    model = zoo.get(name)
    args = model.init()
    found = planned(name, method)
    module = parsed(export_plan(found.plan, "mpmd").text)
    result = run_as_step(found, module, args)
    expected = jax.jit(model.step)(*args)
    check_state(args[0], result[0], expected[0], rtol=1e-5)
    for a, b in zip(trees.leaves(result[1]), trees.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(plain(a), plain(b), rtol=1e-5)


def test_schedule_and_types():
    method = PipeshardParallel(submeshes=[(1, 4), (1, 2)], num_micro_batches=4)
    plan = planned("mlp", method).plan
    exported = export_plan(plan, "mpmd")
    assert any("argument of its own" in note for note in exported.notes)
    module = parsed(exported.text)  # Its operations live as long.
    *ops, _ = calls_of(module)
    for program in plan.programs:
        runs = [(f"stage_{op.stage}_{op.function}", op.micro_batch) for op in program.only(RunOp)]
        calls = [
            (
                attribute(op, "callee"),
                ir.IntegerAttr(op.attributes["call_counter"]).value
                if "call_counter" in op.attributes
                else None,
            )
            for op in ops
            if op.name == "mpmd.fragment_call"
            and attribute(op, "mesh_name") == f"mesh_{program.mesh}"
            and attribute(op, "callee").startswith("stage_")
        ]
        assert calls == runs
    meshes = [str(x.type).split('"')[1] for op in ops for x in (*op.operands, *op.results)]
    assert {*meshes} == {"mesh_0", "mesh_1"}


def test_its_own_passes_take_it(monkeypatch):
    """The last of them makes the module that runtimes run."""
    monkeypatch.setitem(sys.modules, "jax.jaxlib", jaxlib)  # Where the module looks for them.
    monkeypatch.setitem(sys.modules, "jax.jaxlib._jax", importlib.import_module("jaxlib._jax"))
    own = pytest.importorskip("jaxlib._sdy_mpmd")
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2)
    module = parsed(export_plan(planned("mlp", method).plan, "mpmd").text)
    with module.context:
        own.lower_to_ifrt(module)
    text = str(module)
    assert "mpmd.fragment_call" not in text
    assert "ifrt.Call @stage_1_backward" in text
    assert "ifrt.CopyArrays" in text


def test_programs_that_do_not_fit_are_refused():
    plan = planned("mlp", ShardParallel(mesh_shape=(2, 4))).plan
    functions = plan.stages[0].functions
    name, info = next(iter(functions.items()))
    fewer = {**functions, name: replace(info, outputs=info.outputs[:-1])}
    damaged = replace(plan, stages=(replace(plan.stages[0], functions=fewer),))
    with pytest.raises(PlanMismatchError, match=f"for {name} of stage 0, which has"):
        export_plan(damaged, "mpmd")


def test_programs_of_one_device_are_refused():
    plan = planned("mlp", ShardParallel(mesh_shape=(2, 4), export="collectives")).plan
    with pytest.raises(ExportError, match=r"stage 0 .* one device.*export=\"shardy\""):
        export_plan(plan, "mpmd")
