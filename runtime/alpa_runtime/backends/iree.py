"""Stages on one device of the CPU: compiled by IREE in another process, run on JAX's buffers."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir
from jax.sharding import Mesh

from alpa_runtime.backends.interface import Job, Meshes, Program
from alpa_runtime.backends.xla import host_cpu, mesh_devices, named_sharding, num_bytes, put_shards
from alpa_runtime.cache import CompiledCache
from alpa_runtime.errors import BackendError
from alpa_runtime.foreign_errors import first_iree_error
from alpa_runtime.jax_internals import array_of_capsule, shards_of
from alpa_runtime.plan.plan import key_of

_mlir: Any = mlir
# Without these IREE computes in float32 what the program computes in float64.
_EXACT = ("--iree-input-demote-f64-to-f32=false", "--iree-input-demote-i64-to-i32=false")
# It warns of every select_and_scatter.
_QUIET = ("--iree-global-opt-enable-warn-on-uninitialized-values=false",)
# IREE 3.13 fails on some sums in backward functions when it distributes them as vectors.
_CUDA_RETRY = ("--iree-codegen-llvmgpu-use-reduction-vector-distribution=false",)
_FORM = "alpa_mlir.iree 1"


@dataclass(frozen=True)
class IreeBinary:
    """A compiled module.

    Attributes:
        module: IREE's flatbuffer.
        transient_bytes: what IREE says it allocates on a device besides arguments, results and
            constants.
        constant_bytes: constants of the module on a device.
    """

    module: bytes
    transient_bytes: int
    constant_bytes: int

    def to_bytes(self) -> bytes:
        """All of it; `from_bytes` reads it back."""
        head = {"form": _FORM, "transient": self.transient_bytes, "constant": self.constant_bytes}
        return json.dumps(head).encode() + b"\n" + self.module

    @classmethod
    def from_bytes(cls, data: bytes) -> IreeBinary:
        """Read what `to_bytes` wrote.

        Raises:
            ValueError: it is something else.
        """
        line, _, module = data.partition(b"\n")
        try:
            head = json.loads(line)
            if head["form"] == _FORM:
                return cls(module, int(head["transient"]), int(head["constant"]))
        except (KeyError, TypeError):
            pass
        raise ValueError("no binary of IREE")


def iree_version() -> str:
    """Versions of IREE's compiler and runtime.

    Raises:
        BackendError: they are not installed.
    """
    try:
        return f"{version('iree-base-compiler')} {version('iree-base-runtime')}"
    except PackageNotFoundError as error:
        raise BackendError(
            f"the package {error.name} is not installed",
            where="backend iree",
            fix="pip install 'alpa-mlir[iree]'",
        ) from None


def plain_text(text: str) -> tuple[str, tuple[int, ...]]:
    """A module's text without shardings and without buffers that are given away.

    Returns:
        The text, and the arguments of `main` whose buffers it gave away.
    """
    ir = _mlir.ir
    with _mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text)
        given: list[int] = []
        doomed: list[Any] = []

        def visit(op: Any) -> Any:
            name = op.name
            if name == "sdy.mesh":
                doomed.append(op)
            elif name == "sdy.sharding_constraint" or _is_copy(op):
                op.results[0].replace_all_uses_with(op.operands[0])
                doomed.append(op)
            for key in list(op.attributes):
                if key.startswith(("sdy.", "mhlo.")):
                    del op.attributes[key]
            if name == "func.func":
                given.extend(_strip_signature(ir, op))
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for op in doomed:
            op.erase()
        return module.operation.get_asm(), tuple(given)


def _is_copy(op: Any) -> bool:
    """Between a device and its host's memory, which IREE does not tell apart."""
    target = op.attributes["call_target_name"] if op.name == "stablehlo.custom_call" else None
    return target is not None and target.value == "annotate_device_placement"


def _strip_signature(ir: Any, function: Any) -> list[int]:
    """Leaves names and types; the arguments whose buffers were given away."""
    given: list[int] = []
    for key in ("arg_attrs", "res_attrs"):
        if key not in function.attributes:
            continue
        for i, item in enumerate(ir.ArrayAttr(function.attributes[key])):
            names = {named.name for named in ir.DictAttr(item)}
            if key == "arg_attrs" and names & {"tf.aliasing_output", "jax.buffer_donor"}:
                given.append(i)
        del function.attributes[key]
    return given


def iree_parts(text: str, target: str, version: str) -> dict[str, str]:
    """All that a binary depends on; for `"host"` the host's processor comes to it."""
    return {"compiler": "iree", "version": version, "text": text, "target": target}


def target_options(target: str) -> tuple[str, ...]:
    """IREE's options for `"host"`, this machine's processor, or a GPU such as `"sm_80"`."""
    if target == "host":
        return (
            "--iree-hal-target-device=local",
            "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
        )
    return ("--iree-hal-target-device=cuda", f"--iree-cuda-target={target}")


def compile_binary(text: str, target: str, where: str) -> IreeBinary:
    """Compile a module without shardings.

    Args:
        target: see `target_options`.
        where: what is compiled, for messages.

    Raises:
        BackendError: IREE is not installed, or cannot compile it.
    """
    iree_version()
    tools: Any = import_module("iree.compiler")
    first = (*_EXACT, *_QUIET, *target_options(target))
    attempts = [first] if target == "host" else [first, (*first, *_CUDA_RETRY)]
    reason = ""
    for options in attempts:
        with tempfile.TemporaryDirectory(prefix="alpa-mlir-iree-") as folder:
            statistics = Path(folder) / "statistics.json"
            try:
                module = tools.compile_str(
                    text,
                    input_type="stablehlo",
                    extra_args=[
                        *options,
                        "--iree-scheduling-dump-statistics-format=json",
                        f"--iree-scheduling-dump-statistics-file={statistics}",
                    ],
                )
            except tools.CompilerToolError as error:
                reason = reason or first_iree_error(error)
                continue
            found = json.loads(statistics.read_text())["stream-aggregate"]
            sizes = found["execution"]["transient-memory-size"], found["global"]["constant-size"]
            return IreeBinary(bytes(module), *sizes)
    raise BackendError(
        f"IREE cannot compile it for {target}: {reason}",
        where=where,
        fix='use backend="xla" for this plan',
    )


_jax: Any = jax
_DLPACK_CPU = 1


class IreeBackend:
    """IREE, programs that were compiled ahead of time, and a cache of what it made before.

    Args:
        cache: None to keep nothing.
        shipped: programs by their key.
    """

    name = "iree"

    def __init__(
        self, cache: CompiledCache | None = None, shipped: Mapping[str, bytes] | None = None
    ) -> None:
        self._cache = cache
        self._shipped: Mapping[str, bytes] = {} if shipped is None else shipped
        self._version = iree_version()

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """Compile jobs that have one text; see `Backend`.

        Raises:
            BackendError: a mesh has several devices or one that is no CPU, or IREE cannot
                compile the text.
        """
        for job in jobs:
            _check_mesh(job, meshes[job.mesh])
        text, given = plain_text(jobs[0].text)
        binary = self._binary(text, jobs[0].label)
        return [IreeProgram(binary, job, meshes[job.mesh], given) for job in jobs]

    def ships(self, job: Job) -> bool:
        """Whether a job was compiled ahead of time for this host."""
        parts = self._parts(plain_text(job.text)[0])
        return parts is not None and key_of(parts) in self._shipped

    def _parts(self, text: str) -> dict[str, str] | None:
        host = host_cpu()
        return None if host is None else iree_parts(text, "host", self._version) | {"host": host}

    def _binary(self, text: str, where: str) -> IreeBinary:
        parts = self._parts(text)
        if parts is not None and key_of(parts) in self._shipped:
            try:
                return IreeBinary.from_bytes(self._shipped[key_of(parts)])
            except ValueError as error:
                warnings.warn(f"{where} is compiled again: {error}", stacklevel=2)
        cache = self._cache
        if cache is None or parts is None:
            return compile_binary(text, "host", where)
        data = cache.get(parts)
        if data is not None:
            try:
                return IreeBinary.from_bytes(data)
            except ValueError as error:
                cache.drop(parts, str(error))
        binary = compile_binary(text, "host", where)
        cache.put(parts, binary.to_bytes())
        return binary


def _check_mesh(job: Job, mesh: Mesh) -> None:
    devices = mesh_devices(mesh)
    if len(devices) > 1:
        raise BackendError(
            f"IREE runs stages on one device, this one has {len(devices)}",
            where=job.label,
            fix='use backend="xla", or plan meshes of one device '
            "(PipeshardParallel(submeshes=[(1, 1), ..]))",
        )
    if devices[0].platform != "cpu":
        raise BackendError(
            f"IREE runs stages on the CPU, this device is {devices[0]}",
            where=job.label,
            fix='use backend="xla"',
        )


class IreeProgram:
    """A program of IREE on a device of JAX's CPU.

    It reads JAX's buffers and its results are JAX's arrays, without copies. A call returns when
    the work is done, and does not hold the interpreter's lock meanwhile.
    """

    def __init__(
        self,
        binary: IreeBinary,
        job: Job,
        mesh: Mesh,
        given: Sequence[int],
    ) -> None:
        rt, instance, device = _runtime()
        self._rt, self._device = rt, device
        module = rt.VmModule.copy_buffer(instance, binary.module)
        hal = rt.create_hal_module(instance, device)
        self._context = rt.VmContext(instance, modules=[hal, module])
        self._main = module.lookup_function("main")
        self._devices = mesh_devices(mesh)
        self._outputs = [(tensor, named_sharding(mesh, tensor)) for tensor in job.outputs]
        self._given = tuple(given)
        self._label = job.label
        own = sum(map(num_bytes, (*job.inputs, *job.outputs)))
        self._bytes = own + binary.transient_bytes + binary.constant_bytes

    def call(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Run; see `Program`."""
        rt = self._rt
        _jax.block_until_ready(args)
        given = rt.VmVariantList(len(args))
        for x in args:
            given.push_ref(self._device.from_dlpack_capsule(shards_of(x)[0].__dlpack__()))
        made = rt.VmVariantList(len(self._outputs))
        try:
            self._context.invoke(self._main, given, made)
        except (RuntimeError, ValueError) as error:
            raise BackendError(
                f"IREE failed: {str(error).splitlines()[0]}",
                where=self._label,
                fix='use backend="xla" for this plan',
            ) from None
        results: list[jax.Array] = []
        for i, (tensor, sharding) in enumerate(self._outputs):
            # Mapped into NumPy, memory would not keep the buffer alive; a capsule does.
            view = made.get_as_object(i, rt.HalBufferView)
            capsule = self._device.create_dlpack_capsule(view, _DLPACK_CPU, 0)
            part: Any = array_of_capsule(capsule, self._devices[0])
            if tensor.on_host:  # Another memory of the CPU, which JAX does not copy to by itself.
                part = np.asarray(part)
            results.append(put_shards(tensor, sharding, [part], self._devices))
        for i in self._given:
            if not args[i].is_deleted():
                args[i].delete()
        return results

    def memory_bytes(self) -> int:
        """Arguments, results, constants and what IREE says it allocates besides."""
        return self._bytes

    def memory_stats(self) -> dict[str, int]:
        """IREE does not tell the parts."""
        raise BackendError(
            "IREE tells the memory of a program, not its parts",
            where="memory_analysis",
            fix="look at step.as_text()",
        )


@cache
def _runtime() -> tuple[Any, Any, Any]:
    """IREE's runtime, an instance of it and its device for the CPU: all programs share threads."""
    rt: Any = import_module("iree.runtime")
    return rt, rt.VmInstance(), rt.get_device("local-task")
