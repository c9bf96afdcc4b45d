"""Scans within a loss that go over parts of the batch, as functions of all parts at once.

A loss that adds up those of parts of the batch by `jax.lax.scan`, or that maps over examples by
`jax.lax.map`, keeps its gradient in a loop, which micro-batches cannot cut and in which gradients
of weights are summed over devices each time. What an iteration adds depends on no other one, so
that it is what `jax.vmap` gives of all; how many examples are looked at together is then for the
plan to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy
from alpa_runtime import jax_internals
from jax.extend import core

from alpa_mlir.trace.jaxprs import bodies, draws_by_shape, is_literal
from alpa_mlir.trace.origins import Origin

_jax: Any = jax
_jnp: Any = jax.numpy
_core: Any = core


def is_over_parts(eqn: Any, sources: Sequence[Origin]) -> bool:
    """Whether an equation is a scan over data, with weights that its iterations share, whose
    carried values are sums of what iterations add."""
    if eqn.primitive.name != "scan":
        return False
    consts, carried = jax_internals.scan_operands(eqn)
    rows = consts + carried
    shared = zip(eqn.invars[:consts], sources[:consts], strict=True)
    return (
        any(origin.is_weights and len(v.aval.shape) > 1 for v, origin in shared)
        and any(len(v.aval.shape) > 1 for v in eqn.invars[rows:])
        and not any(origin.has_weights for origin in sources[rows:])
        and _only_adds(eqn.params["jaxpr"].jaxpr, consts, carried)
        and not _decides(eqn.params["jaxpr"].jaxpr)
    )


def _only_adds(jaxpr: Any, consts: int, carried: int) -> bool:
    """Whether each carried value is read once, by an addition that carries it on, or goes on as it
    is."""
    if jaxpr.effects:
        return False
    arguments = [*jaxpr.constvars, *jaxpr.invars]
    first = len(arguments) - len(jaxpr.invars) + consts
    names = {var: i for i, var in enumerate(arguments[first : first + carried])}
    reads: list[list[Any]] = [[] for _ in range(carried)]
    for eqn in jaxpr.eqns:
        own = [atom for atom in eqn.invars if not is_literal(atom) and atom in names]
        is_cast = eqn.primitive.name == "convert_element_type"
        if own and is_cast and eqn.outvars[0].aval.dtype == own[0].aval.dtype:
            names[eqn.outvars[0]] = names[own[0]]  # No longer of a weak type.
            continue
        for atom in own:
            reads[names[atom]].append(eqn)
    results: list[Any] = jaxpr.outvars
    for i, (argument, after) in enumerate(
        zip(arguments[first : first + carried], results[:carried], strict=True)
    ):
        others = [v for j, v in enumerate(results) if j != i and not is_literal(v)]
        if not _sums_exactly(argument.aval.dtype) or any(names.get(v) == i for v in others):
            return False
        if not is_literal(after) and names.get(after) == i:
            if reads[i]:
                return False
            continue
        if len(reads[i]) != 1 or is_literal(after):
            return False
        (addition,) = reads[i]
        if (
            addition.primitive.name not in ("add", "add_any")
            or addition.outvars[0] is not after
            or sum(not is_literal(v) and names.get(v) == i for v in addition.invars) != 1
            or any(v is after for v in others)
            or any(v is after for eqn in jaxpr.eqns for v in eqn.invars)
        ):
            return False
    return True


def _sums_exactly(dtype: Any) -> bool:
    """Whether the order of a sum makes no difference that counts."""
    if _jnp.issubdtype(dtype, _jnp.floating):
        return bool(_jnp.finfo(dtype).bits >= 32)
    return bool(_jnp.issubdtype(dtype, _jnp.integer))


def _decides(jaxpr: Any) -> bool:
    """Whether anything in it depends on how many parts there are: branches, of which `jax.vmap`
    runs all, gradients of those not taken included; loops, which it runs until all are done; and
    random numbers whose generator goes by shapes."""
    return any(
        eqn.primitive.name in ("cond", "while")
        or draws_by_shape(eqn)
        or any(map(_decides, bodies(eqn)))
        for eqn in jaxpr.eqns
    )


def of_all_parts(eqn: Any, operands: Sequence[Any]) -> Any | None:
    """A scan over parts as a jaxpr that computes all of them at once; None if something within has
    no rule for `jax.vmap`."""
    consts, carried = jax_internals.scan_operands(eqn)
    rows = consts + carried
    body = _core.jaxpr_as_fun(eqn.params["jaxpr"])

    def mapped(*operands: Any) -> list[Any]:
        before = operands[consts:rows]

        def iteration(shared: Sequence[Any], part: Sequence[Any]) -> Any:
            results = body(*shared, *map(_jnp.zeros_like, before), *part)
            return results[:carried], results[carried:]

        found = _jax.vmap(iteration, in_axes=(None, 0))(operands[:consts], operands[rows:])
        added = [_jnp.sum(y, axis=0, dtype=y.dtype) for y in found[0]]
        return [*map(_jnp.add, before, added), *found[1]]

    try:
        return _jax.make_jaxpr(mapped)(*operands)
    except NotImplementedError:
        return None
