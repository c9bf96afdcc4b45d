"""Evaluating a jaxpr equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from alpa_runtime.jax_internals import params_of
from jax.extend import core, source_info_util

_jax: Any = jax
_jnp: Any = jnp
_core: Any = core
_source: Any = source_info_util
CHECKPOINTS = ("remat2", "checkpoint")  # Names of the primitive.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


def is_jaxpr(value: Any) -> bool:
    """Closed or not."""
    return isinstance(value, (_core.Jaxpr, _core.ClosedJaxpr))


def bodies(eqn: Any) -> list[Any]:
    """Jaxprs inside an equation."""
    params: list[Any] = list(params_of(eqn).values())
    found = [x for x in _jax.tree.leaves(params, is_leaf=is_jaxpr) if is_jaxpr(x)]
    return [x.jaxpr if isinstance(x, _core.ClosedJaxpr) else x for x in found]


class Values:
    """What the variables of a jaxpr hold while it is evaluated."""

    def __init__(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        self._of: dict[Any, Any] = {}
        self.write(variables, values)

    @classmethod
    def at_start(cls, jaxpr: Any, consts: Iterable[Any], args: Iterable[Any]) -> Values:
        """Those of a jaxpr's constants and arguments.

        From JAX 0.12 on, constants of a jaxpr that was made without their values are the first
        of its arguments; both follow each other, so where one list ends does not matter.
        """
        return cls((*jaxpr.constvars, *jaxpr.invars), (*consts, *args))

    def read(self, atoms: Iterable[Any]) -> list[Any]:
        """Values of variables and literals."""
        return [literal_value(atom) if is_literal(atom) else self._of[atom] for atom in atoms]

    def write(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        self._of.update(zip(variables, values, strict=True))

    def copy(self) -> Values:
        """As many variables with the same values, to which others may be added."""
        return Values(self._of.keys(), self._of.values())

    def known(self) -> list[Any]:
        """The variables that have values, in the order in which they got them."""
        return list(self._of)


def is_literal(atom: Any) -> bool:
    return isinstance(atom, _core.Literal)


def literal_value(literal: Any) -> Any:
    """A literal as an array of its type, weak ones included.

    JAX keeps a Python number or NumPy's array, which compute otherwise than an array where users
    get them: `~True` is -2.
    """
    return _jnp.asarray(literal.val)


def bind(eqn: Any, values: Sequence[Any], debug: Any) -> list[Any]:
    """Evaluate one equation with its own context, name stack and traceback.

    Args:
        debug: of the jaxpr that holds it, with unknown names.
    """
    given = {v: x for v, x in zip(eqn.invars, values, strict=True) if not is_literal(v)}
    single = _core.Jaxpr((), list(given), eqn.outvars, [eqn], eqn.effects, debug)
    return list(_jax.core.eval_jaxpr(single, (), *given.values()))


def function_of(
    eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], debug: Any
) -> Callable[..., list[Any]]:
    """What equations compute of variables, as a function.

    Args:
        inputs: what the equations read and do not write.
        outputs: what is returned of what they write.
        debug: as `bind` has it.
    """

    def part(*given: Any) -> list[Any]:
        values = Values(inputs, given)
        for eqn in eqns:
            values.write(eqn.outvars, bind(eqn, values.read(eqn.invars), debug))
        return values.read(outputs)

    return part


def scan_with_body(eqn: Any, body: Callable[..., list[Any]]) -> Any:
    """A scan of another function with the same arguments and results."""
    avals = [
        _jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
        for a in eqn.params["jaxpr"].in_avals
    ]
    return eqn.replace(params={**eqn.params, "jaxpr": _jax.make_jaxpr(body)(*avals)})


def draws_by_shape(eqn: Any) -> bool:
    """Whether an equation draws random bits that are others when it is mapped: those of any
    generator but threefry depend on the shapes of arrays."""
    name = eqn.primitive.name
    keys = [str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype")]
    return name in ("rng_bit_generator", "rng_uniform") or (
        name.startswith("random_") and any("rbg" in key for key in keys)
    )


def user_line(eqn: Any) -> str:
    """The line of the user's that an equation stems from; empty for those within JAX alone."""
    line: str = _source.summarize(eqn.source_info)
    return line if line.strip(" ()") else ""


def placed(eqn: Any, call: Any | None) -> Any:
    """An equation of a plain call's body where the call stands.

    Functions that JAX jits itself (`jnp.roll`) have no line of the user's inside; theirs is the
    call's.
    """
    if call is None:
        return eqn
    own, outer = eqn.source_info, call.source_info
    inside = outer.name_stack.extend(f"jit({call.params.get('name', call.primitive.name)})")
    return eqn.replace(
        source_info=own.replace(
            name_stack=inside + own.name_stack,
            traceback=own.traceback if user_line(eqn) else outer.traceback,
        )
    )


def call_body(eqn: Any, *, is_kept: bool = True) -> tuple[Any, Sequence[Any]] | None:
    """Body and constants of a plain call; None for equations to be kept whole.

    Args:
        is_kept: whether a call that says how its values are sharded is one of these.
    """
    key = _CALLS.get(eqn.primitive.name)
    if key is None or key not in eqn.params:
        return None
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    if is_kept and any(type(s).__name__ != "UnspecifiedValue" for s in shardings):
        return None  # the placement would be lost
    body = eqn.params[key]
    return (body.jaxpr, body.consts) if isinstance(body, _core.ClosedJaxpr) else (body, ())


PRINTS = ("debug_callback", "debug_print")  # `jax.debug.print` and `jax.debug.callback`.


def without_prints(closed: Any) -> Any:
    """The jaxpr without what `jax.debug` prints, and bodies of equations likewise."""
    jaxpr = closed.jaxpr
    eqns = [_without_prints(eqn) for eqn in jaxpr.eqns if eqn.primitive.name not in PRINTS]
    return closed.replace(jaxpr=jaxpr.replace(eqns=eqns, effects=other_effects(jaxpr)))


def _without_prints(eqn: Any) -> Any:
    def changed(x: Any) -> Any:
        if isinstance(x, _core.ClosedJaxpr):
            return without_prints(x)
        if isinstance(x, _core.Jaxpr):
            return without_prints(_core.ClosedJaxpr(x, ())).jaxpr
        return type(x)(map(changed, x)) if type(x) in (tuple, list) else x

    if not prints(eqn):
        return eqn
    params = {key: changed(x) for key, x in eqn.params.items()}
    return eqn.replace(params=params, effects=other_effects(eqn))


def prints(of: Any) -> bool:
    """Whether a jaxpr or an equation, or a body of one, has effects of `jax.debug`."""
    return len(other_effects(of)) < len(of.effects)


def other_effects(of: Any) -> set[Any]:
    """Effects of a jaxpr or an equation but those of `jax.debug`."""
    return {effect for effect in of.effects if "Debug" not in type(effect).__name__}


def inlined(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], *, checkpoints: bool = False
) -> list[Any]:
    """Evaluate, with plain calls in place.

    Args:
        checkpoints: whether what is checkpointed is evaluated in place, too.
    """
    values = Values.at_start(jaxpr, consts, args)
    debug = jaxpr.debug_info.with_unknown_names()
    for eqn in jaxpr.eqns:
        operands = values.read(eqn.invars)
        is_opened = checkpoints and eqn.primitive.name in CHECKPOINTS
        body = (eqn.params["jaxpr"], ()) if is_opened else call_body(eqn)
        results = (
            bind(eqn, operands, debug)
            if body is None
            else inlined(*body, operands, checkpoints=checkpoints)
        )
        values.write(eqn.outvars, results)
    return values.read(jaxpr.outvars)
