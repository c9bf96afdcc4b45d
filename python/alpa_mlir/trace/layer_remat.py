"""Parts of a function that are computed again for its gradients, cut as layers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import pairwise
from math import prod
from typing import Any, TypeVar, overload

import jax
from alpa_runtime import trees

from alpa_mlir.errors import MethodError
from alpa_mlir.trace.jaxprs import (
    Values,
    bind,
    bodies,
    call_body,
    function_of,
    inlined,
    is_literal,
)
from alpa_mlir.trace.layer_markers import filled, is_layer_marker
from alpa_mlir.trace.tracing import known_positions

_jax: Any = jax

_F = TypeVar("_F", bound=Callable[..., Any])
# Numbers of the equations at which parts begin, of a jaxpr without plain calls.
Cut = Callable[[Any], list[int]]


@overload
def manual_remat(fun: _F, *, static_argnums: int | Sequence[int] = ()) -> _F: ...
@overload
def manual_remat(*, static_argnums: int | Sequence[int] = ()) -> Callable[[_F], _F]: ...
def manual_remat(fun: Any = None, *, static_argnums: int | Sequence[int] = ()) -> Any:
    """A function whose parts between marks are computed again for its gradients.

    Each part is a `jax.checkpoint`, and the marks stay. Where parts are the layers of a pipeline,
    `remat="all"` of a method does the same in the compiler.

    Args:
        fun: with `mark_pipeline_boundary` or `layer_boundary` between its parts.
        static_argnums: arguments that are Python values.

    Example:
        >>> loss, gradients = jax.value_and_grad(alpa_mlir.manual_remat(loss_fn))(params)
    """
    return _decorated(fun, static_argnums, _at_marks)


@overload
def automatic_remat(
    fun: _F, *, layer_num: int, eps: float = 0.6, static_argnums: int | Sequence[int] = ()
) -> _F: ...
@overload
def automatic_remat(
    *, layer_num: int, eps: float = 0.6, static_argnums: int | Sequence[int] = ()
) -> Callable[[_F], _F]: ...
def automatic_remat(
    fun: Any = None,
    *,
    layer_num: int,
    eps: float = 0.6,
    static_argnums: int | Sequence[int] = (),
) -> Any:
    """A function in so many parts of like FLOPs that are computed again for its gradients.

    Parts may be finer than the layers of a pipeline, which are found as if there were none. They
    are cut where the fewest bytes are kept.

    Args:
        layer_num: how many parts.
        eps: by what share of their mean FLOPs a cut may be off its place.
        static_argnums: arguments that are Python values.

    Raises:
        MethodError: the numbers make no sense.

    Example:
        >>> gradients = jax.grad(alpa_mlir.automatic_remat(loss_fn, layer_num=4))(params)
    """
    if layer_num < 1 or not eps >= 0:
        raise MethodError(
            f"layer_num={layer_num}, eps={eps}",
            where="automatic_remat",
            fix="use at least 1, and 0 or more",
        )
    return _decorated(fun, static_argnums, lambda jaxpr: _balanced(jaxpr, layer_num, eps))


def _decorated(fun: Any, static_argnums: int | Sequence[int], cut: Cut) -> Any:
    if fun is None:
        return partial(_decorated, static_argnums=static_argnums, cut=cut)

    @wraps(fun)
    def in_parts(*args: Any) -> Any:
        static = known_positions(static_argnums, len(args))
        closed, leaves, tree = trees.flat_jaxpr(fun, args, static)
        closed = filled(closed, call_body)
        closed = _jax.make_jaxpr(partial(inlined, closed.jaxpr, closed.consts))(leaves)
        return trees.unflatten(tree, _run_in_parts(closed, leaves, cut(closed.jaxpr)))

    return in_parts


def _run_in_parts(closed: Any, args: Sequence[Any], starts: Sequence[int]) -> list[Any]:
    """Evaluate with a checkpoint around the equations from each start to the next."""
    jaxpr = closed.jaxpr
    values = Values.at_start(jaxpr, closed.consts, args)
    debug = jaxpr.debug_info.with_unknown_names()
    bounds = sorted({0, *starts, len(jaxpr.eqns)})
    needed = _needed_after(jaxpr, bounds)
    for first, end in pairwise(bounds):
        eqns = jaxpr.eqns[first:end]
        while eqns and is_layer_marker(eqns[0]):  # Marks stand between the parts.
            values.write(eqns[0].outvars, bind(eqns[0], values.read(eqns[0].invars), debug))
            eqns = eqns[1:]
        made = {var for eqn in eqns for var in eqn.outvars}
        read = {a for eqn in eqns for a in eqn.invars if not is_literal(a)} - made
        inputs = [var for var in values.known() if var in read]
        outputs = [var for eqn in eqns for var in eqn.outvars if var in needed[end]]

        part = function_of(eqns, inputs, outputs, debug)
        values.write(outputs, _jax.checkpoint(part)(*values.read(inputs)))
    return values.read(jaxpr.outvars)


def _needed_after(jaxpr: Any, bounds: Sequence[int]) -> dict[int, set[Any]]:
    """What is still read from each bound on."""
    result: dict[int, set[Any]] = {}
    needed = {a for a in jaxpr.outvars if not is_literal(a)}
    for place in range(len(jaxpr.eqns), -1, -1):
        if place < len(jaxpr.eqns):
            invars = jaxpr.eqns[place].invars
            needed |= {a for a in invars if not is_literal(a)}
        if place in bounds:
            result[place] = set(needed)
    return result


def _at_marks(jaxpr: Any) -> list[int]:
    return [place for place, eqn in enumerate(jaxpr.eqns) if is_layer_marker(eqn)]


def _balanced(jaxpr: Any, parts: int, eps: float) -> list[int]:
    """Cuts near equal shares of the FLOPs, where the fewest bytes of values cross."""
    costs = [_flops(eqn) for eqn in jaxpr.eqns]
    total = sum(costs)
    last = {a: i for i, eqn in enumerate(jaxpr.eqns) for a in eqn.invars if not is_literal(a)}
    last.update({a: len(jaxpr.eqns) for a in jaxpr.outvars if not is_literal(a)})
    crossing, done = [0] * (len(jaxpr.eqns) + 1), [0.0]
    for place, eqn in enumerate(jaxpr.eqns):
        done.append(done[-1] + costs[place])
        for var in eqn.outvars:
            for later in range(place + 1, last.get(var, place) + 1):
                crossing[later] += var.aval.size * _itemsize(var.aval)
    cuts: list[int] = []
    for number in range(1, parts):
        begin = cuts[-1] + 1 if cuts else 1
        places = range(begin, len(jaxpr.eqns))
        wanted, slack = total * number / parts, eps * total / parts / 2
        near = [place for place in places if abs(done[place] - wanted) <= slack]
        near = near or sorted(places, key=lambda place: abs(done[place] - wanted))[:1]
        if near:
            cuts.append(min(near, key=lambda place: (crossing[place], abs(done[place] - wanted))))
    return cuts


def _itemsize(aval: Any) -> int:
    return int(getattr(aval.dtype, "itemsize", 4))


def _flops(eqn: Any) -> float:
    """Of an equation: multiplications and additions of dots and convolutions, else its results'
    elements."""
    size = float(sum(var.aval.size for var in eqn.outvars))
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * size * prod(eqn.invars[0].aval.shape[i] for i in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel = eqn.invars[1].aval
        features = eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * size * kernel.size / kernel.shape[features]
    times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
    return size + times * sum(_flops(each) for body in bodies(eqn) for each in body.eqns)
