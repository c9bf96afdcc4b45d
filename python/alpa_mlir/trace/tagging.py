"""Name every equation of a loss function, so that its gradient's ops can be traced back to it.

The function under `jax.grad` is first traced to a jaxpr and then evaluated equation by
equation, each inside `jax.named_scope("alpa_eqn_<i>")`. JAX derives the names of the forward
and the backward ops from that scope: `jvp(alpa_eqn_7)` and `transpose(jvp(alpa_eqn_7))`. The
same primitives are bound in the same order, so the numbers do not change.

Calls of jitted functions are evaluated inside; equations that hold a rule of their own
(checkpoint, scan, while, cond, custom derivatives) stay whole and carry one tag. Equations of
a scan's body are tagged once more (`alpa_inner1_<i>`, in a scan within it `alpa_inner2_<i>`),
for the compiler may unroll it.

A scan over layers loses its `unroll`, which changes no result: JAX would write the layers that it
leaves over behind the loop, and in the gradient in front of it, so that they do not pair up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import alpa_runtime
import jax
from alpa_runtime import jax_internals, trees
from alpa_runtime.errors import FUNCTION, check_type
from jax.extend import core, source_info_util

from alpa_mlir.trace import checkpoints, shard_maps
from alpa_mlir.trace.checkpoints import is_over_layers, weight_flags
from alpa_mlir.trace.jaxprs import Values, bind, call_body, placed, scan_with_body
from alpa_mlir.trace.layer_markers import filled

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax
_core: Any = core

TAG_PREFIX = "alpa_eqn_"
INNER_PREFIX = "alpa_inner"


class TagSession:
    """Counts the tags given during one trace.

    Attributes:
        level: 0 for equations of the step, 1 for those of a scan's body, and so on.
        equations: tags given so far; the next equation gets this number.
        functions: functions whose equations were tagged.
        hooked: whether plain `jax.grad` goes through the session.
    """

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self.equations: int = 0
        self.functions = 0
        self.hooked = False

    def next_tag(self) -> str:
        prefix = f"{INNER_PREFIX}{self.level}_" if self.level else TAG_PREFIX
        tag = f"{prefix}{self.equations}"
        self.equations += 1
        return tag


# The session of this thread's trace. JAX keeps it in the key of its trace caches: a nested
# jitted function that was traced before is traced again, so that its gradients get tags too.
_session = _jax.make_user_context(default_value=None)


@contextlib.contextmanager
def tag_gradients(hook: bool = True) -> Generator[TagSession]:
    """Tag the equations of every function that is differentiated inside the block.

    Args:
        hook: also tag for users of plain `jax.grad` and `jax.value_and_grad`; without it
            only `alpa_mlir.grad` and `alpa_mlir.value_and_grad` tag.

    Warns when `jax.grad` cannot be hooked and nothing was tagged without that: ops of the backward
    pass are then assigned to layers without their names.

    Yields:
        The session, whose counters are final when the block ends.
    """
    _hide_frames()
    session = TagSession()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_session(session))
        if hook:
            session.hooked = stack.enter_context(jax_internals.intercept_grad(_wrap_vjp))
        yield session
    if hook and not (session.hooked or session.functions):
        warnings.warn(
            f"jax.grad of JAX {_jax.__version__} works in a way that is not known here: if the "
            "step takes gradients, backward ops are assigned to layers less exactly; fix: call "
            "alpa_mlir.grad or alpa_mlir.value_and_grad instead, or install a version of JAX "
            f"that was tried ({jax_internals.TRIED})",
            stacklevel=3,
        )


@functools.cache
def _hide_frames() -> None:
    """Keep our own frames out of the locations of ops: people look for theirs."""
    for package in (Path(__file__).parent, Path(alpa_runtime.__file__)):
        source_info_util.register_exclusion(f"{package.resolve().parent}{os.sep}")


def _wrap_vjp(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
        return original(tag_equations(fun), *primals, **options)

    return vjp


def current_session() -> TagSession | None:
    """That of the innermost `tag_gradients` block."""
    return _session.value


def tag_equations(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` with its equations tagged when called during a trace; otherwise just `fun`.

    A function that is already the output of this function, or that is called by one, is not
    tagged a second time.
    """

    @functools.wraps(fun)
    def tagged(*args: Any, **kwargs: Any) -> Any:
        session = _session.value
        if session is None:
            return fun(*args, **kwargs)
        with _session(None):
            return _call_tagged(session, fun, args, kwargs)

    return tagged


def _call_tagged(session: TagSession, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    leaves, in_tree = trees.flatten((args, kwargs))
    arrays = [i for i, leaf in enumerate(leaves) if trees.is_array(leaf)]
    # Leaves of the result that are no arrays (an aux may hold anything) go around the jaxpr.
    found: dict[str, Any] = {}

    def flat(*values: Any) -> list[Any]:
        filled = list(leaves)
        for i, value in zip(arrays, values, strict=True):
            filled[i] = value
        inner_args, inner_kwargs = trees.unflatten(in_tree, filled)
        result, found["tree"] = trees.flatten(fun(*inner_args, **inner_kwargs))
        found["leaves"] = [None if trees.is_array(x) else x for x in result]
        found["arrays"] = [i for i, x in enumerate(result) if trees.is_array(x)]
        return [result[i] for i in found["arrays"]]

    inputs = [leaves[i] for i in arrays]
    closed = filled(_jax.make_jaxpr(flat)(*inputs), call_body)
    # What a gradient is taken of are the arguments; batches are among the constants.
    of_weights = [False] * len(closed.consts) + [True] * len(inputs)
    outputs = _evaluate(session, closed.jaxpr, closed.consts, inputs, of_weights, None)
    session.functions += 1
    result = list(found["leaves"])
    for i, value in zip(found["arrays"], outputs, strict=True):
        result[i] = value
    return trees.unflatten(found["tree"], result)


def _evaluate(
    session: TagSession,
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    of_weights: Sequence[bool],
    call: Any | None,
) -> list[Any]:
    """Evaluate `jaxpr`, each equation under a tag.

    Args:
        of_weights: which of the constants and arguments are made of weights alone.
        call: the equation whose body it is.
    """
    # As JAX hands them to rules of `jax.custom_vjp`, which index them by traced numbers.
    arrays = [x if isinstance(x, jax.Array) else _jax.numpy.asarray(x) for x in consts]
    values = Values.at_start(jaxpr, arrays, args)
    made = Values.at_start(jaxpr, of_weights[: len(consts)], of_weights[len(consts) :])
    debug = jaxpr.debug_info.with_unknown_names()
    for eqn in jaxpr.eqns:
        eqn = placed(eqn, call)
        operands = values.read(eqn.invars)
        sources = weight_flags(eqn, made)
        body = call_body(eqn)
        if body is not None:
            flags = [False] * len(body[1]) + sources
            outputs = _evaluate(session, *body, operands, flags, eqn)
        elif (written := _written_otherwise(eqn, sources)) is not None:
            whole = _jax.make_jaxpr(written)(operands)
            flags = [False] * len(whole.consts) + sources
            outputs = _evaluate(session, whole.jaxpr, whole.consts, operands, flags, eqn)
        else:
            if eqn.primitive.name == "scan":
                eqn = with_tagged_body(eqn, session.level + 1, sources)
            with _jax.named_scope(session.next_tag()):
                outputs = bind(eqn, operands, debug)
        values.write(eqn.outvars, outputs)
        made.write(eqn.outvars, [all(sources)] * len(eqn.outvars))
    return values.read(jaxpr.outvars)


def _written_otherwise(
    eqn: Any, sources: Sequence[bool]
) -> Callable[[Sequence[Any]], list[Any]] | None:
    """What computes the same as an equation, in equations that can be cut; None for most."""
    if shard_maps.is_shard_map(eqn) and shard_maps.is_differentiable(eqn):
        return functools.partial(shard_maps.inlined, eqn)
    if checkpoints.is_around_layers(eqn, sources):
        return functools.partial(checkpoints.moved_into_scans, eqn, sources)
    return None


def with_tagged_body(eqn: Any, level: int, of_weights: Sequence[bool]) -> Any:
    """A scan whose body's equations are tagged, for the pass that unrolls layers.

    Args:
        of_weights: which of its operands are made of weights alone. One with matrices of such for
            each iteration is one over layers.
    """
    closed, params = eqn.params["jaxpr"], dict(eqn.params)
    consts, carried = jax_internals.scan_operands(eqn)
    rows = consts + carried
    if is_over_layers(eqn, of_weights):
        params["unroll"] = 1
    within = [*of_weights[:consts], *[False] * carried, *of_weights[rows:]]
    flags = [False] * len(closed.consts) + within

    def body(*args: Any) -> list[Any]:
        return _evaluate(TagSession(level), closed.jaxpr, closed.consts, args, flags, None)

    return scan_with_body(eqn.replace(params=params), body)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad` that needs no hook into JAX to be traced with exact tags.

    Takes the arguments of `jax.value_and_grad`, returns what it returns, and is exactly that
    function outside of a trace.

    Example:
        >>> loss, grads = alpa_mlir.value_and_grad(loss_fn)(params, batch)
    """
    check_type("value_and_grad", "fun", fun, FUNCTION)
    inner = _jax.value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(inner)
    def value_and_grad_fun(*args: Any, **kwargs: Any) -> Any:
        session = _session.value
        if session is None or session.hooked:
            return inner(*args, **kwargs)
        # Only the differentiated arguments may be arguments of the tagged function: the
        # others (which may be no arrays at all) are closed over, as jax.value_and_grad does.
        positions = [argnums] if isinstance(argnums, int) else list(argnums)
        positions = [p % len(args) for p in positions]

        def partial(*chosen: Any) -> Any:
            full = list(args)
            for position, value in zip(positions, chosen, strict=True):
                full[position] = value
            return fun(*full, **kwargs)

        chosen = tuple(args[p] for p in positions)
        which = 0 if isinstance(argnums, int) else tuple(range(len(positions)))
        tagged = tag_equations(partial)
        return _jax.value_and_grad(tagged, which, has_aux, **options)(*chosen)

    return value_and_grad_fun


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.grad` that needs no hook into JAX to be traced with exact tags.

    Example:
        >>> grads = alpa_mlir.grad(loss_fn)(params, batch)
    """
    check_type("grad", "fun", fun, FUNCTION)
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(both)
    def grad_fun(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return grad_fun
