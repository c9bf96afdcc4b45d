"""Runs programs of one device, or of all that XLA partitions, many of them in one XLA program, on
virtual devices."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.interpreters import mlir
from source_paths import BUILD

OPT = BUILD / "bin" / "alpa-opt"
Spec = tuple[tuple[int, ...], ...]  # For each dimension the mesh axes that split it, major first.
EXPAND = ("--alpa-expand-kernels", "--alpa-expand-maps", "--alpa-expand-grouped-dots")
RESHARD = ("--alpa-insert-reshards", "--alpa-verify-sharding")
COLLECTIVES = (*RESHARD, "--alpa-lower-to-collectives", *EXPAND)
#: XLA's partitioner makes the programs of the devices.
SHARDY = (*RESHARD, "--alpa-export-shardy", *EXPAND)


@dataclass(frozen=True)
class Program:
    """A function of one device, and how whole tensors are cut into its arguments and results; or a
    function of whole tensors with Shardy's annotations, `mesh` that of them."""

    label: str
    text: str  # `func.func private @NAME..`, where NAME stands for the function's name.
    arg_types: tuple[str, ...]
    result_types: tuple[str, ...]
    arg_specs: tuple[Spec, ...]
    result_specs: tuple[Spec, ...]
    mesh: str = ""
    arg_marks: tuple[str, ...] = ()
    result_marks: tuple[str, ...] = ()


def opt(text: str, *passes: str) -> str:
    """What alpa-opt makes of a module."""
    command = [str(OPT), "-", *passes]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:3000]}\n{text[:3000]}"
    return done.stdout


def parse_spec(text: str) -> Spec:
    """`#alpa.sharding<[S01, R]>` as `((0, 1), ())`."""
    inner = text[text.index("[") + 1 : text.rindex("]")]
    return tuple(tuple(int(c) for c in dim.strip()[1:]) for dim in inner.split(",") if dim.strip())


def programs(text: str, passes: Sequence[str] = COLLECTIVES) -> list[Program]:
    """The programs of the strategies in a module (`alpa-test-apply-strategies`)."""
    ir: Any = mlir.ir
    found: list[Program] = []
    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(opt(text, *passes))
        for part in module.body.operations:
            *mesh, function = part.operation.regions[0].blocks[0].operations
            name = part.operation.attributes["sym_name"].value
            found.append(program(name, function.operation, "".join(map(str, mesh))))
    return found


def program(label: str, function: Any, mesh: str = "") -> Program:
    """One function with its shardings, without the attributes that XLA does not know."""
    ir: Any = mlir.ir

    def specs(name: str, types: Sequence[Any]) -> tuple[Spec, ...]:
        if name not in function.attributes:
            return tuple(() for _ in types)
        return tuple(parse_spec(str(entry["alpa.sharding"])) for entry in function.attributes[name])

    def marks(name: str) -> tuple[str, ...]:
        if not mesh or name not in function.attributes:
            return ()
        return tuple(str(entry["sdy.sharding"]) for entry in function.attributes[name])

    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arg_specs, result_specs = specs("arg_attrs", kind.inputs), specs("res_attrs", kind.results)
    arg_marks, result_marks = marks("arg_attrs"), marks("res_attrs")
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]

    def strip(op: Any) -> Any:
        for name in [name for name in op.attributes if name.startswith("alpa.")]:
            del op.attributes[name]
        return ir.WalkResult.ADVANCE

    function.walk(strip)
    function.attributes["sym_name"] = ir.StringAttr.get("NAME")
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    types = [tuple(str(t) for t in side) for side in (kind.inputs, kind.results)]
    return Program(
        label, str(function), *types, arg_specs, result_specs, mesh, arg_marks, result_marks
    )


def coordinates(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    """Of every device, in row-major order."""
    return list(itertools.product(*(range(size) for size in mesh)))


def piece(whole: np.ndarray, spec: Spec, mesh: Sequence[int], where: Sequence[int]) -> np.ndarray:
    """The part of a tensor that the device at `where` holds."""
    index = []
    for size, axes in zip(whole.shape, spec, strict=True):
        number, pieces = 0, 1
        for axis in axes:
            number = number * mesh[axis] + where[axis]
            pieces *= mesh[axis]
        assert size % pieces == 0, f"{spec} makes uneven pieces of {whole.shape}"
        index.append(slice(number * size // pieces, (number + 1) * size // pieces))
    return whole[tuple(index)]


def decompose_ragged_dots(text: str) -> str:
    """JAX's composition in place of each `chlo.ragged_dot`, which XLA's CPU backend lacks."""
    functions: list[str] = []

    def replace(match: re.Match[str]) -> str:
        def dims(name: str) -> list[int]:
            found = re.search(rf"{name}_dimensions = \[([\d, ]*)\]", match["numbers"])
            return [int(d) for d in found[1].split(",") if d.strip()] if found else []

        contracting = dims("lhs_contracting"), dims("rhs_contracting")
        batching = dims("lhs_batching"), dims("rhs_batching")
        numbers = jax.lax.RaggedDotDimensionNumbers(
            (contracting, batching), dims("lhs_ragged"), dims("rhs_group")
        )
        shapes = [
            jax.ShapeDtypeStruct([int(d) for d in dims.split("x")[:-1]], np.dtype(dtype))
            for dims, dtype in (
                (t, {"f32": "float32", "i32": "int32"}[t.rpartition("x")[2]])
                for t in re.findall(r"tensor<([^>]*)>", match["types"])
            )
        ]
        lowered = jax.jit(lambda *a: jax.lax.ragged_dot_general(*a, numbers)).lower(*shapes)
        lines = lowered.as_text().splitlines()[1:-1]  # Without the module around.
        name = f"ragged{len(functions)}"
        body = re.sub(r"@(\w+)", rf"@{name}_\1", "\n".join(lines).replace(" public ", " private "))
        functions.append(re.sub(r" \{jax\.result_info = [^}]*\}", "", body))
        return f"func.call @{name}_main({match['args']}) : {match['types']} -> "

    pattern = (
        r'"chlo\.ragged_dot"\((?P<args>[^)]*)\) <\{.*?ragged_dot<(?P<numbers>[^>]*)>.*?\}> : '
        r"(?P<types>\([^)]*\)) -> "
    )
    made = re.sub(pattern, replace, text)
    added = "\n".join(functions)
    if not made.startswith("module"):
        return f"{made}\n{added}"
    return f"{made.rstrip().removesuffix('}')}{added}\n}}\n"


def execute(
    batch: Sequence[Program], inputs: Sequence[Sequence[Any]], num_devices: int
) -> list[list[list[Any]]]:
    """Results of each program on each device: `[program][result][device]`.

    `inputs` has for each program and argument the parts of all devices, in order.
    """
    mesh_text = batch[0].mesh
    text, body, args, results = mesh_text, "", [], []

    def marked(type_: str, marks: Sequence[str], number: int) -> str:
        return f"{type_} {{sdy.sharding = {marks[number]}}}" if marks else type_

    for number, item in enumerate(batch):
        text += re.sub(r"@NAME\b", f"@p{number}", item.text) + "\n"
        names = [f"%a{number}_{i}" for i in range(len(item.arg_types))]
        args += [
            f"{n}: {marked(t, item.arg_marks, i)}"
            for i, (n, t) in enumerate(zip(names, item.arg_types, strict=True))
        ]
        kind = f"({', '.join(item.arg_types)}) -> ({', '.join(item.result_types)})"
        count = f":{len(item.result_types)}" if len(item.result_types) != 1 else ""
        body += f"%r{number}{count} = func.call @p{number}({', '.join(names)}) : {kind}\n"
        for i, type_ in enumerate(item.result_types):
            name = f"%r{number}#{i}" if count else f"%r{number}"
            results.append((name, type_, marked(type_, item.result_marks, i)))
    types = ", ".join(t for _, t, _ in results)
    text += (
        f"func.func public @main({', '.join(args)}) -> ({', '.join(m for *_, m in results)}) {{\n"
        f"{body}"
        f"return {', '.join(n for n, *_ in results)} : {types}\n}}"
    )
    devices = jax.devices("cpu")[:num_devices]
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    if mesh_text:
        build.num_partitions = options.num_partitions = num_devices
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
    else:
        options.num_replicas = num_devices
    build.debug_options.xla_backend_optimization_level = 0
    client: Any = devices[0].client
    text = decompose_ragged_dots(text)
    loaded = client.compile_and_load(text, xla_client.DeviceList(tuple(devices)), options)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays: list[Any] = []
    with jax.enable_x64(True):  # Or arrays of 64 bits lose half of them.
        for parts in itertools.chain.from_iterable(inputs):
            local = [jax.device_put(part, d) for part, d in zip(parts, devices, strict=True)]
            arrays.append(jax.make_array_from_single_device_arrays(local[0].shape, sharding, local))
    out = loaded.execute_sharded(arrays).disassemble_into_single_device_arrays()
    flat = iter([[np.asarray(part) for part in parts] for parts in out])
    return [[next(flat) for _ in item.result_types] for item in batch]
