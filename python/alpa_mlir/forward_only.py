"""Steps without gradients: inference and evaluation, one micro-batch after another.

What a micro-batch computes is forward. What needs sums over the whole batch, such as the
exponential of a mean loss, is made once of the micro-batches' sums, with the numbers that the
program has at the size of the whole batch. So results are those of the unsplit step; a step of
which that cannot be shown has one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import trees
from .batch_flow import Constant, Step, Unit
from .errors import TraceError
from .flow import Flow, NoFlowError
from .jaxpr_values import bind, is_literal
from .leaf import Leaf
from .signature import Reduction
from .tagging import UPDATE_SCOPE, TagSession, current_session, with_tagged_body

_jax: Any = jax


class ForwardStep:
    """A step without gradients whose equations are sorted into forward and update.

    Args:
        micro: closed jaxpr at the size of a micro-batch.
        full: that of the whole batch; of a batch twice as large if there is one micro-batch;
            None if the step has no form of that size.
        count: number of micro-batches.
        name: of the step, for messages.

    Attributes:
        why_whole: why the step has one micro-batch only; empty if it may have several.

    Raises:
        TraceError: the step is another program for another batch size.
    """

    def __init__(self, micro: Any, full: Any | None, count: int, name: str) -> None:
        self._count = count
        self._debug = micro.jaxpr.debug_info.with_unknown_names()
        self.why_whole: str = ""
        try:
            if full is None:
                raise NoFlowError("the step works for no other batch size")
            self._step = Step(micro, full, max(count, 2))
        except NoFlowError as no:
            self.why_whole = str(no)
            if count > 1:
                raise TraceError(
                    f"the step has no value for {count} micro-batches: {no}",
                    where=name,
                    fix="use fewer micro-batches, or one",
                ) from None
            self._step = Step(micro, micro, 1)
        if count == 1 and not self.why_whole:  # Otherwise the results' check says more.
            reasons = [_why_not(self._step.flows[v], False) for v in self._step.outputs]
            self.why_whole = next(filter(None, reasons), "")
        self._needed, self._forward = self._sort()

    def _sort(self) -> tuple[set[int], set[int]]:
        """The units that results are made of, and those of them that are forward."""
        flows, wanted = self._step.flows, set(self._step.outputs)
        needed: set[int] = set()
        forward: set[int] = set()
        read: set[int] = set()  # Values that forward units read.
        for place in reversed(range(len(self._step.units))):
            unit = self._step.units[place]
            if wanted.isdisjoint(unit.results):
                continue
            needed.add(place)
            wanted.update(unit.operands)
            kinds = {flows[v].kind for v in unit.results}
            if self.why_whole or kinds & {"part", "own", "sum", "none"} or read & {*unit.results}:
                forward.add(place)
                read.update(unit.operands)
        return needed, forward

    def check(self, leaves: Sequence[Leaf], carried: set[int]) -> list[Reduction | None]:
        """How each result's micro-batch values become one.

        Args:
            leaves: the results.
            carried: numbers of those that carry state.

        Raises:
            TraceError: a result has no value for several micro-batches.
        """
        result: list[Reduction | None] = []
        for place, (leaf, number) in enumerate(zip(leaves, self._step.outputs, strict=True)):
            flow = self._step.flows[number]
            reason = "" if self.why_whole else _why_not(flow, place in carried)
            if reason and self._count > 1:
                raise TraceError(
                    f"this result cannot be made of {self._count} micro-batches: {reason}",
                    where=leaf.name,
                    fix="return it with the batch as dimension 0, or as a sum or mean of numbers "
                    "that each example has, or use fewer micro-batches, or one",
                )
            self.why_whole = self.why_whole or reason
            kind: Reduction = "concat" if flow.kind == "part" else "mean"
            if flow.kind == "sum" and flow.scale == 1:
                kind = "sum"
            result.append(None if place in carried else kind)
        return result

    def function(self, name: str, dynamic: Sequence[int], out_tree: Any) -> Callable[..., Any]:
        """The step with its equations named by their phase; called like the step.

        Args:
            dynamic: numbers of the arguments that hold arrays.
            out_tree: structure of the result.
        """

        def step(*args: Any) -> Any:
            flat = [leaf for i in dynamic for leaf in trees.leaves(args[i])]
            session = current_session() or TagSession()
            return trees.unflatten(out_tree, self._evaluate(session, flat))

        step.__name__ = step.__qualname__ = name
        return step

    def _evaluate(self, session: TagSession, args: Sequence[Any]) -> list[Any]:
        step = self._step
        values: dict[int, Any] = dict(enumerate(args))
        whole: dict[int, Any] = {}  # Of scaled sums.
        for number, constant in step.constants.items():
            values[number] = self._constant(constant, step.flows[number])

        def once(number: int) -> Any:
            """A value as the update has it."""
            scale = step.flows[number].scale
            if step.flows[number].kind != "sum" or scale == 1:
                return values[number]
            if number not in whole:
                whole[number] = values[number] * float(scale)
            return whole[number]

        for place, unit in enumerate(step.units):
            if place not in self._needed:
                continue
            if place in self._forward:
                given = [values[v] for v in unit.operands]
                results = self._run(unit, given, session)
            else:
                with _jax.named_scope(UPDATE_SCOPE):
                    results = self._bind(unit, [once(v) for v in unit.operands], self._count > 1)
            values.update(zip(unit.results, results, strict=True))
        with _jax.named_scope(UPDATE_SCOPE):
            return [once(v) for v in step.outputs]

    def _run(self, unit: Unit, values: Sequence[Any], session: TagSession) -> list[Any]:
        """What all micro-batches share has the numbers of the whole batch."""
        shared = all(self._step.flows[v].kind == "same" for v in (*unit.operands, *unit.results))
        with _jax.named_scope(session.next_tag()):
            return self._bind(unit, values, shared and self._count > 1, tagged=session.level + 1)

    def _bind(self, unit: Unit, values: Sequence[Any], is_full: bool, tagged: int = 0) -> list[Any]:
        eqn = unit.full if is_full else unit.micro
        if self._count > 1 and not is_full:
            atoms = [
                twin if is_literal(twin) else atom
                for atom, twin in zip(unit.micro.invars, unit.full.invars, strict=True)
            ]
            eqn = eqn.replace(invars=atoms)
        eqn = eqn.replace(source_info=eqn.source_info.replace(name_stack=unit.stack))
        if tagged and eqn.primitive.name == "scan":
            eqn = with_tagged_body(eqn, tagged)
        return bind(eqn, values, self._debug)

    def _constant(self, constant: Constant, flow: Flow) -> Any:
        return constant.full if self._count > 1 and flow.kind == "same" else constant.micro


def _why_not(flow: Flow, carried: bool) -> str:
    """Why several micro-batches do not make a result; empty if they do."""
    if flow.kind == "none":
        return flow.reason
    if flow.kind == "own":
        return "every micro-batch draws its own random numbers"
    if flow.rows:
        return "it holds the numbers of examples in the batch"
    if flow.kind == "part" and carried:
        return "it is state of single examples"
    if flow.kind == "part" and flow.dim != 0:
        return f"its parts would be joined along dimension {flow.dim}"
    if flow.kind == "sum" and carried:
        return "it is the next value of a state, and a sum over the batch"
    return ""
