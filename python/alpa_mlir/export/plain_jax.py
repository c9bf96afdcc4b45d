"""What an exported module of shardings holds besides its tables; it needs JAX alone.

`alpa_mlir.export.jax_module` puts a plan's tables in the place of the empty ones.
"""

# pyright: basic

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_jax: Any = jax  # With what type checkers do not know of it.
Shape = tuple[int, ...]
Held = tuple[Shape, Any]  # A PartitionSpec.

# <tables>
AXES: dict[str, int] = {}
DEVICES: list[int] = []
MICRO_BATCHES = 1
NAMES: list[str] = []
STATIC: list[int] = []
STATE: list[int] = []
ARGUMENTS: dict[str, P] = {}
RESULTS: dict[str, P] = {}
CONSTRAINTS: dict[str, list[tuple[list[Held], list[Held]]]] = {}
# </tables>


def mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """The plan's mesh.

    Args:
        devices: of the whole cluster, in the plan's order; by default `jax.devices()`.
    """
    found = list(jax.devices() if devices is None else devices)
    if len(found) <= max(DEVICES):
        raise ValueError(f"got {len(found)} devices, the plan needs {max(DEVICES) + 1}")
    chosen = np.empty(len(DEVICES), object)
    chosen[:] = [found[number] for number in DEVICES]
    return Mesh(chosen.reshape(tuple(AXES.values())), tuple(AXES))


def argument_specs(*args: Any, **named: Any) -> tuple[Any, ...]:
    """A tree of `PartitionSpec`s for each argument that is given, in the order of `NAMES`; None for
    static ones and in the place of Python values. Objects of flax.nnx have nested dictionaries, as
    `nnx.to_pure_dict` makes them of their state."""
    given = _given(args, named)
    _, arrays = _taken_apart(NAMES, given)
    return tuple(
        None if i in STATIC else _specs(ARGUMENTS, NAMES[i], tree)
        for i, tree in enumerate(arrays)
        if given[i] is not _LEFT_OUT
    )


def result_specs(result: Any) -> Any:
    """A tree of `PartitionSpec`s for the step's result, or for the shapes of it. For steps that
    change objects of flax.nnx, the result is a tuple: their next states, and what is returned."""
    return _specs(RESULTS, "result", result)


def place(*args: Any, devices: Sequence[Any] | None = None, **named: Any) -> tuple[Any, ...]:
    """The arguments on the plan's devices, in the order of `NAMES`. Objects of flax.nnx are those
    that are given; they get the placed arrays."""
    on = mesh(devices)
    pairs = zip(NAMES, _given(args, named), strict=True)
    names, given = zip(*((name, x) for name, x in pairs if x is not _LEFT_OUT), strict=True)
    form, arrays = _taken_apart(names, given)
    placed = [
        tree if specs is None else jax.device_put(tree, _shardings(on, specs))
        for tree, specs in zip(arrays, argument_specs(*args, **named), strict=True)
    ]
    form.update([given[i] for i in form.slots], [placed[i] for i in form.slots])
    return tuple(given[i] if i in form.slots else x for i, x in enumerate(form.filled(placed)))


def jit(
    step: Callable[..., Any],
    /,
    *args: Any,
    devices: Sequence[Any] | None = None,
    constrain: bool = True,
    **named: Any,
) -> Step:
    """`jax.jit(step)` with the plan's shardings.

    Objects of flax.nnx may be among the arguments, and are changed in place; so may be trees with
    Python values, such as modules of equinox, whose other values compile the step again.

    Args:
        args: those of the step, as it takes them: arrays, or `jax.ShapeDtypeStruct`s in their
            place. Static ones that it has defaults for may be left out.
        devices: as `mesh` has it.
        constrain: hold the values of `CONSTRAINTS` as the plan does, too.
        named: arguments of the step by name, and more options of `jax.jit`'s;
            `donate_argnums=STATE` gives away the arguments that the step returns anew, all of their
            arrays.
    """
    on = mesh(devices)
    options = {name: value for name, value in named.items() if name not in NAMES}
    given = _given(args, {name: value for name, value in named.items() if name in NAMES})
    dynamic = [i for i in range(len(NAMES)) if i not in STATIC]
    by_position = len(args)  # What is jitted keeps no array alive.

    def called(fn: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Called as `jit` was: by position, by name."""
        left_out = (i for i in range(by_position) if values[i] is _LEFT_OUT)
        count = next(left_out, by_position)
        rest = zip(NAMES[count:], values[count:], strict=True)
        by_name = {name: value for name, value in rest if value is not _LEFT_OUT}
        return fn(*values[:count], **by_name)

    held = constrained(step, on) if constrain else step
    form, arrays = _taken_apart(NAMES, given)
    made: dict[_Form, _Made] = {}

    def of_dynamic(*values: Any) -> Any:
        rest = iter(values)
        full = [x if i in STATIC else next(rest) for i, x in enumerate(given)]
        return form.run(functools.partial(called, step), full, made)

    @functools.wraps(step, updated=())
    def call(*values: Any) -> Any:
        *trees, form = values
        return form.run(functools.partial(called, held), trees, made)

    # `jax.jit` takes arguments with shardings by position only, and looks their names up here.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in (*NAMES, "_form")]
    vars(call)["__signature__"] = inspect.Signature(parameters)
    specs = [_specs(ARGUMENTS, NAMES[i], arrays[i]) for i in dynamic]
    traced, shapes = jax.make_jaxpr(of_dynamic, return_shape=True)(*(arrays[i] for i in dynamic))
    if len(DEVICES) > 1:
        _check_convolutions(traced.jaxpr)
    jitted = jax.jit(
        call,
        in_shardings=tuple(_shardings(on, tree) for tree in specs),
        out_shardings=_shardings(on, result_specs(shapes)),
        static_argnums=(*STATIC, len(NAMES)),
        **options,
    )
    return Step(jitted, made)


def _check_convolutions(jaxpr: Any) -> None:
    """XLA's partitioner gets gradients of these wrong where devices repeat what others do."""
    for eqn in jaxpr.eqns:
        groups = (eqn.params.get(f"{kind}_group_count", 1) for kind in ("feature", "batch"))
        if eqn.primitive.name == "conv_general_dilated" and max(groups) > 1:
            raise ValueError(
                "the step has convolutions with groups, which XLA's partitioner computes wrongly "
                "for some shardings: run the plan by alpa_mlir, or write them without groups"
            )
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                _check_convolutions(inner)


class Step:
    """What `jit` returns: takes arguments by position, in the order of `NAMES`, or by name."""

    def __init__(self, jitted: Any, made: dict[_Form, _Made]) -> None:
        self._jitted = jitted
        self._made = made

    def __call__(self, *args: Any, **named: Any) -> Any:
        given = _given(args, named)
        form, arrays = _taken_apart(NAMES, given)
        return form.finish(given, arrays, self._jitted(*arrays, form), self._made[form])

    def trace(self, *args: Any, **named: Any) -> Any:
        """As `jax.jit` has it."""
        form, arrays = _taken_apart(NAMES, _given(args, named))
        return self._jitted.trace(*arrays, form)

    def lower(self, *args: Any, **named: Any) -> Any:
        """As `jax.jit` has it; compiled, it takes arguments by position, and no static ones: trees
        of arrays, as `argument_specs` has them, and returns such, as `result_specs` has them."""
        form, arrays = _taken_apart(NAMES, _given(args, named))
        return self._jitted.lower(*arrays, form)


class _LeftOut:
    """Stands for a static argument that is not given."""

    def __repr__(self) -> str:
        return "left out"


_LEFT_OUT = _LeftOut()


def _given(args: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """All arguments in the order of `NAMES`."""
    known = f"the plan is for {', '.join(NAMES)}"
    if len(args) > len(NAMES):
        raise TypeError(f"got {len(args)} arguments, {known}")
    values = [*args, *[_LEFT_OUT] * (len(NAMES) - len(args))]
    for name, value in named.items():
        if name not in NAMES:
            raise TypeError(f"got an unknown argument {name!r}, {known}")
        if NAMES.index(name) < len(args):
            raise TypeError(f"got the argument {name!r} twice, {known}")
        values[NAMES.index(name)] = value
    missing = [NAMES[i] for i, value in enumerate(values) if value is _LEFT_OUT and i not in STATIC]
    if missing:
        raise TypeError(f"got no {', '.join(missing)}, {known}")
    return values


def constrained(step: Callable[..., Any], on: Mesh | None = None) -> Callable[..., Any]:
    """The same function, whose values are held as `CONSTRAINTS` says.

    A value's name is made of the name scopes around its operation and of the primitive; those of
    backward passes begin with `backward`. The numbers that the function computes are the same
    whether a value is found or not; a warning says that few are.
    """
    on = mesh() if on is None else on

    @functools.wraps(step)
    def call(*args: Any, **named: Any) -> Any:
        given = [*args, *named.values()]
        names = [*NAMES[: len(args)], *named]
        static = {NAMES[i] for i in STATIC}
        form, arrays = _taken_apart(names, given)
        dynamic = [x for name, x in zip(names, arrays, strict=True) if name not in static]
        leaves, tree = jax.tree.flatten(dynamic)
        made: dict[_Form, _Made] = {}

        def of_values(values: Sequence[Any]) -> Any:
            count = len(args)
            return step(*values[:count], **dict(zip(named, values[count:], strict=True)))

        def flat(*values: Any) -> Any:
            rest = iter(jax.tree.unflatten(tree, values))
            pairs = zip(names, given, strict=True)
            return form.run(of_values, [x if n in static else next(rest) for n, x in pairs], made)

        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        holds = _Holds(on, closed.jaxpr)
        results = holds.evaluate(closed.jaxpr, closed.consts, leaves, "")
        holds.warn()
        result = jax.tree.unflatten(jax.tree.structure(shapes), results)
        return form.finish(given, arrays, result, made[form])

    return call


def micro_batched_value_and_grad(
    loss: Callable[..., Any], *, reduction: str, micro_batches: int = MICRO_BATCHES
) -> Callable[..., Any]:
    """`jax.value_and_grad(loss)` over micro-batches, one after another.

    Args:
        loss: `(params, batch) -> scalar`, in which examples, the rows of the batch's arrays, do
            not see each other.
        reduction: `"mean"` or `"sum"`, what the loss takes over the examples. A mean over
            something else, such as unmasked tokens, is neither.
        micro_batches: their number, which divides the rows.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"got reduction {reduction!r}, expected 'mean' or 'sum'")
    both = jax.value_and_grad(loss)

    def value_and_grad(params: Any, batch: Any) -> Any:
        # Every so many rows: each device keeps its own.
        parts = jax.tree.map(
            lambda x: x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(jax.numpy.add, total, both(params, part)), None

        shapes = jax.eval_shape(both, params, jax.tree.map(lambda x: x[0], parts))
        zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, parts)
        if reduction == "sum":
            return total
        return jax.tree.map(lambda x: x / micro_batches, total)

    return value_and_grad


def _specs(table: dict[str, P], name: str, tree: Any) -> Any:
    def spec(path: Any, leaf: Any) -> P | None:
        key = name + jax.tree_util.keystr(path)
        if _is_value(table, key, leaf):
            return None
        if key not in table:
            raise KeyError(f"the plan has no {key}; it is for another step, or other arguments")
        return table[key]

    return jax.tree_util.tree_map_with_path(spec, tree)


def _shardings(on: Mesh, specs: Any) -> Any:
    return jax.tree.map(
        lambda spec: NamedSharding(on, spec), specs, is_leaf=lambda x: isinstance(x, P)
    )


# Arguments and results that are more than trees of arrays.


def _is_value(table: dict[str, P], key: str, leaf: Any) -> bool:
    """Whether a leaf is a Python value that the plan was made for."""
    return key not in table and not hasattr(leaf, "shape")


class _Values(NamedTuple):
    """A tree with Python values among its arrays.

    Attributes:
        tree: of both.
        values: number of the leaf, type, and the value.
    """

    tree: Any
    values: tuple[tuple[int, type, Any], ...]

    def filled(self, arrays: Any) -> Any:
        """The whole tree, of the one that has only the arrays."""
        known, rest = {i: value for i, _, value in self.values}, iter(jax.tree.leaves(arrays))
        leaves = [known[i] if i in known else next(rest) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)


def _without_values(
    table: dict[str, P], name: str, tree: Any, given: dict[int, Any] | None = None
) -> tuple[_Values, Any]:
    """The Python values of a tree, and the tree with None in their places.

    Args:
        given: objects that are such values too, by `id`, and what stands for them.
    """
    known = given or {}
    pairs, whole = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: id(x) in known)
    values = tuple(
        (i, type(leaf), known.get(id(leaf), leaf))
        for i, (path, leaf) in enumerate(pairs)
        if id(leaf) in known or _is_value(table, name + jax.tree_util.keystr(path), leaf)
    )
    numbers = {i for i, *_ in values}
    leaves = [None if i in numbers else leaf for i, (_, leaf) in enumerate(pairs)]
    return _Values(whole, values), jax.tree.unflatten(whole, leaves)


class _Object(NamedTuple):
    """Stands in a result for an object that the caller gave."""

    number: int


class _Made(NamedTuple):
    """What a step returns besides arrays, and the objects that it changes: their slots."""

    changed: tuple[int, ...]
    result: _Values


class _Form(NamedTuple):
    """What arguments are besides their arrays.

    Attributes:
        slots: numbers of the arguments with objects of flax.nnx.
        graph, structure, order: of these objects, as `_split` has them.
        values: of the other arguments that have some, by number.
    """

    slots: tuple[int, ...]
    graph: Any
    structure: Any
    order: tuple[int, ...]
    values: tuple[tuple[int, _Values], ...]

    def filled(self, arrays: Sequence[Any]) -> list[Any]:
        """Arguments with their Python values; of objects still the states."""
        known = dict(self.values)
        return [known[i].filled(x) if i in known else x for i, x in enumerate(arrays)]

    def run(
        self,
        step: Callable[[Sequence[Any]], Any],
        arrays: Sequence[Any],
        made: dict[_Form, _Made],
    ) -> Any:
        """Arrays of the step's result; the next states of objects that it changes stand first."""
        full = self.filled(arrays)
        objects: tuple[Any, ...] = ()
        before = [full[i] for i in self.slots]
        if self.slots:
            objects = _nnx().merge(self.graph, self._state(before))
            for i, value in zip(self.slots, objects, strict=True):
                full[i] = value
        result = step(full)
        changed: dict[int, Any] = {}
        if self.slots:
            graph, _, _, after = _split(objects)
            if graph != self.graph:
                raise ValueError(
                    "the step changes the structure of an object: adds a variable, or sets an "
                    "attribute that is no array; do that before the step"
                )
            for slot, (old, new) in enumerate(zip(before, after, strict=True)):
                pairs = zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)
                if any(x is not y for x, y in pairs):
                    changed[slot] = new
        given = {id(x): _Object(number) for number, x in enumerate(_objects_in(objects))}
        name = f"result[{len(changed)}]" if changed else "result"
        values, result = _without_values(RESULTS, name, result, given)
        made[self] = _Made(tuple(changed), values)
        return (*changed.values(), result) if changed else result

    def finish(self, given: Sequence[Any], arrays: Sequence[Any], result: Any, made: _Made) -> Any:
        """What the step returns, of what `run` did; objects among the arguments are changed."""
        objects = [given[i] for i in self.slots]
        if made.changed:
            *states, result = result
            after = [arrays[i] for i in self.slots]
            for slot, state in zip(made.changed, states, strict=True):
                after[slot] = state
            self.update(objects, after)
        if not made.result.values:
            return result
        found = _objects_in(objects)
        kept = tuple(
            (i, kind, found[x.number] if isinstance(x, _Object) else x)
            for i, kind, x in made.result.values
        )
        return _Values(made.result.tree, kept).filled(result)

    def update(self, objects: Sequence[Any], states: Sequence[Any]) -> None:
        """Give objects other states."""
        if objects:
            _nnx().update(tuple(objects), self._state(states))

    def _state(self, states: Sequence[Any]) -> Any:
        found: list[Any] = [None] * len(self.order)
        for place, value in zip(self.order, jax.tree.leaves(list(states)), strict=True):
            found[place] = value
        return jax.tree.unflatten(self.structure, found)


def _taken_apart(names: Sequence[str], given: Sequence[Any]) -> tuple[_Form, list[Any]]:
    """The form of arguments, and trees of their arrays: of objects of flax.nnx dictionaries, as
    the plan has them. Static arguments stay as they are."""
    static = {NAMES[i] for i in STATIC}
    arrays = list(given)
    dynamic = [i for i, name in enumerate(names) if name not in static]
    slots = tuple(i for i in dynamic if _objects_in(given[i]))
    graph, structure, order = None, None, ()
    if slots:
        graph, structure, order, states = _split([given[i] for i in slots])
        for i, state in zip(slots, states, strict=True):
            arrays[i] = state
    values: list[tuple[int, _Values]] = []
    for i in dynamic:
        if i in slots or all(hasattr(leaf, "shape") for leaf in jax.tree.leaves(given[i])):
            continue
        found, tree = _without_values(ARGUMENTS, names[i], given[i])
        if found.values:
            values.append((i, found))
            arrays[i] = tree
    return _Form(slots, graph, structure, order, tuple(values)), arrays


def _split(objects: Sequence[Any]) -> tuple[Any, Any, tuple[int, ...], tuple[Any, ...]]:
    """Flax's graph of objects, the structure of its state of them, and for each object its arrays
    in dictionaries; before these, for each array of all of them, its number in flax's state."""
    graph, state = _nnx().split(tuple(objects))
    leaves, structure = jax.tree.flatten(state)
    numbered = _nnx().to_pure_dict(jax.tree.unflatten(structure, range(len(leaves))))
    order, tree = jax.tree.flatten(tuple(numbered.get(i, {}) for i in range(len(objects))))
    return graph, structure, tuple(order), jax.tree.unflatten(tree, [leaves[i] for i in order])


def _objects_in(tree: Any) -> list[Any]:
    """Modules, optimizers, variables and the like; states are trees of arrays."""
    if "flax.nnx" not in sys.modules:
        return []
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: _is_of_nnx(type(x)))
    return [x for x in leaves if _is_of_nnx(type(x)) and not _is_of_nnx(type(x), "State")]


@functools.cache
def _is_of_nnx(kind: type, *names: str) -> bool:
    found = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("flax.nnx.")}
    return bool(found & set(names or ("Pytree", "Object", "Variable", "State")))


def _nnx() -> Any:
    from flax import nnx

    return nnx


# Values inside of the step: its jaxpr is evaluated equation by equation.

_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_BODIES = {"scan": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr"}
_TRANSFORMS = re.compile(r"\b(?:jvp|transpose|vmap|jit|pjit)\(|\)")
_STRUCTURE = re.compile(
    r"alpa_\w+|while|body|scan|eval_jaxpr|closed_call|core_call|checkpoint|remat2?"
    r"|rematted_computation"
)


def value_name(scopes: str) -> str:
    """Name of a value by the scopes of its operation, the primitive last.

    Example:
        >>> value_name("transpose(jvp(GPT))/h0/jit(f)/dot_general")
        'backward GPT/h0/f/dot_general'
    """
    parts = _TRANSFORMS.sub("", scopes).split("/")
    kept = [part for part in parts if part and not _STRUCTURE.fullmatch(part)]
    return ("backward " if "transpose(" in scopes else "") + "/".join(kept)


def any_layer(name: str) -> str:
    """A name that all layers share: `h*/dot_general` for `h3/dot_general`."""
    return re.sub(r"\d+", "*", name)


def way(before: P | None, after: P, ndim: int) -> list[P]:
    """The specs between two, and the last: axes change dimensions first, then others are gathered,
    then dimensions are split further. XLA gathers whole arrays where it is told all at once.

    Example:
        >>> way(P(None, ("x", "y")), P("y"), 2)
        [PartitionSpec('y', 'x'), PartitionSpec('y', None)]
    """
    if before is None:
        return [after]

    def dims(spec: P) -> list[list[str]]:
        found = [[] if a is None else [a] if isinstance(a, str) else list(a) for a in spec]
        return found + [[] for _ in range(ndim - len(found))]

    def spec_of(dims: list[list[str]]) -> P:
        return P(*(None if not a else a[0] if len(a) == 1 else tuple(a) for a in dims))

    now, wanted = dims(before), dims(after)
    steps: list[P] = []
    moved = True
    while moved:
        moved = False
        for i, j in ((i, j) for i in range(ndim) for j in range(ndim) if i != j and now[i]):
            if wanted[j][: len(now[j]) + 1] == [*now[j], now[i][-1]]:
                now[j].append(now[i].pop())
                steps.append(spec_of(now))
                moved = True
                break
    kept = [
        [axis for i, axis in enumerate(a) if a[: i + 1] == b[: i + 1]]
        for a, b in zip(now, wanted, strict=True)
    ]
    if kept != now:
        steps.append(spec_of(kept))
    if kept != wanted:
        steps.append(spec_of(wanted))
    return steps


class _Operation(NamedTuple):
    """An equation, what it is called, and its shapes as the plan has them.

    Attributes:
        order: of dimensions, in which the result of a product is used; the plan has the operands
            of the product the other way round instead.
    """

    eqn: Any
    name: str
    order: Shape | None

    @property
    def operands(self) -> list[Shape]:
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in self.eqn.invars]
        return shapes if self.order is None else shapes[::-1]

    @property
    def results(self) -> list[Shape]:
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in self.eqn.outvars]
        return shapes if self.order is None else [tuple(shapes[0][i] for i in self.order)]

    @property
    def key(self) -> Any:
        return self.name, tuple(self.operands), tuple(self.results)


def _operations(jaxpr: Any, path: str) -> Iterator[_Operation]:
    """The equations of a jaxpr, without those within."""
    swapped = {
        eqn.outvars[0]: _swap(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"
    }
    orders = {
        eqn.invars[0]: order
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "transpose" and not isinstance(eqn.invars[0], core.Literal)
        for order in [tuple(eqn.params["permutation"])]
        if swapped.get(eqn.invars[0]) == order
    }
    for eqn in jaxpr.eqns:
        name = value_name(f"{_inside(eqn, path)}/{eqn.primitive.name}")
        yield _Operation(eqn, name, orders.get(eqn.outvars[0]) if eqn.outvars else None)


def _swap(eqn: Any) -> Shape:
    """The order of a product's dimensions where its operands change places."""
    (lhs_sum, rhs_sum), (batch, _) = eqn.params["dimension_numbers"]
    begin = len(batch)
    middle = eqn.invars[0].aval.ndim - len(lhs_sum)
    end = middle + eqn.invars[1].aval.ndim - len(rhs_sum) - begin
    return (*range(begin), *range(middle, end), *range(begin, middle))


def _inside(eqn: Any, path: str) -> str:
    called = eqn.params.get("name") if eqn.primitive.name in _CALLS else None
    return f"{path}/{eqn.source_info.name_stack}" + (f"/{called}" if called else "")


def _body(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Body and constants of an equation that is looked into."""
    key = (_CALLS | _BODIES).get(eqn.primitive.name)
    if key is None or key not in eqn.params:
        return None
    body = eqn.params[key]
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, ())


def _all_operations(jaxpr: Any, path: str) -> Iterator[_Operation]:
    for operation in _operations(jaxpr, path):
        body = _body(operation.eqn)
        if body is None:
            yield operation
        else:
            yield from _all_operations(body[0], _inside(operation.eqn, path))


class _Holds:
    """Which values of a step are held, and how."""

    def __init__(self, on: Mesh, jaxpr: Any) -> None:
        self.mesh = on
        self.count = Counter(operation.key for operation in _all_operations(jaxpr, ""))
        self.met: Counter[Any] = Counter()
        self.found: set[str] = set()
        self.held: dict[int, tuple[Any, P]] = {}  # By `id` of the values, which live as long.

    def specs(self, operation: _Operation) -> tuple[list[P], list[P]] | None:
        """Of the operands and the results; None if the plan has no such operation."""
        place = self.met[operation.key]
        self.met[operation.key] += 1
        name = operation.name if operation.name in CONSTRAINTS else any_layer(operation.name)
        fits: list[tuple[list[P], list[P]]] = []
        for operands, results in CONSTRAINTS.get(name, []):
            found = _operand_specs(operation, operands), _result_specs(operation, results)
            if found[0] is not None and found[1] is not None:
                fits.append((found[0], found[1]))
        if not fits:
            return None
        self.found.add(name)
        if self.count[operation.key] == len(fits):
            operands, results = fits[place]
        else:  # One body for many layers: as most of them have it.
            most = Counter(map(repr, fits)).most_common(1)[0][0]
            operands, results = next(fit for fit in fits if repr(fit) == most)
        if operation.order is None:
            return operands, results
        (spec,) = results
        axes = [*spec, *[None] * (len(operation.order) - len(spec))]
        return operands[::-1], [P(*(axes[i] for i in np.argsort(operation.order)))]

    def hold(self, value: Any, spec: P) -> Any:
        """The value with this spec, by way of others where it is known to have another."""
        ndim = getattr(value, "ndim", 0)
        _, before = self.held.get(id(value), (None, None))
        for step in way(before, spec, ndim) if ndim else ():
            value = jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, step))
        self.held[id(value)] = value, spec
        return value

    def evaluate(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], path: str) -> Any:
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for operation in _operations(jaxpr, path):
            eqn = operation.eqn
            operands = [value(atom) for atom in eqn.invars]
            body, inside = _body(eqn), _inside(eqn, path)
            if body is not None and eqn.primitive.name in _CALLS:
                results = self.evaluate(*body, operands, inside)
            elif body is not None:
                results = _bind(self.with_body(eqn, inside), operands, jaxpr)
            else:
                specs = self.specs(operation)
                if specs is not None:
                    operands = [self.hold(*pair) for pair in zip(operands, specs[0], strict=True)]
                results = _bind(eqn, operands, jaxpr)
                if specs is not None:
                    results = [self.hold(*pair) for pair in zip(results, specs[1], strict=True)]
            known.update(zip(eqn.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def with_body(self, eqn: Any, path: str) -> Any:
        """A loop, or a part that is computed again, with its body's values held."""
        key = _BODIES[eqn.primitive.name]
        found = _body(eqn)
        assert found is not None
        jaxpr, consts = found
        shapes = [v.aval for v in jaxpr.invars]

        def body(*args: Any) -> Any:
            return self.evaluate(jaxpr, consts, args, path)

        closed = jax.make_jaxpr(body)(
            *(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in shapes)
        )
        if hasattr(eqn.params[key], "consts"):
            return eqn.replace(params={**eqn.params, key: closed})
        return eqn if closed.consts else eqn.replace(params={**eqn.params, key: closed.jaxpr})

    def warn(self) -> None:
        missed = [name for name in CONSTRAINTS if name not in self.found]
        if 4 * len(missed) > 3 * len(CONSTRAINTS):
            warnings.warn(
                f"{len(missed)} of {len(CONSTRAINTS)} constraints are of values that the step does "
                f"not compute, such as {missed[0]!r}; was the step planned as it is now, and "
                "without padding?",
                stacklevel=3,
            )


def _operand_specs(operation: _Operation, held: list[Held]) -> list[P] | None:
    """A spec for each operand of an operation; None if the plan's are others.

    A scalar may have been broadcast before, or be none of the plan's operands; a dimension of size
    1 may have been broadcast.
    """
    shapes = operation.operands
    rest = iter(held if len(held) == len(shapes) else [item for item in held if item[0]])
    specs: list[P] = []
    for shape in shapes:
        if not shape and len(held) != len(shapes):
            specs.append(P())
            continue
        planned, spec = next(rest, (None, P()))
        if planned is None:
            return None
        axes = [*spec, *[None] * (len(planned) - len(spec))]
        if shape and len(planned) == len(shape):
            wide = [a != b and b == 1 for a, b in zip(planned, shape, strict=True)]
            planned = tuple(1 if w else size for size, w in zip(planned, wide, strict=True))
            spec = P(*(None if w else axis for axis, w in zip(axes, wide, strict=True)))
        if shape and not _is_micro_batch(planned, shape):
            return None
        specs.append(spec if shape else P())
    return specs if next(rest, None) is None else None


def _result_specs(operation: _Operation, held: list[Held]) -> list[P] | None:
    """A spec for each result; None if the plan's are others."""
    shapes = operation.results
    if len(shapes) != len(held):
        return None
    pairs = zip(shapes, held, strict=True)
    fit = all(_is_micro_batch(planned, shape) for shape, (planned, _) in pairs)
    return [spec for _, spec in held] if fit else None


def _is_micro_batch(planned: Shape, shape: Shape) -> bool:
    return planned == shape or (
        len(planned) == len(shape)
        and sum(a != b for a, b in zip(planned, shape, strict=True)) == 1
        and prod(shape) == prod(planned) * MICRO_BATCHES
    )


def _bind(eqn: Any, operands: Sequence[Any], jaxpr: Any) -> list[Any]:
    """Evaluate one equation, where it stands."""
    given = {
        v: x for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, core.Literal)
    }
    debug = jaxpr.debug_info.with_unknown_names()
    single = core.Jaxpr((), list(given), eqn.outvars, [eqn], eqn.effects, debug)
    return list(_jax.core.eval_jaxpr(single, (), *given.values()))
