"""StableHLO text to IREE's binaries; the compiler runs as a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jax.interpreters import mlir

from alpa_runtime.errors import BackendError

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
            elif name == "sdy.sharding_constraint":
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
                reason = reason or _first_error(str(error))
                continue
            found = json.loads(statistics.read_text())["stream-aggregate"]
            sizes = found["execution"]["transient-memory-size"], found["global"]["constant-size"]
            return IreeBinary(bytes(module), *sizes)
    raise BackendError(
        f"IREE cannot compile it for {target}: {reason}",
        where=where,
        fix='use backend="xla" for this plan',
    )


def _first_error(message: str) -> str:
    lines: Sequence[str] = message.splitlines()
    found = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return (found or list(lines) or ["no reason given"])[0][:300]
