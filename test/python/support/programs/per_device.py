"""Programs of one device, run on every device of a mesh of virtual CPU devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from alpa_mlir.compiler import Module
from alpa_runtime.backends.xla import compile_text
from alpa_runtime.execution.compilation import split_functions
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LOWERING = "alpa-insert-reshards,alpa-verify-sharding,alpa-lower-to-collectives"
AXES = ("x", "y", "z")


def mesh_of(shape: Sequence[int]) -> Mesh:
    """The first virtual devices as a mesh."""
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), AXES[: len(shape)])


def partition(spec: str) -> P:
    """`[S0, R, S12]` as JAX writes it."""
    dims = [dim.strip() for dim in spec.strip("[]").split(",") if dim.strip()]
    return P(*[tuple(AXES[int(a)] for a in dim[1:]) if dim != "R" else None for dim in dims])


def signature_specs(text: str) -> tuple[list[str], list[str]]:
    """The specs of the arguments and of the results of the module's one function."""
    head = next(line for line in text.splitlines() if "func.func" in line)
    arguments, _, results = head.partition(") -> ")
    found = [
        re.findall(r"alpa\.sharding = #alpa\.sharding<(\[.*?\])>", x) for x in (arguments, results)
    ]
    return found[0], found[1]


def run(text: str, mesh_shape: Sequence[int], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Lower a module of one sharded function and run it, whole arrays in and out."""
    lowered = Module(text).run(LOWERING).as_text()
    return execute(lowered, mesh_shape, arguments)


def execute(
    lowered: str, mesh_shape: Sequence[int], arguments: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Run a lowered module; results are checked to be equal wherever they are repeated."""
    ins, outs = signature_specs(lowered)
    (function,) = split_functions(lowered, {}, "lowered module").values()
    return execute_function(function.text, ins, outs, mesh_shape, arguments)


def execute_function(
    text: str,
    ins: Sequence[str],
    outs: Sequence[str],
    mesh_shape: Sequence[int],
    arguments: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """The same for a module whose `main` takes and gives tensors of these specs."""
    mesh = mesh_of(mesh_shape)
    program = compile_text(text, mesh, per_device=True)
    placed = [
        jax.device_put(x, NamedSharding(mesh, partition(spec)))
        for x, spec in zip(arguments, ins, strict=True)
    ]
    handle: Any = program.execute_sharded(placed)
    shards = handle.disassemble_into_single_device_arrays()
    return [_join(parts, partition(spec), mesh) for parts, spec in zip(shards, outs, strict=True)]


def _join(parts: Sequence[Any], spec: P, mesh: Mesh) -> np.ndarray:
    local = [np.asarray(part) for part in parts]
    sizes = dict(zip(mesh.axis_names, mesh.devices.shape, strict=True))
    shape = list(local[0].shape)
    for dim, axes in enumerate(spec):
        shape[dim] *= int(np.prod([sizes[a] for a in axes or ()], dtype=int))
    whole = np.zeros(shape, local[0].dtype)
    known = np.zeros(shape, bool)
    indices = NamedSharding(mesh, spec).devices_indices_map(tuple(shape))
    for device, part in zip(mesh.devices.flat, local, strict=True):
        index = indices[device]
        np.testing.assert_array_equal(whole[index][known[index]], part[known[index]])
        whole[index] = part
        known[index] = True
    assert known.all()
    return whole


def put_whole(array: np.ndarray) -> jax.Array:
    """The array on the first device, as a mesh of one device holds it."""
    return jax.device_put(array, NamedSharding(mesh_of((1, 1)), P()))
