"""Give every micro-batch random numbers of its own.

A key that enters a differentiated function becomes `jax.random.fold_in(key, i)` for micro-batch
i. What the function hands back of keys and integers alone (the next key, a counter of draws) is
computed from the keys as they were, so that a key carried to the next step is the one that the
unmodified step carries. Draws outside of differentiated functions are folded where they are
made, if they reach the forward computation.

Keys are typed, or raw: `uint32` arrays that reach `random_wrap`, as they do in every function of
`jax.random`. A key that is a constant of the program draws the same for all micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core

from .errors import TraceError
from .jaxpr_values import Values, bind, is_literal, placed, stack_inside

_jax: Any = jax
_core: Any = core

# What moves or picks keys without changing them; the key is operand 0.
_MOVES = frozenset(
    ("slice", "dynamic_slice", "gather", "squeeze", "reshape", "transpose", "broadcast_in_dim")
)
_DRAWS = frozenset(("random_bits", "random_gamma"))


def is_typed_key(aval: Any) -> bool:
    """Whether an array or an abstract one holds typed PRNG keys."""
    return bool(_jax.dtypes.issubdtype(aval.dtype, _jax.dtypes.prng_key))


def may_be_key(aval: Any) -> bool:
    """Whether an argument may be a key: a typed one, or `uint32` of the size of one."""
    raw = str(aval.dtype) == "uint32" and bool(aval.shape) and aval.shape[-1] in (2, 4)
    return is_typed_key(aval) or raw


def bodies(eqn: Any) -> list[tuple[Any, int]]:
    """Jaxprs inside an equation, with the number of operands before the first of their own."""
    params: list[Any] = list(eqn.params.values())
    found: list[tuple[Any, int]] = []
    for item in _jax.tree.leaves(params, is_leaf=_is_jaxpr):
        if _is_jaxpr(item):
            found.append((item.jaxpr if isinstance(item, _core.ClosedJaxpr) else item, 0))
    if eqn.primitive.name == "cond":
        return [(inner, 1) for inner, _ in found]
    if eqn.primitive.name == "while":
        skip = int(eqn.params["cond_nconsts"])
        return [(inner, skip) for inner, _ in found[-1:]]
    return found


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, (_core.Jaxpr, _core.ClosedJaxpr))


def raw_keys(jaxpr: Any) -> dict[Any, Any]:
    """The generator of every variable that holds raw keys, among the inputs of a jaxpr."""
    impls = _raw_keys(jaxpr.eqns)
    inputs = {*jaxpr.constvars, *jaxpr.invars}
    return {v: impl for v, impl in impls.items() if v in inputs}


def _raw_keys(eqns: Sequence[Any]) -> dict[Any, Any]:
    impls: dict[Any, Any] = {}
    for eqn in reversed(eqns):
        if eqn.primitive.name == "random_wrap":
            _mark(impls, eqn.invars[0], eqn.params["impl"])
        elif eqn.primitive.name in _MOVES and eqn.outvars[0] in impls:
            _mark(impls, eqn.invars[0], impls[eqn.outvars[0]])
        else:
            for inner, skip in bodies(eqn):
                for variable, impl in raw_keys(inner).items():
                    place = inner.invars.index(variable) + skip
                    if place < len(eqn.invars):
                        _mark(impls, eqn.invars[place], impl)
    return impls


def _mark(impls: dict[Any, Any], atom: Any, impl: Any) -> None:
    size = tuple(impl.key_shape)
    is_key = str(atom.aval.dtype) == "uint32" and atom.aval.shape[-len(size) :] == size
    if is_key and not is_literal(atom):
        impls[atom] = impl


def entering(jaxpr: Any, values: Sequence[Any]) -> dict[int, Any]:
    """Which inputs of a jaxpr are keys that depend on the step's arguments.

    Args:
        values: what its constants and arguments stand for.

    Returns:
        By place, the generator of raw keys, and None for typed ones.
    """
    raw = raw_keys(jaxpr)
    found: dict[int, Any] = {}
    for place, (variable, value) in enumerate(
        zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True)
    ):
        if not isinstance(value, _jax.core.Tracer):
            continue
        if is_typed_key(variable.aval):
            found[place] = None
        elif variable in raw:
            found[place] = raw[variable]
    return found


def fold(key: Any, impl: Any, micro_batch: Any) -> Any:
    """`jax.random.fold_in(key, micro_batch)` for each of an array of keys, typed or raw."""
    typed = key if impl is None else _jax.random.wrap_key_data(key, impl=impl.name)
    flat = typed.reshape(-1)
    folded = _jax.vmap(_jax.random.fold_in, (0, None))(flat, micro_batch)
    folded = folded.reshape(typed.shape)
    return folded if impl is None else _jax.random.key_data(folded)


def bookkeeping(jaxpr: Any, keys: Sequence[int]) -> list[int]:
    """Results that depend on the keys at the given places, and on keys and integers alone."""
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    tainted = {inputs[place] for place in keys}
    real = {v for v in inputs if _is_real(v.aval)}
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if not is_literal(v)]
        if any(v in tainted for v in operands):
            tainted.update(eqn.outvars)
        if any(v in real for v in operands):
            real.update(eqn.outvars)
    return [
        place
        for place, v in enumerate(jaxpr.outvars)
        if not is_literal(v)
        and v in tainted
        and v not in real
        and (is_typed_key(v.aval) or str(v.aval.dtype) == "uint32")
    ]


def _is_real(aval: Any) -> bool:
    return not is_typed_key(aval) and bool(_jax.dtypes.issubdtype(aval.dtype, _jax.numpy.inexact))


def only(jaxpr: Any, places: Sequence[int]) -> Any:
    """The part of a jaxpr that makes these results."""
    outvars = [jaxpr.outvars[place] for place in places]
    needed = {v for v in outvars if not is_literal(v)}
    eqns: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if not is_literal(v))
    debug = jaxpr.debug_info.with_unknown_names()
    return _core.Jaxpr(jaxpr.constvars, jaxpr.invars, outvars, eqns[::-1], jaxpr.effects, debug)


def _is_differentiated(eqn: Any, scope: str) -> bool:
    """Whether the equation is of a differentiated function, or calls one."""
    stack = f"{scope}/{eqn.source_info.name_stack}"
    if "jvp(" in stack:
        return True
    return any(_is_differentiated(e, stack) for inner, _ in bodies(eqn) for e in inner.eqns)


def _draws(eqn: Any) -> bool:
    if eqn.primitive.name in _DRAWS:
        return True
    return any(_draws(inner) for body, _ in bodies(eqn) for inner in body.eqns)


class OutsideDraws:
    """The draws of a step that stand outside of differentiated functions, and reach what is
    computed once for each micro-batch.

    Args:
        closed: the step's jaxpr.
        wanted: for each result whether it has a value for each micro-batch although no
            differentiated function makes it, as in a step that differentiates nothing.
        call_body: body and constants of a plain call; None for other equations.
    """

    def __init__(
        self, closed: Any, wanted: Sequence[bool], call_body: Callable[[Any], Any | None]
    ) -> None:
        self._closed = closed
        self._wanted = list(wanted)
        self._call_body = call_body

    def found(self) -> bool:
        """Whether there are any."""
        if not any(_draws(eqn) for eqn in self._closed.jaxpr.eqns):
            return False
        return self._any(self._closed.jaxpr, self._wanted, "")

    def _reaching(self, jaxpr: Any, wanted: Sequence[bool], scope: str) -> set[Any]:
        """Variables that micro-batches compute with."""
        reached = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want}
        reached = {v for v in reached if not is_literal(v)}
        for eqn in reversed(jaxpr.eqns):
            if any(v in reached for v in eqn.outvars) or _is_differentiated(eqn, scope):
                reached.update(v for v in eqn.invars if not is_literal(v))
        return reached

    def _inside(self, eqn: Any, reached: set[Any], scope: str) -> tuple[Any, list[bool], str]:
        body = self._call_body(eqn)
        assert body is not None
        return body[0], [v in reached for v in eqn.outvars], f"{scope}/{eqn.source_info.name_stack}"

    def _unit(self, eqn: Any, reached: set[Any], scope: str) -> str:
        """`"draw"`: fold its keys; `"call"`: look inside; `""`: leave it."""
        if not _draws(eqn):
            return ""
        inside = _is_differentiated(eqn, scope)
        if not inside and not any(v in reached for v in eqn.outvars):
            return ""
        if eqn.primitive.name in _DRAWS:
            return "draw" if not inside else ""
        makes_keys = any(is_typed_key(v.aval) or str(v.aval.dtype) == "uint32" for v in eqn.outvars)
        if not inside and not makes_keys:
            return "draw"
        if self._call_body(eqn) is not None:
            return "call"
        if inside:
            return ""  # Of a differentiated function, whose keys are folded where they enter.
        raise TraceError(
            "a loop or branch outside of the loss function draws random numbers and makes keys",
            where=str(eqn.source_info.name_stack) or eqn.primitive.name,
            fix="draw inside of the differentiated function, or use one micro-batch",
        )

    def _any(self, jaxpr: Any, wanted: Sequence[bool], scope: str) -> bool:
        reached = self._reaching(jaxpr, wanted, scope)
        for eqn in jaxpr.eqns:
            unit = self._unit(eqn, reached, scope)
            if unit == "draw" or (unit == "call" and self._any(*self._inside(eqn, reached, scope))):
                return True
        return False

    def evaluate(self, args: Sequence[Any], micro_batch: Any) -> list[Any]:
        """The step's results, each of those draws with folded keys."""
        return self._evaluate(
            self._closed.jaxpr, self._closed.consts, args, micro_batch, self._wanted, "", None
        )

    def _evaluate(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        args: Sequence[Any],
        micro_batch: Any,
        wanted: Sequence[bool],
        scope: str,
        stack: Any | None,
    ) -> list[Any]:
        values = Values.at_start(jaxpr, consts, args)
        debug = jaxpr.debug_info.with_unknown_names()
        reached = self._reaching(jaxpr, wanted, scope)
        for eqn in jaxpr.eqns:
            eqn = placed(eqn, stack)
            operands = values.read(eqn.invars)
            unit = self._unit(eqn, reached, "" if stack is not None else scope)
            if unit == "call":
                inner, flags, deeper = self._inside(eqn, reached, scope)
                body: Any = self._call_body(eqn)
                outer = stack_inside(eqn)
                results = self._evaluate(
                    inner, body[1], operands, micro_batch, flags, deeper, outer
                )
            else:
                if unit == "draw":
                    operands = self._folded(eqn, operands, micro_batch)
                results = bind(eqn, operands, debug)
            values.write(eqn.outvars, results)
        return values.read(jaxpr.outvars)

    def _folded(self, eqn: Any, values: Sequence[Any], micro_batch: Any) -> list[Any]:
        raw = _raw_keys([eqn])
        result = list(values)
        for place, atom in enumerate(eqn.invars):
            if is_literal(atom) or not isinstance(values[place], _jax.core.Tracer):
                continue
            if is_typed_key(atom.aval):
                result[place] = fold(values[place], None, micro_batch)
            elif atom in raw:
                result[place] = fold(values[place], raw[atom], micro_batch)
        return result
