"""`jax.checkpoint` around scans over layers, moved into them.

What is checkpointed around a scan is computed again as a whole before the first of its gradients,
so that it stays a loop, which no stage ends within and which sums the gradients of weights in each
iteration. With the checkpoint around the scanned function, layers can be written out. Results are
the same. What is kept for gradients is the input of each layer, where it was that of all of them
together; what one layer keeps while its own gradients are computed is not kept of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from alpa_runtime import jax_internals

from alpa_mlir.trace.jaxprs import (
    CHECKPOINTS,
    Values,
    bind,
    call_body,
    function_of,
    inlined,
    is_literal,
    scan_with_body,
)

_jax: Any = jax


def weight_flags(eqn: Any, made: Values) -> list[bool]:
    """Which of an equation's operands are made of weights alone."""
    return [is_literal(v) or made.read([v])[0] for v in eqn.invars]


def is_over_layers(scan: Any, of_weights: Sequence[bool]) -> bool:
    """Whether a scan takes other matrices that are made of weights alone in each iteration."""
    rows = sum(jax_internals.scan_operands(scan))
    taken = zip(scan.invars[rows:], of_weights[rows:], strict=True)
    return any(is_made and len(operand.aval.shape) > 2 for operand, is_made in taken)


def is_around_layers(eqn: Any, of_weights: Sequence[bool]) -> bool:
    """Whether an equation is a checkpoint around a scan over layers."""
    if eqn.primitive.name not in CHECKPOINTS:
        return False
    jaxpr = eqn.params["jaxpr"]
    return not jaxpr.effects and _scans_layers(jaxpr, of_weights)


def _scans_layers(jaxpr: Any, of_weights: Sequence[bool]) -> bool:
    """Whether a scan over layers is among the equations of a function of such arguments."""
    made = Values.at_start(jaxpr, [False] * len(jaxpr.constvars), of_weights)
    for eqn in jaxpr.eqns:
        flags = weight_flags(eqn, made)
        if eqn.primitive.name == "scan" and is_over_layers(eqn, flags):
            return True
        body = call_body(eqn)
        if body is not None and _scans_layers(body[0], [False] * len(body[1]) + flags):
            return True
        made.write(eqn.outvars, [all(flags)] * len(eqn.outvars))
    return False


def moved_into_scans(eqn: Any, of_weights: Sequence[bool], operands: Sequence[Any]) -> list[Any]:
    """Results of a checkpoint, with one around the function of each scan over layers, and one
    around what lies between such scans.

    Args:
        of_weights: which of the operands are made of weights alone.
    """
    return _Mover(eqn.params).run(eqn.params["jaxpr"], (), operands, of_weights)


class _Mover:
    def __init__(self, params: dict[str, Any]) -> None:
        self._options = {name: params[name] for name in ("prevent_cse", "policy")}

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], of_weights: Sequence[bool]
    ) -> list[Any]:
        values = Values.at_start(jaxpr, consts, args)
        made = Values.at_start(jaxpr, [False] * len(consts), of_weights)
        debug = jaxpr.debug_info.with_unknown_names()
        eqns: list[Any] = list(jaxpr.eqns)
        last_use: dict[Any, int] = {a: len(eqns) for a in jaxpr.outvars if not is_literal(a)}
        for index, eqn in reversed(list(enumerate(eqns))):
            for atom in eqn.invars:
                if not is_literal(atom):
                    last_use.setdefault(atom, index)
        between: list[Any] = []

        def end(index: int) -> None:
            """Evaluate what lies before an equation, checkpointed."""
            written = {var for eqn in between for var in eqn.outvars}
            read = {a for eqn in between for a in eqn.invars if not is_literal(a)} - written
            inputs = [var for var in values.known() if var in read]
            outputs = [v for eqn in between for v in eqn.outvars if last_use.get(v, -1) >= index]
            if outputs:
                part = function_of(tuple(between), inputs, outputs, debug)
                found = _jax.checkpoint(part, **self._options)(*values.read(inputs))
                values.write(outputs, found)
            between.clear()

        for index, eqn in enumerate(eqns):
            flags = weight_flags(eqn, made)
            body = call_body(eqn)
            if eqn.primitive.name == "scan" and is_over_layers(eqn, flags):
                end(index)
                outputs = bind(self._scan(eqn), values.read(eqn.invars), debug)
                values.write(eqn.outvars, outputs)
            elif body and _scans_layers(body[0], [False] * len(body[1]) + flags):
                end(index)
                outputs = self.run(*body, values.read(eqn.invars), flags)
                values.write(eqn.outvars, outputs)
            elif all(flags):
                values.write(eqn.outvars, bind(eqn, values.read(eqn.invars), debug))
            else:
                between.append(eqn)
            made.write(eqn.outvars, [all(flags)] * len(eqn.outvars))
        end(len(eqns))
        return values.read(jaxpr.outvars)

    def _scan(self, eqn: Any) -> Any:
        closed = eqn.params["jaxpr"]

        # Within another checkpoint, what these have computed again would be computed once more.
        def body(*args: Any) -> list[Any]:
            return inlined(closed.jaxpr, closed.consts, args, checkpoints=True)

        return scan_with_body(eqn, _jax.checkpoint(body, **self._options))
