"""Programs of devices inside of a step (`jax.shard_map`) as what they compute of whole arrays.

A step with a `shard_map` says what each device of a mesh does with its block of the arrays. That
is a function of the whole arrays like any other: inputs are cut into blocks, the body is mapped
over them, and collectives become sums, gathers and transposes over the mapped dimensions. JAX's
own rules for collectives under `jax.vmap` say how. Nothing of the mesh is left but its sizes, so
a plan may split the mapped dimensions over devices, and others as well.

Explicit sharding types go the same way: every equation is evaluated again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy
import numpy as np
from alpa_runtime import jax_internals
from jax.extend import core, source_info_util

from alpa_mlir.errors import TraceError
from alpa_mlir.trace import kernel_maps, packed_attention
from alpa_mlir.trace.jaxprs import (
    CHECKPOINTS,
    Values,
    bind,
    bodies,
    draws_by_shape,
    is_jaxpr,
    is_literal,
    placed,
    user_line,
)

_jax: Any = jax
_jnp: Any = jax.numpy
_core: Any = core

_source: Any = source_info_util
_sharding: Any = jax.sharding

_NAME = "shard_map"
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",  # Rules for `jax.vmap` are for the user's, not for this one.
}
_KERNELS = ("pallas_call", "mpmd_map", "ffi_call")
# What says only where a value lies, or that it may differ between devices.
_PLACES = ("sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast", "device_put")
_SHARDINGS = ("sharding", "out_sharding")
_UNKNOWN = ("all_gather_reduced", "preduced", "vary_unreduced_cast", "reduced_vary_cast")


def is_shard_map(eqn: Any) -> bool:
    return eqn.primitive.name == _NAME


def holds(jaxpr: Any) -> bool:
    """Whether a jaxpr holds a `shard_map`, values of explicit sharding types, or a kernel that
    numbers the sequences of many examples."""
    return any(
        is_shard_map(eqn)
        or _has_explicit(eqn)
        or packed_attention.is_packed(eqn)
        or any(holds(inner) for inner in bodies(eqn))
        for eqn in jaxpr.eqns
    ) or any(_is_explicit(v.aval) for v in jaxpr.invars)


def is_differentiable(eqn: Any) -> bool:
    """Whether `inlined` of a `shard_map` has the gradients that the `shard_map` has.

    A rule of the user's for the backward pass is written for what JAX makes of a device's
    cotangents, and is kept until it has been applied. So is a branch that devices choose and whose
    results JAX takes for the same on all of them: its gradient is not the derivative.
    """
    if any(_is_explicit(v.aval) for v in eqn.invars):
        return False
    return not _any(eqn.params["jaxpr"], _has_own_gradient)


def _has_own_gradient(eqn: Any) -> bool:
    if _is_kernel(eqn):
        return True
    if eqn.primitive.name == "cond":
        chosen = jax_internals.varying_axes(eqn.invars[0].aval)
        return any(not chosen <= jax_internals.varying_axes(v.aval) for v in eqn.outvars)
    return eqn.primitive.name.startswith("custom_vjp_call")


def inlined(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Results of a `shard_map` whose gradients may still be taken, of whole arrays."""
    return _Evaluator(True, {}).shard_map(eqn, operands)


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Results of a jaxpr in which nothing is left to be differentiated, without any mesh."""
    return _Evaluator(False, {}).run(closed.jaxpr, closed.consts, args)


def _are_jaxprs(value: Any) -> bool:
    if not isinstance(value, tuple) or not value:
        return False
    return all(is_jaxpr(x) for x in cast("tuple[Any, ...]", value))


def _any(jaxpr: Any, predicate: Callable[[Any], bool]) -> bool:
    """Whether the predicate holds of an equation of the jaxpr, those within others included."""
    return any(predicate(eqn) or any(_any(x, predicate) for x in bodies(eqn)) for eqn in jaxpr.eqns)


def _is_explicit(aval: Any) -> bool:
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return bool(getattr(mesh, "explicit_axes", ()))


def _has_explicit(eqn: Any) -> bool:
    return any(_is_explicit(v.aval) for v in (*eqn.invars, *eqn.outvars))


class _Evaluator:
    """Evaluates jaxprs equation by equation, without meshes and sharding types.

    Args:
        differentiated: whether gradients may be taken of what is evaluated.
        sizes: of the axes that are mapped around it.
    """

    def __init__(self, differentiated: bool, sizes: dict[str, int]) -> None:
        self._differentiated = differentiated
        self._sizes = sizes
        self._contexts: dict[int, tuple[Any, Any]] = {}

    def run(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], call: Any | None = None
    ) -> list[Any]:
        """Results of a jaxpr; `call` is the equation whose body it is."""
        values = Values.at_start(jaxpr, consts, args)
        debug = jaxpr.debug_info.with_unknown_names()
        for eqn in jaxpr.eqns:
            eqn = placed(eqn, call)
            eqn = eqn.replace(invars=list(map(_plain_atom, eqn.invars)))
            operands = values.read(eqn.invars)
            values.write(eqn.outvars, self._equation(eqn, operands, debug))
        return values.read(map(_plain_atom, jaxpr.outvars))

    def _equation(self, eqn: Any, operands: Sequence[Any], debug: Any) -> list[Any]:
        name = eqn.primitive.name
        if is_shard_map(eqn):
            return self.shard_map(eqn, operands)
        if name == "sharding_constraint" and not self._sizes and not _has_explicit(eqn):
            return bind(eqn, operands, debug)
        if name in _PLACES:
            return list(operands)
        if self._sizes:
            _check(eqn)
        function = _COLLECTIVES.get(name) if self._sizes else None
        if function is not None:
            names = _collective_axes(eqn)
            # An axis of one device is not mapped: its collectives change nothing.
            axes = [n for n in names if isinstance(n, int) or self._sizes[n] > 1]
            with _at(eqn):
                return [function(eqn, axes, *operands)]
        if packed_attention.is_packed(eqn):
            with _at(eqn), _no_mesh():
                by = packed_attention.by_example if self._sizes else packed_attention.with_own_lists
                return by(eqn, operands)
        if self._sizes and jax_internals.is_interpreted(eqn):
            # Maps of its blocks know the mesh that it was traced under.
            with _at(eqn):
                body = jax_internals.interpreted(eqn)
            return self.run(body.jaxpr, body.consts, operands, eqn)
        if _is_kernel(eqn):
            plain = self._plain(eqn, kernel=True)
            if not self._sizes:
                return bind(plain, operands, debug)
            with _at(eqn), _no_mesh():
                return kernel_maps.kept(
                    lambda *blocks: bind(plain, blocks, debug),
                    [_plain_aval(v.aval) for v in eqn.invars],
                    operands,
                )
        if self._knows_mesh(eqn):
            with _at(eqn), _no_mesh():
                return jax_internals.expanded(eqn, operands)
        has_rule = self._differentiated and name in ("custom_jvp_call", "custom_vjp_call")
        call = None if has_rule else _call(eqn)
        if call is not None and len(call[0].invars) == len(operands):
            return self.run(*call, operands, eqn)
        if name in CHECKPOINTS and self._is_changed(eqn.params["jaxpr"]):
            body = self._body(eqn.params["jaxpr"])
            consts = list(body.consts)

            def explicit(*args: Any) -> list[Any]:
                return _jax.core.eval_jaxpr(body.jaxpr, args[: len(consts)], *args[len(consts) :])

            opened = _jax.make_jaxpr(explicit)(*consts, *body.in_avals).jaxpr
            with _at(eqn):
                return list(
                    eqn.primitive.bind(*consts, *operands, **{**eqn.params, "jaxpr": opened})
                )
        return bind(self._plain(eqn), operands, debug)

    def _knows_mesh(self, eqn: Any) -> bool:
        """Whether it is an op that is an object (`jnp.searchsorted`), whose results have the mesh
        that it was made under; not one whose gradient is the object's own."""
        if eqn.primitive.name != "call_hi_primitive" or bodies(eqn):
            return False
        if self._differentiated and any(
            _jax.numpy.issubdtype(v.aval.dtype, np.inexact) for v in eqn.outvars
        ):
            return False
        return not all(v.aval.sharding.mesh.empty for v in eqn.outvars)

    def _plain(self, eqn: Any, kernel: bool = False) -> Any:
        """The equation without meshes and shardings; the body of a kernel stays as it is."""
        params: dict[str, Any] = {}
        for key, value in eqn.params.items():
            if key in _SHARDINGS:
                value = None
            elif key == "out_avals":
                of = _jax.core.ShapedArray
                with _no_mesh():
                    value = tuple(of(x.shape, x.dtype, x.weak_type) for x in value)
            elif kernel:
                pass
            elif is_jaxpr(value) and self._is_changed(value):
                value = self._body(value)
            elif _are_jaxprs(value):
                value = tuple(self._body(x) for x in cast("tuple[Any, ...]", value))
            params[key] = value
        return eqn.replace(params=params, ctx=self._context(eqn.ctx))

    def _context(self, ctx: Any) -> Any:
        """The context of an equation with no mesh in it."""
        if id(ctx) not in self._contexts:
            with ctx.manager, _no_mesh():
                plain = _jax.make_jaxpr(_jax.lax.neg)(np.float32(0)).eqns[-1].ctx
            self._contexts[id(ctx)] = ctx, plain  # Kept, that no other gets its number.
        return self._contexts[id(ctx)][1]

    def _is_changed(self, body: Any) -> bool:
        return bool(self._sizes) or holds(body.jaxpr if hasattr(body, "jaxpr") else body)

    def _body(self, body: Any) -> Any:
        """A jaxpr inside of an equation, evaluated likewise, with its constants."""
        inner, consts = (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())

        def function(*args: Any) -> list[Any]:
            return self.run(inner, consts, args)

        variables = inner.invars[len(inner.invars) - len(body.in_avals) :]
        with _no_mesh():
            return _jax.make_jaxpr(function)(*(_plain_aval(v.aval) for v in variables))

    def shard_map(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Results of a `shard_map`, of whole arrays."""
        try:
            return self._mapped(eqn, operands, joins=True)
        except NameError:  # A rule of the user's for gradients names an axis.
            return self._mapped(eqn, operands, joins=False)

    def _mapped(self, eqn: Any, operands: Sequence[Any], joins: bool) -> list[Any]:
        params = eqn.params
        mesh, jaxpr = params["mesh"], params["jaxpr"]
        axes = [name for name in mesh.axis_names if name in params["newly_manual_axes"]]
        every = {name: int(mesh.shape[name]) for name in axes}
        axes = [name for name in axes if every[name] > 1]
        sizes = {name: every[name] for name in axes}
        for spec in (*params["in_specs"], *params["out_specs"]):
            if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
                raise _refusal(eqn, "takes or gives values that are unreduced")
        # The dimensions of a value: axes of the mesh by name, those of a block by number.
        held = [
            _dimensions(spec, v.aval, sizes)
            for spec, v in zip(params["in_specs"], jaxpr.invars, strict=True)
        ]
        wanted = [
            _dimensions(spec, v.aval, sizes)
            for spec, v in zip(params["out_specs"], jaxpr.outvars, strict=True)
        ]
        for first, second in _joined(axes, [*held, *wanted], jaxpr) if joins else ():
            every[second] = 1
            sizes[first] *= sizes.pop(second)
            axes.remove(second)
            for dimensions in (*held, *wanted):
                if second in dimensions:
                    dimensions.remove(second)
        within = _Evaluator(self._differentiated, {**self._sizes, **every, **sizes})

        def mapped(depth: int, values: Sequence[Any], held: list[list[Any]]) -> list[Any]:
            """The body over the axes from number `depth` on."""
            if depth == len(axes):
                return within.run(jaxpr, (), values)
            axis = axes[depth]
            alike: dict[int, Any] = {}
            order: list[int] = []
            # Where the axis lies in a result; axes further out come in later.
            inner = [[x for x in w if x not in axes[:depth]] for w in wanted]
            places = [w.index(axis) if axis in w else 0 for w in inner]
            groups = range(max(places, default=0) + 1)

            def body(marker: Any, *blocks: Any) -> list[list[Any]]:
                rest = [[x for x in each if x != axis] for each in held]
                results = mapped(depth + 1, blocks, rest)
                for i, result in enumerate(results):
                    if axis not in wanted[i] and not jax_internals.same_trace(result, marker):
                        alike[i] = result  # The same on all devices of the axis.
                made = [[i for i in range(len(results)) if places[i] == p and i not in alike]
                        for p in groups]  # fmt: skip
                order.extend(i for group in made for i in group)
                return [[results[i] for i in group] for group in made]

            over = [each.index(axis) if axis in each else None for each in held]
            marker = np.zeros(sizes[axis], np.int8)
            call = _jax.vmap(body, (0, *over), list(groups), axis_name=axis, axis_size=sizes[axis])
            found = [x for group in call(marker, *values) for x in group]
            for i, x in zip(order, found, strict=True):
                alike[i] = x if axis in wanted[i] else _jax.lax.index_in_dim(x, 0, 0, False)
            return [alike[i] for i in range(len(wanted))]

        def parted(x: Any, var: Any, dimensions: Sequence[Any]) -> Any:
            of_block = var.aval.shape
            return _reshaped(
                x, [of_block[n] if isinstance(n, int) else sizes[n] for n in dimensions]
            )

        try:
            with _at(eqn), _no_mesh(), jax_internals.mapped_products():
                blocks = [parted(*x) for x in zip(operands, jaxpr.invars, held, strict=True)]
                results = mapped(0, blocks, held)
                return [
                    _reshaped(x, v.aval.shape) for x, v in zip(results, eqn.outvars, strict=True)
                ]
        except NotImplementedError as error:
            what = f"holds an op that cannot be mapped over a mesh axis: {error}"
            raise _refusal(eqn, what) from error


def _dimensions(spec: Any, aval: Any, sizes: Iterable[str]) -> list[Any]:
    """Of an array that a spec cuts into blocks: for each dimension the axes, major first, and
    its number."""
    entries = [*spec, *[None] * (len(aval.shape) - len(spec))]
    return [x for i, e in enumerate(entries) for x in (*(n for n in _names(e) if n in sizes), i)]


def _joined(
    axes: Sequence[str], tensors: Sequence[Sequence[Any]], jaxpr: Any
) -> list[tuple[str, str]]:
    """Pairs of axes of which the second always follows the first, in all tensors and collectives:
    they are mapped as one, so that devices and micro-batches may take parts of both."""
    lists = list(tensors)
    reduced: list[Sequence[Any]] = []  # The order does not matter.
    apart: set[Any] = set()

    def look(eqn: Any) -> bool:
        name = eqn.primitive.name
        if name in _COLLECTIVES:
            (reduced if name in _REDUCTIONS else lists).append(_collective_axes(eqn))
        elif name not in _PLACES:
            words = _jax.tree.leaves(list(eqn.params.values()))
            apart.update(x for x in words if isinstance(x, str))
        return False

    _any(jaxpr, look)
    free = [axis for axis in axes if axis not in apart and any(axis in t for t in tensors)]

    def follows(first: str, second: str) -> bool:
        both = [t for t in (*lists, *reduced) if first in t or second in t]
        return all(first in t and second in t for t in both) and all(
            t.index(second) == t.index(first) + 1 for t in lists if first in t
        )

    leader = {b: a for a in free for b in free if a != b and follows(a, b)}
    pairs: list[tuple[str, str]] = []
    for axis, first in leader.items():
        while first in leader:
            first = leader[first]
        pairs.append((first, axis))
    return pairs


def _names(entry: Any) -> list[str]:
    """Mesh axes in an entry of a PartitionSpec, major first."""
    return [] if entry is None else _axes(entry)


def _reshaped(x: Any, shape: Sequence[int]) -> Any:
    return x if tuple(np.shape(x)) == tuple(shape) else _jax.lax.reshape(x, tuple(shape))


def _plain_aval(aval: Any) -> Any:
    return _jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _plain_atom(atom: Any) -> Any:
    """The same variable or literal; literals know the mesh that they were made under."""
    if not is_literal(atom) or isinstance(atom.val, (bool, int, float, complex)):
        return atom
    value = np.asarray(atom.val)
    with _no_mesh():
        return _core.Literal(value, _jax.typeof(value))


def _no_mesh() -> Any:
    return _sharding.use_abstract_mesh(_sharding.AbstractMesh((), ()))


def _at(eqn: Any) -> Any:
    """Name stack and place of an equation, for what stands for it."""
    info = eqn.source_info
    return _source.user_context(
        info.traceback, name_stack=_source.current_name_stack() + info.name_stack
    )


def _call(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Body and constants of an equation that only calls it."""
    key = _CALLS.get(eqn.primitive.name)
    body = eqn.params.get(key) if key else None
    if body is None:
        return None
    return (body.jaxpr, body.consts) if isinstance(body, _core.ClosedJaxpr) else (body, ())


def _is_kernel(eqn: Any) -> bool:
    """Whether it is written for the blocks of one device: nothing says what it does with more, or
    it is known to do something else. It is called once for each block."""
    name = eqn.primitive.name
    if name in _KERNELS or draws_by_shape(eqn):
        return True
    known = name in (*_CALLS, *_PLACES, *_COLLECTIVES, *_UNKNOWN, _NAME)
    return not known and not kernel_maps.has_rule(eqn.primitive)


def _check(eqn: Any) -> None:
    """Refuse what has another meaning when it is mapped over devices."""
    name = eqn.primitive.name
    if eqn.params.get("axis_index_groups") is not None:
        raise _refusal(eqn, f"has a collective of groups of an axis ({name})")
    if name in _UNKNOWN or name.endswith(("_start", "_done")) or name.startswith("unreduced_"):
        raise _refusal(eqn, f"has a collective that is not known here ({name})")
    if _is_kernel(eqn) and any(_any(x, _is_collective) for x in bodies(eqn)):
        raise _refusal(eqn, f"has a kernel that knows its device or talks to others ({name})")


def _is_collective(eqn: Any) -> bool:
    name = eqn.primitive.name
    return name in _COLLECTIVES or name.startswith(("dma_", "semaphore_"))


def _refusal(eqn: Any, what: str, fix: str = "write the step without it") -> TraceError:
    place = user_line(eqn)
    return TraceError(
        f"a shard_map of the step {what}" + (f" at {place}" if place else ""),
        where=_NAME,
        fix=fix,
    )


def _axes(value: Any) -> list[str]:
    return list(cast("Sequence[str]", value)) if isinstance(value, (tuple, list)) else [value]


def _collective_axes(eqn: Any) -> list[str]:
    return _axes(eqn.params["axes" if "axes" in eqn.params else "axis_name"])


def _psum(eqn: Any, axes: list[Any], x: Any) -> Any:
    return _jax.lax.psum(x, tuple(axes)) if axes else x


def _pmax(eqn: Any, axes: list[Any], x: Any) -> Any:
    return _jax.lax.pmax(x, tuple(axes)) if axes else x


def _pmin(eqn: Any, axes: list[Any], x: Any) -> Any:
    return _jax.lax.pmin(x, tuple(axes)) if axes else x


def _all_gather(eqn: Any, axes: list[Any], x: Any) -> Any:
    dimension = eqn.params["all_gather_dimension"]
    x = x if eqn.params["tiled"] else _jax.lax.expand_dims(x, (dimension,))
    for axis in reversed(axes):
        x = _jax.lax.all_gather(x, axis, axis=dimension, tiled=True)
    return x


def _reduce_scatter(eqn: Any, axes: list[Any], x: Any) -> Any:
    dimension = eqn.params["scatter_dimension"]
    for axis in axes:
        if _jnp.issubdtype(x.dtype, _jnp.inexact):
            x = _jax.lax.psum_scatter(x, axis, scatter_dimension=dimension, tiled=True)
        else:
            size = x.shape[dimension] // _jax.lax.axis_size(axis)
            start = _jax.lax.axis_index(axis) * size
            total = _jax.lax.psum(x, axis)
            x = _jax.lax.dynamic_slice_in_dim(total, start, size, dimension)
    return x if eqn.params["tiled"] else _jax.lax.squeeze(x, (dimension,))


def _ppermute(eqn: Any, axes: list[Any], x: Any) -> Any:
    """Devices to which nobody sends get zeros."""
    if len(_axes(eqn.params["axis_name"])) > 1:
        raise _refusal(eqn, "has a ppermute over several axes at once")
    if not axes:
        return x if eqn.params["perm"] else _jnp.zeros_like(x)
    size = _jax.lax.axis_size(axes[0])
    sent = [(int(a), int(b)) for a, b in eqn.params["perm"]]
    free = [i for i in range(size) if i not in {a for a, _ in sent}]
    zeros = [i for i in range(size) if i not in {b for _, b in sent}]
    found = _jax.lax.ppermute(x, axes[0], [*sent, *zip(free, zeros, strict=True)])
    if not zeros:
        return found
    index = _jax.lax.axis_index(axes[0])
    is_zero = index == zeros[0]
    for i in zeros[1:]:
        is_zero |= index == i
    return _jnp.where(is_zero, _jnp.zeros_like(found), found)


def _all_to_all(eqn: Any, axes: list[Any], x: Any) -> Any:
    """JAX's rule for operands that are the same on all devices broadcasts them to a wrong shape,
    so they are made different ones first. Whether they are is not known in a loop's body."""
    params = eqn.params
    if not axes:
        return x  # Where it is not tiled, JAX adds and drops the dimensions around it.
    for axis in axes:
        x = _jax.lax.select(_jax.lax.axis_index(axis) >= 0, x, x)
    name = params["axis_name"]
    return eqn.primitive.bind(
        x, **{**params, "axis_name": tuple(axes) if isinstance(name, tuple | list) else name}
    )


def _axis_index(eqn: Any, axes: list[Any]) -> Any:
    result: Any = np.int32(0)
    for axis in axes:
        result = result * np.int32(_jax.lax.axis_size(axis)) + _jax.lax.axis_index(axis)
    return result


_REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin")
_COLLECTIVES: dict[str, Callable[..., Any]] = {
    "psum": _psum,
    "psum_invariant": _psum,
    "all_gather": _all_gather,
    "all_gather_invariant": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "ppermute": _ppermute,
    "all_to_all": _all_to_all,
    "axis_index": _axis_index,
    "pmax": _pmax,
    "pmin": _pmin,
}
