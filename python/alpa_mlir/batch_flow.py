"""How the values of a step without gradients follow from those of its micro-batches.

Two traces of one step, at the size of a micro-batch and at that of the whole batch, are read
side by side: a dimension of the batch is one that grows from the one to the other. What a value
of the whole batch is, in terms of the micro-batches' values, follows equation by equation from
what the operands are. Where it does not, the value is marked with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np
from jax.extend import core, source_info_util

from .flow import SAME, Flow, NoFlowError, Pair, growth, linear
from .flow_rules import RULES
from .jaxpr_values import is_literal
from .tagging import call_body

_core: Any = core
_source: Any = source_info_util

_ROUNDS = 8  # Of a loop's body, until what it carries keeps its form.
_DRAWS = frozenset(("random_bits", "random_gamma"))
_GROWS = frozenset(("broadcast_in_dim", "iota", "tile"))
# Equations whose body takes their operands as they are; without gradients that is all there is.
_INLINED = {
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
}


@dataclass(frozen=True)
class Constant:
    """A value that is no result of an equation: a literal, or what a jaxpr closes over."""

    micro: Any
    full: Any


@dataclass(frozen=True)
class Unit:
    """One equation of a step whose calls are written out.

    Attributes:
        micro, full: the equation at both sizes.
        stack: name stack of the calls that it stands in.
        operands, results: numbers of values.
    """

    micro: Any
    full: Any
    stack: Any
    operands: tuple[int, ...]
    results: tuple[int, ...]


class Step:
    """A step without gradients, its calls written out, at two sizes.

    Args:
        micro, full: the closed jaxprs of a micro-batch and of the whole batch.
        count: number of micro-batches in the batch.

    Attributes:
        flows: of each value; the first ones are the step's inputs.
        constants: by number of value.
        units: in program order.
        outputs: numbers of the values that the step returns.

    Raises:
        NoFlowError: the step is another program for another size.
    """

    def __init__(self, micro: Any, full: Any, count: int) -> None:
        self.count = count
        self.flows: list[Flow] = []
        self.constants: dict[int, Constant] = {}
        self.units: list[Unit] = []
        inputs = [
            self._value(_input_flow(a.aval, b.aval, count))
            for a, b in zip(micro.jaxpr.invars, full.jaxpr.invars, strict=True)
        ]
        self.outputs: list[int] = self._inline(
            (micro.jaxpr, micro.consts), (full.jaxpr, full.consts), inputs, None
        )

    def _value(self, flow: Flow) -> int:
        self.flows.append(flow)
        return len(self.flows) - 1

    def _constant(self, micro: Any, full: Any) -> int:
        number = self._value(_constant_flow(micro, full, self.count, settled=True))
        self.constants[number] = Constant(micro, full)
        return number

    def _inline(
        self,
        micro: tuple[Any, Sequence[Any]],
        full: tuple[Any, Sequence[Any]],
        operands: Sequence[int],
        stack: Any,
    ) -> list[int]:
        jaxpr, other = micro[0], full[0]
        env: dict[Any, int] = dict(zip(jaxpr.invars, operands, strict=True))
        for v, a, b in zip(jaxpr.constvars, micro[1], full[1], strict=True):
            env[v] = self._constant(a, b)

        def read(atom: Any, twin: Any) -> int:
            if is_literal(atom):
                return self._constant(atom.val, getattr(twin, "val", None))
            return env[atom]

        for eqn, twin in _twins(jaxpr, other):
            values = tuple(read(a, b) for a, b in zip(eqn.invars, twin.invars, strict=True))
            here = (
                eqn.source_info.name_stack if stack is None else stack + eqn.source_info.name_stack
            )
            bodies = (_body(eqn), _body(twin))
            if bodies[0] is not None and bodies[1] is not None:
                name = f"jit({eqn.params.get('name', eqn.primitive.name)})"
                results = self._inline(bodies[0], bodies[1], values, here.extend(name))
            else:
                flows = flows_of(Pair(eqn, twin, self.count), [self.flows[v] for v in values])
                results = [self._value(flow) for flow in flows]
                self.units.append(Unit(eqn, twin, here, values, tuple(results)))
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(a, b) for a, b in zip(jaxpr.outvars, other.outvars, strict=True)]


def _body(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Body and constants of a call that can be written out."""
    key = _INLINED.get(eqn.primitive.name)
    if key is None:
        return call_body(eqn)
    body = eqn.params[key]
    return (body.jaxpr, body.consts) if isinstance(body, _core.ClosedJaxpr) else (body, ())


def _twins(micro: Any, full: Any) -> list[tuple[Any, Any]]:
    """Equations of both sizes in pairs.

    Raises:
        NoFlowError: they are not the same ones.
    """
    pairs = list(zip(micro.eqns, full.eqns, strict=False))
    places: dict[Any, int] = {}
    others: dict[Any, int] = {}

    def place(table: dict[Any, int], atom: Any) -> int:
        return -1 if is_literal(atom) else table.setdefault(atom, len(table))

    def wired(a: Any, b: Any) -> bool:
        return len(a) == len(b) and all(
            place(places, x) == place(others, y) for x, y in zip(a, b, strict=True)
        )

    alike = len(micro.eqns) == len(full.eqns)
    alike &= wired([*micro.constvars, *micro.invars], [*full.constvars, *full.invars])
    for a, b in pairs:
        alike = alike and a.primitive is b.primitive
        alike = alike and wired(a.invars, b.invars) and wired(a.outvars, b.outvars)
    if not alike or not wired(micro.outvars, full.outvars):
        raise NoFlowError("the step is another program for another batch size")
    return pairs


def _input_flow(micro: Any, full: Any, count: int) -> Flow:
    dim = growth(micro, full, count)
    return SAME if dim < 0 else Flow("part", dim)


def _constant_flow(micro: Any, full: Any, count: int, settled: bool) -> Flow:
    """Of a number or an array in the program.

    Args:
        settled: whether the whole batch's value can be taken at the size of a micro-batch, too.
    """
    if micro is full:
        return Flow("same", is_zero=_is_zero(micro))
    try:
        a, b = np.asarray(micro), np.asarray(full)
    except TypeError:  # A random key.
        return Flow("none", reason="a constant of the program depends on the size of the batch")
    if a.shape == b.shape and a.dtype == b.dtype:
        if settled or np.array_equal(a, b):
            return Flow("same", is_zero=_is_zero(full))
        if a.size == 1 and a.dtype.kind in "fiu" and a.item() and isfinite(a.item() + b.item()):
            return Flow("same", ratio=Fraction(b.item()) / Fraction(a.item()))
    elif a.ndim == b.ndim and a.ndim:
        dim = next(i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n)
        times = [count if i == dim else 1 for i in range(a.ndim)]
        if a.shape[dim] * count == b.shape[dim] and np.array_equal(np.tile(a, times), b):
            return Flow("part", dim)
    return Flow("none", reason="a constant of the program depends on the size of the batch")


def _is_zero(value: Any) -> bool:
    try:
        array = np.asarray(value)
    except TypeError:
        return False
    return array.size == 1 and array.dtype.kind in "fiub" and not array.item()


def flows_of(pair: Pair, flows: Sequence[Flow], *, inside: bool = False) -> list[Flow]:
    """What an equation's results are.

    Args:
        flows: of its operands.
        inside: whether it stands in the body of a loop or a branch, which runs as a whole with
            each micro-batch.
    """
    places = range(len(pair.micro.outvars))
    for flow in flows:
        ignored = pair.name == "select_n" and flows[0].is_false and flow is not flows[1]
        if flow.kind == "none" and not ignored:
            return [flow] * len(places)
    try:
        return _flows(pair, flows, inside)
    except NoFlowError as no:
        where = _source.summarize(pair.micro.source_info)
        reason = f"`{pair.name}`{f' at {where}' if where else ''}: {no}"
        return [Flow("none", reason=reason)] * len(places)


def _flows(pair: Pair, flows: Sequence[Flow], inside: bool) -> list[Flow]:
    kinds = {f.kind for f in flows}
    grown = [pair.growth(i) for i in range(len(pair.micro.outvars))]
    has_sums = bool(kinds & {"sum", "whole"})
    if has_sums and kinds & {"part", "own"}:
        raise NoFlowError("it needs a value of the whole batch for each example")
    if has_sums and max(grown, default=-1) >= 0:
        raise NoFlowError("it needs a value of the whole batch for each example")
    if has_sums and not inside:
        return [Flow("whole")] * len(grown)
    if pair.name in _DRAWS:
        return [Flow("part", dim) if dim >= 0 else Flow("own") for dim in grown]
    structured = _STRUCTURED.get(pair.name)
    if structured is not None:
        return structured(pair, flows)
    if has_sums:
        return linear(pair, flows)
    if inside and any(f.ratio != 1 for f in flows):
        return [_arithmetic(pair, flows)]
    if kinds <= {"same"} and max(grown, default=-1) < 0:
        if inside:
            pair.all_equal()
        zero = pair.name in ("broadcast_in_dim", "reshape", "convert_element_type")
        return [Flow("same", is_zero=zero and flows[0].is_zero)] * len(grown)
    if "part" not in kinds and max(grown, default=-1) >= 0 and pair.name not in _GROWS:
        raise NoFlowError("it takes as many rows as the batch has")
    rule = RULES.get(pair.name)
    if rule is None:
        raise NoFlowError("it is not known to keep the examples of the batch apart")
    return rule(pair, flows)


def _arithmetic(pair: Pair, flows: Sequence[Flow]) -> Flow:
    """Numbers that are made of the batch's size alone."""
    if any(f.kind != "same" for f in flows) or pair.name not in (
        "mul",
        "div",
        "convert_element_type",
    ):
        raise NoFlowError("it computes with the size of the batch")
    pair.all_equal()
    first, *rest = [f.ratio for f in flows]
    for ratio in rest:
        first = first * ratio if pair.name == "mul" else first / ratio
    return Flow("same", ratio=first)


# -- loops and branches ---------------------------------------------------------------------


def _walk(micro: Any, full: Any, count: int, inputs: Sequence[Flow]) -> list[Flow]:
    """What a closed body makes of its arguments."""
    jaxpr, other = micro.jaxpr, full.jaxpr
    env: dict[Any, Flow] = dict(zip(jaxpr.invars, inputs, strict=True))
    for v, a, b in zip(jaxpr.constvars, micro.consts, full.consts, strict=True):
        env[v] = _constant_flow(a, b, count, settled=False)

    def read(atom: Any, twin: Any) -> Flow:
        if is_literal(atom):
            return _constant_flow(atom.val, getattr(twin, "val", None), count, settled=False)
        return env[atom]

    for eqn, twin in _twins(jaxpr, other):
        flows = [read(a, b) for a, b in zip(eqn.invars, twin.invars, strict=True)]
        bodies = (_body(eqn), _body(twin))
        if bodies[0] is not None and bodies[1] is not None:
            closed = [_core.ClosedJaxpr(body[0], list(body[1])) for body in bodies if body]
            results = _walk(closed[0], closed[1], count, flows)
        else:
            results = flows_of(Pair(eqn, twin, count), flows, inside=True)
        env.update(zip(eqn.outvars, results, strict=True))
    return [_settled(read(a, b)) for a, b in zip(jaxpr.outvars, other.outvars, strict=True)]


def _settled(flow: Flow) -> Flow:
    if flow.kind == "same" and flow.ratio != 1:
        return Flow("none", reason="a loop or branch makes a value of the size of the batch")
    return flow


def _join(first: Flow, second: Flow, count: int) -> Flow:
    """What holds of a value that is the one or the other."""
    for a, b in ((first, second), (second, first)):
        if a == b or b.kind == "none":
            return b
        if a.kind == "same" and b.kind == "same":
            return SAME
        if a.kind == "same" and b.kind == "sum" and (a.is_zero or b.scale * count == 1):
            return b
        if a.kind == "same" and b.kind == "own":
            return b
    if (
        first.kind == second.kind == "part"
        and first.dim == second.dim
        and not (first.rows or second.rows)
    ):
        return Flow("part", first.dim)
    raise NoFlowError("a loop or branch makes different things of the batch")


def _until_steady(
    pair: Pair,
    bodies: tuple[Any, Any],
    fixed: Sequence[Flow],
    carry: list[Flow],
    rest: Sequence[Flow],
) -> list[Flow]:
    """Flows of all results of a loop's body, once what it carries keeps its form."""
    for _ in range(_ROUNDS):
        results = _walk(bodies[0], bodies[1], pair.count, [*fixed, *carry, *rest])
        joined = [_join(a, b, pair.count) for a, b in zip(carry, results, strict=False)]
        if joined == carry:
            return [*carry, *results[len(carry) :]]
        carry = joined
    raise NoFlowError("its loop changes what it carries")


def _scan(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    pair.all_equal("jaxpr", "length")
    consts, carried = pair.equal("num_consts"), pair.equal("num_carry")
    rows: list[Flow] = []
    for flow in flows[consts + carried :]:
        if flow.kind == "part" and (flow.dim == 0 or flow.rows):
            raise NoFlowError("it goes through the examples of the batch")
        rows.append(Flow("part", flow.dim - 1) if flow.kind == "part" else flow)
    pair.equal("length")
    carry = list(flows[consts : consts + carried])
    results = _until_steady(pair, pair.params("jaxpr"), flows[:consts], carry, rows)
    stacked = [
        Flow("part", f.dim + 1) if f.kind == "part" and not f.rows else f for f in results[carried:]
    ]
    if any(f.rows for f in stacked):
        raise NoFlowError("it computes with the numbers of examples in the batch")
    return [*results[:carried], *stacked]


def _while(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    tests, consts = pair.equal("cond_nconsts"), pair.equal("body_nconsts")
    fixed = flows[tests : tests + consts]
    carry = list(flows[tests + consts :])
    results = _until_steady(pair, pair.params("body_jaxpr"), fixed, carry, ())
    (goes_on,) = _walk(*pair.params("cond_jaxpr"), pair.count, [*flows[:tests], *results])
    if goes_on.kind != "same":
        raise NoFlowError("how often its loop runs depends on the batch")
    return results


def _cond(pair: Pair, flows: Sequence[Flow]) -> list[Flow]:
    if flows[0].kind != "same":
        raise NoFlowError("which branch it takes depends on the batch")
    micro, full = pair.params("branches")
    if len(micro) != len(full):
        raise NoFlowError("it is another operation for another batch")
    found = [_walk(a, b, pair.count, flows[1:]) for a, b in zip(micro, full, strict=True)]
    results = found[0]
    for other in found[1:]:
        results = [_join(a, b, pair.count) for a, b in zip(results, other, strict=True)]
    return results


_STRUCTURED = {"scan": _scan, "while": _while, "cond": _cond}
