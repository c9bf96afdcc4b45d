"""Compiling what a plan runs, every function once per mesh, and the memory that it needs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir
from jax.sharding import Mesh

from alpa_runtime.backends.gpus import HOST_LIMIT, host_limit_bytes
from alpa_runtime.backends.interface import Backend, Job, Meshes, Program, Progress, axis_sizes
from alpa_runtime.backends.xla import (
    Device,
    XlaBackend,
    mesh_devices,
    mlir_type,
    named_sharding,
    num_bytes,
    put_shards,
)
from alpa_runtime.errors import InfeasiblePlanError, PlanMismatchError
from alpa_runtime.execution.program_merge import (
    Accumulate,
    Copy,
    Exchange,
    MergedStep,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
)
from alpa_runtime.plan import Plan
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from alpa_runtime.plan.text import bytes_text

_mlir: Any = mlir
_PREFIX = "alpa."
_ALIASING = ("tf.aliasing_output", "jax.buffer_donor")


@dataclass(frozen=True)
class FunctionText:
    """One function of a stage module as a module of its own, and its tensor types."""

    text: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]


def split_functions(
    text: str,
    donated: Mapping[str, Sequence[tuple[int, int]]],
    where: str,
    sums: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, FunctionText]:
    """Every public function of a stage module, made the `main` of a module of its own.

    Args:
        text: a module as the exporter writes it.
        donated: for each function the pairs (input, output) of which the output takes over
            the input's buffer.
        where: the file's name, for messages.
        sums: for each function the outputs to which a further input is added, behind its own
            inputs; they are held alike. `FunctionText.inputs` does not list them.

    Raises:
        PlanMismatchError: the text is no module that XLA could compile.
    """
    ir = _mlir.ir
    with _mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(text).operation
        except ir.MLIRError as error:
            first = str(error).strip().splitlines()
            raise PlanMismatchError(
                f"the stage's module cannot be read: {' '.join(first[:3])}",
                where=where,
                fix="write the plan again with Plan.save",
            ) from None
        sums = {} if sums is None else sums
        names = _function_names(module)
        return {
            name: _single_function(
                ir, module.clone(), names, name, donated.get(name, ()), sums.get(name, ())
            )
            for name in names
        }


def _functions(module: Any) -> list[Any]:
    return [op for op in module.regions[0].blocks[0] if op.operation.name == "func.func"]


def _function_names(module: Any) -> list[str]:
    names: list[str] = []
    for op in _functions(module):
        attributes = op.operation.attributes
        if "sym_visibility" not in attributes or '"private"' not in str(
            attributes["sym_visibility"]
        ):
            names.append(str(attributes["sym_name"]).strip('"'))
    return names


def _single_function(
    ir: Any,
    module: Any,
    names: Sequence[str],
    name: str,
    donated: Sequence[tuple[int, int]],
    sums: Sequence[int],
) -> FunctionText:
    """Function `name` of a module whose public functions are `names`; changes the module."""
    _strip(module.attributes)
    result: FunctionText | None = None
    for op in _functions(module):
        attributes = op.operation.attributes
        found = str(attributes["sym_name"]).strip('"')
        if found == name:
            attributes["sym_name"] = ir.StringAttr.get("main")
            attributes["sym_visibility"] = ir.StringAttr.get("public")
            type_ = _function_type(ir, op.operation)
            result = FunctionText("", _tensor_types(type_.inputs), _tensor_types(type_.results))
            if all(output < len(type_.results) for output in sums):
                _add_inputs(ir, op.operation, sums)
                _set_attributes(ir, op.operation, dict(donated))
        elif found in names:
            op.operation.erase()
    assert result is not None
    return FunctionText(module.get_asm(), result.inputs, result.outputs)


def _strip(attributes: Any) -> None:
    for key in [a.name if hasattr(a, "name") else a for a in attributes]:
        if key.startswith(_PREFIX):
            del attributes[key]


def _function_type(ir: Any, function: Any) -> Any:
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _attributes_of(ir: Any, function: Any, key: str, count: int) -> list[Any]:
    """The dictionaries of a function's arguments or results."""
    if key in function.attributes:
        return list(ir.ArrayAttr(function.attributes[key]))
    return [ir.DictAttr.get({})] * count


def _add_inputs(ir: Any, function: Any, sums: Sequence[int]) -> None:
    """The function adds a further input to each of these outputs."""
    if not sums:
        return
    type_ = _function_type(ir, function)
    results = list(type_.results)
    given = _attributes_of(ir, function, "arg_attrs", len(type_.inputs))
    gives = _attributes_of(ir, function, "res_attrs", len(results))
    block = function.regions[0].blocks[0]
    return_ = block.operations[len(block.operations) - 1].operation
    added = [results[output] for output in sums]
    with ir.InsertionPoint(return_), ir.Location.unknown():
        for output, tensor in zip(sums, added, strict=True):
            further = block.add_argument(tensor, ir.Location.unknown())
            stack = _zero_stack(ir, return_.operands[output])
            if stack is not None:
                _add_to_rows(ir, stack, further)
                continue
            term = return_.operands[output]
            waits = _waits_for(term)
            sum_ = ir.Operation.create("stablehlo.add", results=[tensor], operands=[further, term])
            return_.operands[output] = sum_.result
            if waits and _op_of(term.owner) is not None:
                sum_.move_after(_op_of(term.owner))
                for barrier, number in waits:
                    barrier.operands[number] = sum_.result
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([*type_.inputs, *added], results)
        )
    given += [gives[output] for output in sums]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(given)


def _waits_for(value: Any) -> list[tuple[Any, int]]:
    """Barriers behind which others wait for a value that these do not read, and its operands there:
    they may as well wait for a sum of it, which is then made at once, in the sum's own buffer."""
    return [
        (op, use.operand_number)
        for use in value.uses
        if (op := _op_of(use.owner)).name == "stablehlo.optimization_barrier"
        and not list(op.results[use.operand_number].uses)
    ]


@dataclass(frozen=True)
class _ZeroStack:
    """Zeros into which a loop, and updates behind it, put rows of dimension 0, each once."""

    loop: Any
    index: int  # Which of the loop's values it is.
    updates: Sequence[Any]


_UPDATE = "stablehlo.dynamic_update_slice"


def _op_of(owner: Any) -> Any:
    """An op as such, also where bindings know its kind; none of a block."""
    return None if hasattr(owner, "operations") else getattr(owner, "operation", owner)


def _held(value: Any) -> tuple[Any, Any]:
    """What constraints of how a value is held are about, and the op that makes it."""
    while (op := _op_of(value.owner)) is not None and op.name == "sdy.sharding_constraint":
        value = op.operands[0]
    return value, op


def _num_uses(value: Any) -> int:
    """How often a value is used, constraints of how it is held aside."""
    count = 0
    for use in value.uses:
        op = _op_of(use.owner)
        count += _num_uses(op.results[0]) if op.name == "sdy.sharding_constraint" else 1
    return count


def _number(ir: Any, value: Any) -> int | float | None:
    """The one number of a constant, which may be spread; none of other values."""
    op = _held(value)[1]
    if op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = _held(op.operands[0])[1]
    if op is None or op.name != "stablehlo.constant":
        return None
    elements = op.attributes["value"]
    if not isinstance(elements, ir.DenseElementsAttr) or not elements.is_splat:
        return None
    number = elements.get_splat_value()
    return number.value if isinstance(number, ir.IntegerAttr | ir.FloatAttr) else None


def _end(block: Any) -> Any:
    return _op_of(block.operations[len(block.operations) - 1])


def _in_turn(ir: Any, loop: Any, index: Any) -> range | None:
    """What an index is in the iterations of a loop that counts with its first value."""
    condition, body = (region.blocks[0] for region in loop.regions)
    counter = body.arguments[0]
    goes_on, next_ = (_held(_end(block).operands[0])[1] for block in (condition, body))
    if (
        _number(ir, loop.operands[0]) != 0
        or goes_on is None
        or goes_on.name != "stablehlo.compare"
        or "LT" not in str(goes_on.attributes["comparison_direction"])
        or goes_on.operands[0] != condition.arguments[0]
        or not isinstance(count := _number(ir, goes_on.operands[1]), int)
        or next_ is None
        or next_.name != "stablehlo.add"
        or next_.operands[0] != counter
        or _number(ir, next_.operands[1]) != 1
    ):
        return None

    def line(value: Any) -> tuple[int, int] | None:
        """In the first iteration, and the step to the next one."""
        value, op = _held(value)
        number = _number(ir, value)
        if value == counter or isinstance(number, int):
            return (0, 1) if value == counter else (int(number or 0), 0)
        if op is None or op.name not in ("stablehlo.add", "stablehlo.subtract"):
            return None
        one, other = line(op.operands[0]), line(op.operands[1])
        if one is None or other is None:
            return None
        sign = 1 if op.name == "stablehlo.add" else -1
        return one[0] + sign * other[0], one[1] + sign * other[1]

    found = line(index)
    if found is None or found[1] == 0:
        return None
    return range(found[0], found[0] + found[1] * count, found[1])


def _puts_row(ir: Any, update: Any) -> bool:
    """Whether an update puts one row into a value that nothing else reads."""
    whole, row = _shape(update.operands[0]), _shape(update.operands[1])
    return (
        len(whole) > 0
        and row == (1, *whole[1:])
        and all(_number(ir, start) == 0 for start in list(update.operands)[3:])
        and _num_uses(_held(update.operands[0])[0]) == 1
    )


def _zero_stack(ir: Any, result: Any) -> _ZeroStack | None:
    """The zeros that a function's result is made of, if it is and nothing else reads it."""
    value, op = _held(result)
    if _num_uses(value) != 1:
        return None
    updates: list[Any] = []
    rows: list[int] = []
    while op is not None and op.name == _UPDATE:
        if not _puts_row(ir, op) or not isinstance(row := _number(ir, op.operands[2]), int):
            return None
        updates.append(op)
        rows.append(row)
        value, op = _held(op.operands[0])
    if op is None or op.name != "stablehlo.while":
        return None
    index = [value == each for each in op.results].index(True)
    condition, body = (region.blocks[0] for region in op.regions)
    made, inner = _held(_end(body).operands[index])
    if (
        _number(ir, op.operands[index]) != 0
        or _num_uses(condition.arguments[index]) > 0
        or inner is None
        or inner.name != _UPDATE
        or _held(inner.operands[0])[0] != body.arguments[index]
        or not _puts_row(ir, inner)
        or _num_uses(made) != 1
        or (turns := _in_turn(ir, op, inner.operands[2])) is None
    ):
        return None
    count = _shape(result)[0]
    if len(turns) > count or not all(0 <= row < count for row in (*rows, *turns)):
        return None
    if len({*rows, *turns}) < len(rows) + len(turns):
        return None
    return _ZeroStack(op, index, (*updates, inner))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.type.shape)


def _add_to_rows(ir: Any, stack: _ZeroStack, further: Any) -> None:
    """The stack begins as a further input, and each update adds to the row that is there."""
    stack.loop.operands[stack.index] = further
    for update in stack.updates:
        whole, row, *starts = update.operands
        with ir.InsertionPoint(update), ir.Location.unknown():
            there = ir.Operation.create(
                "stablehlo.dynamic_slice",
                results=[row.type],
                operands=[whole, *starts],
                attributes={"slice_sizes": ir.DenseI64ArrayAttr.get(_shape(row))},
            )
            sum_ = ir.Operation.create(
                "stablehlo.add", results=[row.type], operands=[there.result, row]
            )
        update.operands[1] = sum_.result


def _set_attributes(ir: Any, function: Any, donated: dict[int, int]) -> None:
    """Drops the compiler's own attributes and writes down which output takes which buffer."""
    _strip(function.attributes)
    type_ = _function_type(ir, function)
    for key, types, pairs in (
        ("arg_attrs", type_.inputs, donated),
        ("res_attrs", type_.results, dict[int, int]()),
    ):
        if not len(types):
            continue
        new: list[Any] = []
        for i, item in enumerate(_attributes_of(ir, function, key, len(types))):
            entries = {
                named.name: named.attr
                for named in ir.DictAttr(item)
                if not named.name.startswith(_PREFIX) and named.name not in _ALIASING
            }
            if i in pairs:
                integer = ir.IntegerType.get_signless(32)
                entries["tf.aliasing_output"] = ir.IntegerAttr.get(integer, pairs[i])
            new.append(ir.DictAttr.get(entries))
        function.attributes[key] = ir.ArrayAttr.get(new)


def _tensor_types(types: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    result: list[tuple[tuple[int, ...], str]] = []
    for type_ in types:
        match = re.fullmatch(r"tensor<((?:\d+x)*)(\w+(?:<\w+>)?)>", str(type_))
        if match is None:
            raise PlanMismatchError(f"tensor type {type_}, expected a static shape")
        shape = tuple(int(d) for d in match[1].split("x") if d)
        result.append((shape, match[2]))
    return tuple(result)


def stage_jobs(
    plan: Plan,
    donated: Mapping[tuple[int, str], Sequence[tuple[int, int]]],
    sums: Mapping[tuple[int, str], Sequence[int]] | None = None,
) -> dict[tuple[int, str], Job]:
    """One job for every function of every stage that some program runs.

    Args:
        donated: pairs (input, output) of which the output takes the buffer, for each of them.
        sums: outputs to which further inputs are added; none by default.

    Raises:
        PlanMismatchError: a module lacks a function or has other tensor types than the plan.
    """
    jobs: dict[tuple[int, str], Job] = {}
    for index, stage in enumerate(plan.stages):
        wanted = {name: pairs for (s, name), pairs in donated.items() if s == index}
        if not wanted:
            continue
        added = {name: (sums or {}).get((index, name), ()) for name in wanted}
        texts = split_functions(plan.modules[stage.module], wanted, stage.module, added)
        for name in wanted:
            if name not in texts:
                there = f"only {', '.join(sorted(texts))}" if texts else "nor any other"
                raise PlanMismatchError(f"no function {name!r}, {there}", where=stage.module)
            info = stage.functions[name]
            per_device = stage.export == "collectives"
            mesh = plan.meshes[stage.mesh] if per_device else None
            where = f"{stage.module}: @{name}"
            _check_types(texts[name], info.inputs, info.outputs, where, mesh)
            jobs[index, name] = Job(
                f"stage {index} {name}",
                texts[name].text,
                stage.mesh,
                (*info.inputs, *[info.outputs[output] for output in added[name]]),
                info.outputs,
                per_device,
            )
    return jobs


def _check_types(
    text: FunctionText,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    where: str,
    mesh: MeshInfo | None,
) -> None:
    """Of whole tensors, or with a mesh of the parts that its devices hold."""
    for kind, found, tensors in (
        ("input", text.inputs, inputs),
        ("output", text.outputs, outputs),
    ):
        types = [f"tensor<{''.join(f'{d}x' for d in shape)}{dtype}>" for shape, dtype in found]
        wanted = [
            mlir_type(tensor if mesh is None else part_of(tensor, mesh)) for tensor in tensors
        ]
        if len(types) != len(wanted):
            raise PlanMismatchError(
                f"{len(types)} {kind}s, plan.json lists {len(wanted)}", where=where
            )
        for i, (a, b) in enumerate(zip(types, wanted, strict=True)):
            if a != b:
                raise PlanMismatchError(f"{kind} {i} is {a}, plan.json says {b}", where=where)


def part_of(tensor: TensorSpec, mesh: MeshInfo) -> TensorSpec:
    """What one device of the mesh holds of a tensor.

    Example:
        >>> mesh = MeshInfo((2, 2), ("x", "y"), (0, 1, 2, 3))
        >>> part_of(TensorSpec((8, 6), "float32", (("x", "y"), ())), mesh).shape
        (2, 6)
    """
    sizes = dict(zip(mesh.axes, mesh.shape, strict=True))
    shape = tuple(
        size // prod(sizes[axis] for axis in axes)
        for size, axes in zip(tensor.shape, tensor.spec, strict=True)
    )
    return TensorSpec(shape, tensor.dtype, ((),) * len(shape))


def compile_jobs(
    jobs: Sequence[Job],
    meshes: Meshes,
    progress: Progress | None = None,
    backend: Backend | None = None,
) -> list[Program]:
    """Compile in parallel threads; equal texts for equal meshes of equal devices are compiled once.

    Args:
        progress: called with (done, total, label) after each compiled text.
        backend: by default XLA, which compiles everything anew.
    """
    backend = XlaBackend() if backend is None else backend
    groups: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        mesh = meshes[job.mesh]
        kinds = tuple(device.device_kind for device in mesh_devices(mesh))
        key = (job.text, job.per_device, job.of_stage, axis_sizes(mesh), kinds)
        groups.setdefault(key, []).append(i)
    result: list[Program | None] = [None] * len(jobs)
    # The longest to compile first, so that none of them is left alone at the end.
    largest_first = sorted(groups.values(), key=lambda members: -len(jobs[members[0]].text))
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        pending = {
            pool.submit(backend.build, [jobs[i] for i in members], meshes): members
            for members in largest_first
        }
        for done, future in enumerate(as_completed(pending), 1):
            members = pending[future]
            for i, program in zip(members, future.result(), strict=True):
                result[i] = program
            if progress is not None:
                progress(done, len(groups), jobs[members[0]].label)
    finally:
        pool.shutdown(cancel_futures=True)
    return [program for program in result if program is not None]


_jax: Any = jax


def run_once(
    jobs: Sequence[Job],
    arguments: Sequence[Any],
    meshes: Mapping[int, Mesh],
    backend: Backend | None = None,
) -> list[list[jax.Array]]:
    """Compile and run programs; results are futures.

    Args:
        jobs: all take the same arguments, whole on every device.
        arguments: arrays of NumPy.
        meshes: of the jobs, by number in the plan.

    Returns:
        The results of each program.
    """
    numbers = list(meshes)
    own = [
        Job(job.label, job.text, numbers.index(job.mesh), job.inputs, job.outputs, job.per_device)
        for job in jobs
    ]
    compiled = compile_jobs(own, list(meshes.values()), None, backend)
    results: list[list[jax.Array]] = []
    for job, program in zip(jobs, compiled, strict=True):
        mesh = meshes[job.mesh]
        own = [d for d in mesh_devices(mesh) if d.process_index == _jax.process_index()]
        placed = [
            # Not device_put: other processes of the mesh have nothing to compare with.
            put_shards(tensor, named_sharding(mesh, tensor), [np.asarray(x)] * len(own), own)
            for x, tensor in zip(arguments, job.inputs, strict=True)
        ]
        results.append(program.call(placed))
    return results


@dataclass(frozen=True)
class CompiledPeak:
    """When a device of a mesh needs the most.

    Attributes:
        held_bytes: of values that the step holds then, the program's arguments among them.
        program_bytes: what the running program adds: results and temporaries.
        label: the program.
    """

    mesh: int
    held_bytes: int
    program_bytes: int
    label: str

    @property
    def bytes(self) -> int:
        return self.held_bytes + self.program_bytes


def compiled_peaks(
    plan: Plan, step: MergedStep, programs: Mapping[tuple[int, str], int], donate_state: bool = True
) -> list[CompiledPeak]:
    """The peak of each mesh, in the order of meshes.

    Args:
        programs: bytes of each (stage, function): arguments, results and temporaries together, as
            `Program.memory_bytes` gives them.
        donate_state: whether a call uses up carried state; the caller has what it does not use up.
    """
    sizes = [
        0 if value.tensor.on_host else num_bytes(part_of(value.tensor, plan.meshes[value.mesh]))
        for value in step.values
    ]
    held = [0] * len(plan.meshes)
    peaks = [CompiledPeak(mesh, 0, 0, "nothing") for mesh in range(len(plan.meshes))]

    def add(value: int) -> None:
        held[step.values[value].mesh] += sizes[value]

    def note(mesh: int, added: int, label: str) -> None:
        if held[mesh] + added > peaks[mesh].bytes:
            peaks[mesh] = CompiledPeak(mesh, held[mesh], added, label)

    state = [
        action
        for action in step.actions
        if isinstance(action, Place) and plan.inputs[action.arg].kind == "state"
    ]
    for place in state:
        add(place.value)
    of_caller = {
        place.value
        for place in state
        if not donate_state or plan.inputs[place.arg].carried_by is None
    }
    for action in step.actions:
        made = action.makes
        match action:
            case Place():
                if plan.inputs[action.arg].kind != "state":
                    add(action.value)
                continue
            case Run():
                mesh = plan.stages[action.stage].mesh
                arguments = sum(sizes[v] for v in set(action.inputs))
                added = max(0, programs[action.stage, action.function] - arguments)
                note(mesh, added, f"stage {action.stage} {action.function}")
            case Accumulate():
                added = sum(sizes[v] for v, left, _ in action.sums if left not in action.last)
                note(action.mesh, added, "sums of micro-batches")
            case Send():
                pass
            case Zero():
                mesh = step.values[made[0]].mesh
                note(mesh, sum(sizes[v] for v in made), "sums of micro-batches")
            case Reshard() | Copy() | Exchange():
                for value in made:
                    note(step.values[value].mesh, sizes[value], "values between stages")
        for value in made:
            add(value)
        for value in action.last:
            if value not in of_caller:
                held[step.values[value].mesh] -= sizes[value]
    return peaks


def _own_devices(mesh: Mesh) -> list[Device]:
    """Those of this process."""
    return [d for d in mesh_devices(mesh) if d.process_index == d.client.process_index()]


def device_limits(meshes: Mapping[int, Mesh]) -> dict[int, int]:
    """Bytes that the weakest own device of each mesh gives to programs, where that is known: the
    CPU does not say."""
    limits: dict[int, int] = {}
    for number, mesh in meshes.items():
        known: list[int] = []
        for device in _own_devices(mesh):
            statistics: dict[str, int] = device.memory_stats() or {}
            known += [n for n in [statistics.get("bytes_limit")] if n]
        if known:
            limits[number] = min(known)
    return limits


def check_peaks(
    plan: Plan, peaks: Sequence[CompiledPeak], limits: Mapping[int, int], target: str
) -> None:
    """Refuse a plan of which a mesh's devices have too little memory.

    Args:
        limits: bytes of a device of each mesh, where that is known.
        target: what the programs were compiled for.

    Raises:
        InfeasiblePlanError: names the program, the bytes and the device's.
    """
    for peak in peaks:
        limit = limits.get(peak.mesh)
        if limit is not None and peak.bytes > limit:
            raise InfeasiblePlanError(
                f"{peak.label} compiled for {target} needs {bytes_text(peak.bytes)} on a device of "
                f"{bytes_text(limit)}: {bytes_text(peak.held_bytes)} that the step holds then, "
                f"{bytes_text(peak.program_bytes)} of results and temporaries",
                where=f"plan of {plan.name}, mesh {peak.mesh}",
                fix="plan with more micro-batches or a smaller memory_fraction",
            )


def check_memory(
    plan: Plan,
    step: MergedStep,
    programs: Mapping[tuple[int, str], Program],
    meshes: Mapping[int, Mesh],
    donate_state: bool,
) -> None:
    """Refuse a plan that does not fit into the memory of the devices of its meshes.

    Raises:
        InfeasiblePlanError: see `check_peaks`.
    """
    limits = device_limits(meshes)
    if limits:
        needed = {key: program.memory_bytes() for key, program in programs.items()}
        devices = [d for mesh in meshes.values() for d in mesh_devices(mesh)]
        kinds = ", ".join(sorted({device.device_kind for device in devices}))
        peaks = compiled_peaks(plan, step, needed, donate_state)
        check_peaks(plan, peaks, limits, kinds)
    _check_host_memory(plan, meshes)


def _check_host_memory(plan: Plan, meshes: Mapping[int, Mesh]) -> None:
    """Refuse a plan that keeps more on the host than JAX's GPUs of this process may take there."""
    needed = 0.0
    for stage in plan.stages:
        own = _own_devices(meshes[stage.mesh]) if stage.mesh in meshes else []
        gpus = sum(device.platform == "gpu" for device in own)
        needed += gpus * stage.predicted.get("host_bytes", 0.0)
    limit = host_limit_bytes(os.environ)
    if needed > limit:
        raise InfeasiblePlanError(
            f"{bytes_text(needed)} that the plan keeps in the memory of this process's host are "
            f"more than the {bytes_text(limit)} that JAX gives its GPUs there",
            where=f"plan of {plan.name}",
            fix=f"set {HOST_LIMIT}={ceil(1.25 * needed / 2**30)}, in GiB, before Python starts",
        )
