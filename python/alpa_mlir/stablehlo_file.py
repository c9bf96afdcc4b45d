"""Steps that come as StableHLO: from other frameworks, from `jax.export`, or from files that passes
wrote.

`@main` is the program of the whole batch. What its arguments and results are, either the file says
with the attributes of docs/ir.md, or its reader does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jax.numpy
from alpa_runtime import trees
from alpa_runtime.calling_convention import Aval
from alpa_runtime.plan.tensor import numpy_name
from jaxlib.mlir import ir

from alpa_mlir.compiler import Module
from alpa_mlir.errors import ModuleSyntaxError, TraceError
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.stages import Options, TracedStep
from alpa_mlir.trace import portable
from alpa_mlir.trace.tracing import Input, Output, Signature, Traced

_ir: Any = ir
_jnp: Any = jax.numpy


@dataclass(frozen=True)
class _Port:
    """An argument or a result of `@main`."""

    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any]


def read_stablehlo(
    path: str | Path,
    *,
    batches: Sequence[int] | None = None,
    carried: Mapping[int, int] | None = None,
    method: Method | None = None,
    options: Options | None = None,
) -> TracedStep:
    """Read a step from a file; `plan` goes on, as with a function.

    The file is text, or a portable artifact of StableHLO (`mlir_module_serialized` of
    `jax.export`). Its arguments are those of `@main`, its results the tuple of `@main`'s results.

    Args:
        batches: numbers of the arguments that may be split into micro-batches; by default what the
            file says, else the last one.
        carried: by number of a state argument the result that is its value for the next step.
        method: how `plan` plans by default.

    Raises:
        ModuleSyntaxError: the file cannot be read, or is no module with `@main`.
        UnsupportedOpError: it holds an op that the dialects do not define.
        TraceError: an argument or result does not exist, or they do not go together.

    Example:
        >>> step = read_stablehlo("model.mlir", batches=[5])         # doctest: +SKIP
        >>> step.plan("dgx-a100").save("my_plan")                    # doctest: +SKIP
    """
    path = Path(path)
    text = _read(path)
    where = str(path)
    name, arguments, results = _main(text, where)
    inputs = _inputs(arguments, len(results), batches, carried or {}, where)
    outputs = tuple(
        Output(str(port.attributes.get("alpa.name", f"result[{number}]")), port.shape, port.dtype)
        for number, port in enumerate(results)
    )
    try:
        signature = Signature(name, inputs, outputs)
    except ValueError as error:
        raise TraceError(str(error), where=where, fix="look at what is carried") from None
    traced = Traced(
        text,
        signature,
        trees.structure(tuple(range(len(inputs)))),
        trees.structure(tuple(range(len(outputs)))),
        tuple(_leaf(x) for x in inputs),
        tuple(_leaf(x) for x in outputs),
        (),
        1,
        {},
        False,
        (),
        0,
        None,
    )
    return TracedStep(None, options or Options(), traced, method=method or AutoParallel())


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModuleSyntaxError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if data.startswith(portable.BYTECODE):
        return portable.text_of(data, str(path))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ModuleSyntaxError(
            "is neither text in UTF-8 nor MLIR's bytecode",
            where=str(path),
            fix="give what stablehlo or `jax.export` wrote",
        ) from None


def _check_words(text: str, where: str) -> None:
    """JAX's MLIR ends the process where a name or a string is no text.

    Raises:
        ModuleSyntaxError: one is not.
    """
    if not re.search(r"\\[89A-F][0-9A-F]", text):
        return
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"', text):
        data = re.sub(rb"\\([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), found[0].encode())
        try:
            data.decode()
        except UnicodeDecodeError:
            raise ModuleSyntaxError(
                f"{found[0][:100]} is no text in UTF-8", where=where, fix="name it otherwise"
            ) from None


def _main(text: str, where: str) -> tuple[str, list[_Port], list[_Port]]:
    """The step's name, and arguments and results of `@main`, read by JAX's MLIR from what our
    parser understood."""
    generic = Module(text, where).as_text(generic=True)
    _check_words(generic, where)
    with _ir.Context() as context:
        context.allow_unregistered_dialects = True
        module = _ir.Module.parse(generic)
        for op in module.body.operations:
            operation = op.operation
            if operation.name != "func.func":
                continue
            attributes = operation.attributes
            if _ir.StringAttr(attributes["sym_name"]).value != "main":
                continue
            kind = _ir.FunctionType(_ir.TypeAttr(attributes["function_type"]).value)
            own = module.operation.attributes
            # As the exporter names the plan.
            name = _plain(own["sym_name"]) if "sym_name" in own else "step"
            return (
                name.removeprefix("jit_"),
                _described(kind.inputs, attributes, "arg_attrs", where),
                _described(kind.results, attributes, "res_attrs", where),
            )
    raise ModuleSyntaxError(
        "the module has no function @main", where=where, fix="name the step's function main"
    )


def _described(types: Any, attributes: Any, name: str, where: str) -> list[_Port]:
    given: Any = attributes[name] if name in attributes else [None] * len(types)
    ports: list[_Port] = []
    for number, (kind, entry) in enumerate(zip(types, given, strict=True)):
        tensor = kind
        if not isinstance(kind, _ir.RankedTensorType) or not tensor.has_static_shape:
            what = "argument" if name == "arg_attrs" else "result"
            raise TraceError(
                f"{what} {number} is {kind}, expected a tensor of static shape", where=where
            )
        shape = tuple(int(size) for size in tensor.shape)
        dtype = numpy_name(str(tensor.element_type))
        if dtype is None:
            raise TraceError(f"elements of type {tensor.element_type} are not known", where=where)
        named = [] if entry is None else list(_ir.DictAttr(entry))
        found = {item.name: _plain(item.attr) for item in named}
        ports.append(_Port(shape, dtype, found))
    return ports


def _plain(attribute: Any) -> Any:
    if isinstance(attribute, _ir.StringAttr | _ir.IntegerAttr):
        return attribute.value
    return True


def _inputs(
    arguments: Sequence[_Port],
    num_results: int,
    batches: Sequence[int] | None,
    carried: Mapping[int, int],
    where: str,
) -> tuple[Input, ...]:
    size = len(arguments)
    if not size:
        raise TraceError("@main has no arguments", where=where)
    for number in (*(batches or ()), *carried):
        if not 0 <= number < size:
            raise TraceError(
                f"there is no argument {number}", where=where, fix=f"use 0 to {size - 1}"
            )
    for number in carried.values():
        if not 0 <= number < num_results:
            raise TraceError(
                f"there is no result {number}", where=where, fix=f"use 0 to {num_results - 1}"
            )
    says = any("alpa.kind" in port.attributes for port in arguments)
    if batches is None and not says:
        batches = [size - 1]
    result: list[Input] = []
    for number, port in enumerate(arguments):
        told = port.attributes
        if batches is not None:
            kind = "batch" if number in batches else "state"
        else:
            kind = str(told.get("alpa.kind", "state"))
        if kind == "batch" and (not port.shape or number in carried):
            what = "has no dimension to split" if not port.shape else "is no state"
            raise TraceError(
                f"argument {number} is a batch, but {what}",
                where=where,
                fix="say which arguments are batches",
            )
        result.append(
            Input(
                str(told.get("alpa.name", f"arg{number}")),
                port.shape,
                port.dtype,
                cast(Any, kind),
                carried.get(number, told.get("alpa.carried_by")),
            )
        )
    return tuple(result)


def _leaf(port: Input | Output) -> Aval:
    return Aval(port.name, port.shape, _jnp.dtype(port.dtype), port.shape, port.dtype)
