"""Functions of a stage's module, each as a program's text of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.interpreters import mlir

from alpa_runtime.errors import PlanMismatchError

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
            operands = [block.add_argument(tensor, ir.Location.unknown()), return_.operands[output]]
            sum_ = ir.Operation.create("stablehlo.add", results=[tensor], operands=operands)
            return_.operands[output] = sum_.result
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([*type_.inputs, *added], results)
        )
    given += [gives[output] for output in sums]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(given)


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
