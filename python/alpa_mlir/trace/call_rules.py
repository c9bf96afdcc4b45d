"""Sharding rules that users give to calls that cannot be looked into."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from alpa_runtime import jax_internals
from alpa_runtime.errors import NUMBER, check_type

from alpa_mlir.errors import TraceError

_jax: Any = jax

Shapes = Sequence[tuple[int, ...]]
Cost = float | Callable[[Shapes, Shapes], float]


@dataclass(frozen=True)
class _CallRule:
    text: str
    cost: Cost | None


_rules: dict[str, _CallRule] = {}


def sharding_rule(
    target: str,
    rule: str | None,
    *,
    reduction: Sequence[str] = (),
    need_replication: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    cost: Cost | None = None,
) -> None:
    """Say how calls of a kernel may be split, for steps that are traced from now on.

    A call (`jax.ffi.ffi_call`) is known by name only and runs whole on every device of its mesh.
    With a rule its dimensions are split over devices and micro-batches, and each device calls the
    kernel with its part. The rule is believed, not proven. Kernels of Pallas and Triton are
    compiled for the shapes of the whole call: a rule that splits one is an error. The rule goes
    before one that the call brings itself (Shardy's `sdy.sharding_rule`).

    Args:
        target: name of the call's target, as in `jax.ffi.ffi_call(target, ..)`.
        rule: names of factors for each dimension of each operand and result, in the notation of
            JAX's `custom_partitioning(sharding_rule=..)`. `...` stands for leading dimensions,
            `(h d)` for a dimension made of several factors, the major one first. A factor is
            split if all results have it. None takes the target's rule away.
        reduction: factors that are summed over: each part of them gives a term of the results.
        need_replication: factors that stay whole.
        sizes: of factors that no shape tells.
        cost: floating-point operations of a whole call, as a number or as a function of the
            shapes of its operands and of its results. By default the call costs its memory
            traffic.

    Raises:
        TraceError: no target, or no rule of this notation.
        ArgumentTypeError: an argument of another type.

    A rule that does not fit a call's shapes is an error when the step is planned, with the column
    of the rule and the call's line.

    Example:
        >>> sharding_rule(
        ...     "flash_attention",
        ...     "b s h d, b t h d, b t h d -> b s h d",
        ...     need_replication=("s", "d"),
        ...     cost=lambda operands, results: 4 * math.prod(operands[0]) * operands[1][1],
        ... )
    """
    where = "sharding_rule"
    check_type(where, "target", target, str)
    check_type(where, "rule", rule, str, None)
    if not target:
        raise TraceError(
            "the target has no name", where=where, fix="give the name of a call's target"
        )
    if rule is None:
        _rules.pop(target, None)
        return
    for word, names in (("reduction", reduction), ("need_replication", need_replication)):
        check_type(where, word, names, tuple, list)
    bare = re.split(r"[{]|\b\w+=", rule)[0]  # Without sizes and kinds of factors behind it.
    wrong = jax_internals.fault_of_rule(bare, reduction, need_replication)
    if wrong:
        shown = rule if len(rule) < 200 else f"{rule[:200]}.."
        raise TraceError(
            f"the rule {shown!r}: {wrong}", where=where, fix="give one such as 'b k, k n -> b n'"
        )
    if not callable(cost):
        check_type(where, "cost", cost, NUMBER, None)
    text = rule.strip()
    if sizes:
        text += " {" + ", ".join(f"{name}={size}" for name, size in sizes.items()) + "}"
    for word, names in (("reduction", reduction), ("need_replication", need_replication)):
        if names:
            text += f" {word}={{{', '.join(names)}}}"
    _rules[target] = _CallRule(text, cost)


def attached(module: Any) -> Any:
    """The module of JAX, or a copy of it in which calls carry the rules that users gave.

    Raises:
        TraceError: a cost that is no number of operations.
    """
    if not _rules:
        return module
    ir = jax_internals.mlir_ir()
    copy = module.clone()
    calls: list[Any] = []  # Errors within a walk would lose their type.

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    copy.walk(visit)
    for call in calls:
        target = ir.StringAttr(call.attributes["call_target_name"]).value
        rule = _rules.get(target)
        if rule is None:
            continue
        call.attributes["alpa.sharding_rule"] = ir.StringAttr.get(rule.text, copy.context)
        if rule.cost is not None:
            flops = _flops(target, rule.cost, _shapes(call.operands), _shapes(call.results))
            kind, place = ir.F64Type.get(copy.context), ir.Location.unknown(copy.context)
            call.attributes["alpa.flops"] = ir.FloatAttr.get(kind, flops, place)
    return copy


def _shapes(values: Any) -> list[tuple[int, ...]]:
    ir = jax_internals.mlir_ir()
    return [tuple(ir.ShapedType(value.type).shape) for value in values]


def _flops(target: str, cost: Cost, operands: Shapes, results: Shapes) -> float:
    flops: Any = cost(operands, results) if callable(cost) else cost
    if isinstance(flops, (int, float)) and math.isfinite(flops) and flops >= 0:
        return float(flops)
    raise TraceError(
        f"the cost of a call of {target!r} is {flops!r}",
        where="sharding_rule",
        fix="give a number of floating-point operations of at least 0",
    )
