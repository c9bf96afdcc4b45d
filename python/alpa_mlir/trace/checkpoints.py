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

from alpa_mlir.trace.jaxprs import (
    Values,
    bind,
    call_body,
    function_of,
    is_literal,
    scan_with_body,
)
from alpa_mlir.trace.origins import DATA, Origin, is_over_layers, joined, origins

_jax: Any = jax
_CHECKPOINTS = ("remat2", "checkpoint")


def is_around_layers(eqn: Any, sources: Sequence[Origin]) -> bool:
    """Whether an equation is a checkpoint around a scan over layers."""
    if eqn.primitive.name not in _CHECKPOINTS:
        return False
    jaxpr = eqn.params["jaxpr"]
    return not jaxpr.effects and _scans_layers(jaxpr, sources)


def _scans_layers(jaxpr: Any, sources: Sequence[Origin]) -> bool:
    """Whether a scan over layers is among the equations of a function of such arguments."""
    made = Values.at_start(jaxpr, [DATA] * len(jaxpr.constvars), sources)
    for eqn in jaxpr.eqns:
        own = origins(eqn, made)
        if eqn.primitive.name == "scan" and is_over_layers(eqn, own):
            return True
        body = call_body(eqn)
        if body is not None and _scans_layers(body[0], [DATA] * len(body[1]) + own):
            return True
        made.write(eqn.outvars, [joined(own)] * len(eqn.outvars))
    return False


def moved_into_scans(eqn: Any, sources: Sequence[Origin], operands: Sequence[Any]) -> list[Any]:
    """Results of a checkpoint, with one around the function of each scan over layers, and one
    around what lies between such scans.

    Args:
        sources: what the operands are made of.
    """
    return _Mover(eqn.params).run(eqn.params["jaxpr"], (), operands, sources)


class _Mover:
    def __init__(self, params: dict[str, Any]) -> None:
        self._options = {name: params[name] for name in ("prevent_cse", "policy")}

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], sources: Sequence[Origin]
    ) -> list[Any]:
        values = Values.at_start(jaxpr, consts, args)
        made = Values.at_start(jaxpr, [DATA] * len(consts), sources)
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
            own = origins(eqn, made)
            body = call_body(eqn)
            if eqn.primitive.name == "scan" and is_over_layers(eqn, own):
                end(index)
                outputs = bind(self._scan(eqn), values.read(eqn.invars), debug)
                values.write(eqn.outvars, outputs)
            elif body and _scans_layers(body[0], [DATA] * len(body[1]) + own):
                end(index)
                outputs = self.run(*body, values.read(eqn.invars), own)
                values.write(eqn.outvars, outputs)
            elif joined(own).is_weights:
                values.write(eqn.outvars, bind(eqn, values.read(eqn.invars), debug))
            else:
                between.append(eqn)
            made.write(eqn.outvars, [joined(own)] * len(eqn.outvars))
        end(len(eqns))
        return values.read(jaxpr.outvars)

    def _scan(self, eqn: Any) -> Any:
        closed = eqn.params["jaxpr"]

        def body(*args: Any) -> list[Any]:
            return _without_checkpoints(closed.jaxpr, closed.consts, args)

        return scan_with_body(eqn, _jax.checkpoint(body, **self._options))


def _without_checkpoints(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate, as if there were no checkpoints: within another one they would have all that they
    compute computed once more."""
    values = Values.at_start(jaxpr, consts, args)
    debug = jaxpr.debug_info.with_unknown_names()
    for eqn in jaxpr.eqns:
        operands = values.read(eqn.invars)
        body = (eqn.params["jaxpr"], ()) if eqn.primitive.name in _CHECKPOINTS else call_body(eqn)
        results = (
            bind(eqn, operands, debug) if body is None else _without_checkpoints(*body, operands)
        )
        values.write(eqn.outvars, results)
    return values.read(jaxpr.outvars)
