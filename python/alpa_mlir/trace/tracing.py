"""Turns a user's training step into StableHLO text, a signature, and how it is called."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, cast

import jax
import numpy as np
from alpa_runtime import foreign_errors, jax_internals, trees
from alpa_runtime.calling_convention import (
    Aval,
    CallingConvention,
    is_typed_key,
    make_aval,
    static_arguments,
)
from alpa_runtime.plan.interface import InputInfo, StaticArgument
from alpa_runtime.plan.text import without_locations

from alpa_mlir.compiler import Module
from alpa_mlir.errors import TraceError
from alpa_mlir.trace import (
    accumulation,
    call_rules,
    dependencies,
    jaxprs,
    shard_maps,
    state_matching,
    tagging,
)
from alpa_mlir.trace.jaxprs import bodies, user_line
from alpa_mlir.trace.objects import is_object

Kind = Literal["state", "batch"]


@dataclass(frozen=True)
class Input:
    """One flattened input of the step.

    Attributes:
        name: tree path, such as `state.params['h0']['kernel']`.
        shape: of the whole array. Typed PRNG keys appear as their data.
        dtype: NumPy's name.
        kind: `"batch"` may be split into micro-batches along dimension 0, `"state"` may not.
        carried_by: index of the output that is this state's value for the next step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    carried_by: int | None = None


@dataclass(frozen=True)
class Output:
    """One flattened output of the step.

    Attributes:
        name: tree path, such as `result[1]['loss']`.
        shape: of the whole array.
        dtype: NumPy's name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a traced step, in flattening order.

    Attributes:
        name: name of the traced function.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        carried = [i.carried_by for i in self.inputs if i.carried_by is not None]
        if len(set(carried)) != len(carried):
            raise ValueError("two inputs are carried by the same output")
        for item in self.inputs:
            if item.carried_by is None:
                continue
            output = self.outputs[item.carried_by]
            if item.kind != "state":
                raise ValueError(f"{item.name}: only state is carried")
            if (item.shape, item.dtype) != (output.shape, output.dtype):
                raise ValueError(f"{item.name} and {output.name} differ in shape or dtype")

    @property
    def batch_size(self) -> int:
        """Examples of a step: rows of its batch inputs; 1 if there are none."""
        return next((x.shape[0] for x in self.inputs if x.kind == "batch"), 1)

    def to_json(self) -> str:
        """JSON text of the form that docs/ir.md describes."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Signature:
        """The inverse of `to_json`."""
        data: dict[str, Any] = json.loads(text)

        def made(cls: Callable[..., Any], items: list[dict[str, Any]]) -> tuple[Any, ...]:
            for item in items:
                item["shape"] = tuple(item["shape"])
            return tuple(cls(**item) for item in items)

        data.update(inputs=made(Input, data["inputs"]), outputs=made(Output, data["outputs"]))
        return Signature(**data)


@dataclass(frozen=True)
class Traced:
    """A step as the compiler wants it.

    Attributes:
        text: StableHLO module in generic form with locations.
        signature: what its inputs and outputs are.
        in_tree: tree of the tuple of positional arguments, the static ones left out.
        out_tree: tree of the result.
        in_leaves: the flattened arguments.
        out_leaves: the flattened results.
        static: the static arguments: positions, and values that are names or numbers.
        rounds: rounds of the step's own loops of gradient accumulation, of which micro-batches are
            whole ones: their greatest common divisor; 1 without such loops.
        interleaved: by number of an input, the rounds between which the caller's rows alternate
            (`CallInfo.interleaved`).
        batch_of_rounds: whether batch arguments are `[rounds, examples, ..]`.
        names: of all arguments.
        tagged_equations: number of forward equations that carry a tag; 0 if nothing is
            differentiated or this JAX cannot be tagged.
        lowered: JAX's own stage, for `as_text` and for comparison with plain JAX; None if the
            text was kept from an earlier trace.
        with_loops: traces the step anew, with its loops of gradient accumulation as they are; None
            without such loops.
    """

    text: str = field(repr=False)
    signature: Signature
    in_tree: Any
    out_tree: Any
    in_leaves: tuple[Aval, ...] = field(repr=False)
    out_leaves: tuple[Aval, ...] = field(repr=False)
    static: tuple[StaticArgument, ...]
    rounds: int
    interleaved: Mapping[int, int]
    batch_of_rounds: bool
    names: tuple[str, ...]
    tagged_equations: int
    lowered: Any = field(repr=False)
    with_loops: Callable[[], Traced] | None = field(default=None, repr=False, compare=False)

    def as_text(self, debug_info: bool = False) -> str:
        """The module in pretty form, for people."""
        if self.lowered is None:
            return Module(self.text, self.signature.name).as_text(debug_info=debug_info)
        return self.lowered.as_text(debug_info=debug_info)

    @cached_property
    def form(self) -> CallingConvention:
        """How the step is called."""
        return self.form_for(1)

    def form_for(self, count: int, added: tuple[InputInfo, ...] = ()) -> CallingConvention:
        """How a plan of the step is called.

        Args:
            count: its number of micro-batches.
            added: its inputs that callers do not give.
        """
        is_batch = tuple(item.kind == "batch" for item in self.signature.inputs)

        def part(leaf: Aval) -> Aval:
            shapes = [(x[0] // count, *x[1:]) for x in (leaf.shape, leaf.data_shape)]
            return replace(leaf, shape=shapes[0], data_shape=shapes[1])

        return CallingConvention(
            self.signature.name,
            count,
            self.in_tree,
            self.out_tree,
            tuple(
                part(leaf) if batch else leaf
                for leaf, batch in zip(self.in_leaves, is_batch, strict=True)
            ),
            self.out_leaves,
            is_batch,
            self.static,
            added=added,
            interleaved=self.interleaved,
            batch_of_rounds=self.batch_of_rounds,
            names=self.names,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells this step from others: equal computations with equal signatures have equal ones."""
        text = without_locations(self.text) + self.signature.to_json()
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def flatten_args(self, *args: Any) -> list[Any]:
        """Arrays for the module's inputs, batches at full size; keys become their data.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the traced one.
        """
        return self.form.flatten_args(*args)

    def unflatten_results(self, flat: Sequence[Any]) -> Any:
        """The step's result from the module's outputs; key data become keys again."""
        return self.form.unflatten_results(flat)


# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


def trace(
    fn: Callable[..., Any],
    *args: Any,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    carried: Mapping[int, int | None] | None = None,
    hook: bool = True,
    compute_capability: str | None = None,
    maps_rounds: bool = True,
) -> Traced:
    """Trace `fn(*args)` at its whole batch.

    Args:
        fn: the step, `(state..., batch...) -> result`; jitted or not. Plain `jax.value_and_grad`
            inside gives exact forward/backward pairing.
        args: example arguments: arrays or `jax.ShapeDtypeStruct`.
        batch_argnums: the arguments that are batches. By default the last one with arrays that
            are neither scalars nor random keys and that the update does not make anew, and those
            before it whose arrays have as many rows and whose next value the step does not return;
            where more of those that are not returned have other rows in common, these. All others
            are state.
        static_argnums: arguments that are Python values, not arrays.
        carried: by number of a state argument, the index of the result that is its next
            value, or None for an argument that is never replaced. By default found from the
            trees (see carry.py).
        hook: tag equations under plain `jax.grad` too, not only under `alpa_mlir.grad`.
        compute_capability: of the CUDA devices to lower for, such as `"9.0"`; None to lower for
            this process's devices. Kernels that only GPUs have (fused attention) are then
            written in plain ops.
        maps_rounds: whether the step's own loops of gradient accumulation are mapped.

    Raises:
        TraceError: bad options, a step that cannot be traced, or an ambiguous state.

    Example:
        >>> traced = trace(step, state, batch)
        >>> print(traced.as_text())
    """
    static = positions(static_argnums, len(args), "static_argnums")
    dynamic = tuple(i for i in range(len(args)) if i not in static)
    if not dynamic:
        raise TraceError("no example argument holds arrays", where=name_of(fn), fix="pass a batch")
    names = argument_names(fn, len(args))
    full = abstract(args, dynamic, names)
    given = None if batch_argnums is None else positions(batch_argnums, len(args), "batch_argnums")
    if given is not None and set(given) & set(static):
        raise TraceError("a batch argument is also in static_argnums", where="batch_argnums")
    for number in carried or {}:
        if number not in dynamic or number in (given or ()):
            raise TraceError(f"argument {number} is not a state argument", where="carried")
    with _described_gpu(compute_capability):
        plain, session = _traced(fn, full, static, hook)
        traced, rounds = plain, 1
        if maps_rounds:
            traced, rounds = _in_rounds(plain, full, static, name_of(fn), {})

    in_paths, in_tree = trees.flatten_with_path(tuple(full[i] for i in dynamic))
    owners: list[int] = [dynamic[path[0].idx] for path, _ in in_paths]
    in_leaves = tuple(
        make_aval(names[owner] + trees.text(path[1:]), aval)
        for owner, (path, aval) in zip(owners, in_paths, strict=True)
    )
    out_paths, out_tree = trees.flatten_with_path(traced.out_info)
    out_leaves = tuple(
        replace(make_aval("result" + trees.text(path), aval), weak_type=found.weak_type)
        for (path, aval), found in zip(out_paths, plain.jaxpr.out_avals, strict=True)
    )

    in_avals = [(leaf.shape, str(leaf.dtype)) for leaf in in_leaves]
    out_avals = [(leaf.shape, str(leaf.dtype)) for leaf in out_leaves]
    result = state_matching.subtree(traced.out_info, "result", out_avals, 0)
    facts = dependencies.result_facts(traced.jaxpr)

    def paired(batches: Sequence[int], examples: Sequence[int]) -> dict[int, int]:
        states = [
            state_matching.subtree(full[i], names[i], in_avals, _first(owners, i), i)
            for i in dynamic
            if i not in batches
        ]
        return state_matching.match_state(states, result, facts, carried, examples)

    has_gradients = session.functions or dependencies.has_gradients(traced.jaxpr.jaxpr)
    updated: set[int] = set(carried or {})
    if given is None and has_gradients:
        # A tree that the update makes anew, or an array that it changes by a gradient, is no
        # batch, wherever it stands.
        with contextlib.suppress(TraceError):
            updated |= {
                owners[i]
                for i, out in paired((), dynamic).items()
                if facts[out].phase == "update"
                and (in_paths[i][0][1:] or (facts[out].of_gradients and facts[out].is_update_of(i)))
            }
    if not _last_batch(full, dynamic, updated):
        updated = set(carried or {})  # The step changes its batch too.
    batches = given if given is not None else _last_batch(full, dynamic, updated)
    rows = _batch_rows(full, batches)
    if given is None and updated:
        voted = _voted_rows(full, dynamic, updated)
        if voted is not None and voted != rows:
            last = [i for i in dynamic if i not in updated and _common_rows(full[i]) == voted]
            rows, batches = voted, (last[-1],)
    if rounds > 1 and (rows or 0) % rounds:
        warnings.warn(
            f"the loop of the step that takes gradients stays a loop: its {rounds} rounds do "
            f"not divide the batch's {rows} rows",
            stacklevel=2,
        )
        traced, rounds = plain, 1
        facts = dependencies.result_facts(traced.jaxpr)
    if not has_gradients:
        # What is not of single examples may be the next value of a state.
        facts = [
            replace(fact, phase="update")
            if fact.phase == "forward" and leaf.shape[:1] != (rows,)
            else fact
            for fact, leaf in zip(facts, out_leaves, strict=True)
        ]
    for number in carried or {}:
        if number in batches:
            raise TraceError(f"argument {number} is not a state argument", where="carried")
    before = () if given is not None else _before(full, dynamic, batches, rows)
    pairs = paired(batches, before if has_gradients else ())
    if given is None:
        returned = {owners[leaf] for leaf in pairs} | set(carried or {})
        batches = _with_others(full, before, batches, returned)

    def is_batch(leaf: Aval, owner: int) -> bool:
        return owner in batches and _rows_of(leaf) == rows

    inputs = tuple(
        Input(
            leaf.name,
            leaf.data_shape,
            leaf.data_dtype,
            "batch" if is_batch(leaf, owner) else "state",
            pairs.get(i),
        )
        for i, (leaf, owner) in enumerate(zip(in_leaves, owners, strict=True))
    )
    outputs = tuple(Output(leaf.name, leaf.data_shape, leaf.data_dtype) for leaf in out_leaves)
    name = name_of(fn)
    alternating = accumulation.interleaved(plain.jaxpr.jaxpr) if rounds > 1 else {}
    alternating = {
        i: count for i, count in alternating.items() if _may_be_grouped(inputs[i], in_leaves[i])
    }
    with _described_gpu(compute_capability):
        if alternating:
            traced, rounds = _in_rounds(plain, full, static, name, alternating)
        lowered, expands = _lowered(traced, compute_capability)
    module = call_rules.attached(lowered.compiler_ir("stablehlo").operation)
    _check_main(module, len(inputs), len(outputs), name)
    text = module.get_asm(print_generic_op_form=True, enable_debug_info=True)
    # Kernels that are known by name have no form for the CPU either.
    expands |= not compute_capability and not _has_gpu() and _NAMED_KERNEL in text
    if expands:
        text = Module(text, name).run("alpa-expand-kernels").as_text(generic=True, debug_info=True)
    return Traced(
        text,
        Signature(name, inputs, outputs),
        in_tree,
        out_tree,
        in_leaves,
        out_leaves,
        static_arguments(args, static),
        rounds,
        alternating,
        rounds > 1 and _is_of_rounds(inputs, accumulation.scanned(plain.jaxpr.jaxpr)),
        tuple(names),
        session.equations,
        None if expands else lowered,
        None
        if rounds == 1
        else functools.partial(
            trace,
            fn,
            *args,
            batch_argnums=batch_argnums,
            static_argnums=static_argnums,
            carried=carried,
            hook=hook,
            compute_capability=compute_capability,
            maps_rounds=False,
        ),
    )


_NAMED_KERNEL = 'call_target_name = "te_'  # Of Transformer Engine.
_ANY_GPU = "10.0"  # Where kernels are written in plain ops, which GPU does not matter.


def _has_gpu() -> bool:
    return _jax.default_backend() not in ("cpu", "tpu")


def _lowered(traced: Any, compute_capability: str | None) -> tuple[Any, bool]:
    """What JAX lowers for the platform, and whether its kernels are to be written in plain ops.

    A step for the CPU that calls cuDNN's kernels is lowered for GPUs.
    """
    plain = jax_internals.plain_lowering(bool(compute_capability) or _has_gpu())
    if compute_capability:
        return traced.lower(lowering_platforms=("cuda",), **plain), False
    # Shardings over abstract meshes say no platform.
    platform = jax_internals.lowering_platform(_jax.devices()[0])
    try:
        return traced.lower(lowering_platforms=(platform,), **plain), False
    except NotImplementedError as error:
        if _has_gpu() or not foreign_errors.says_attention_of_gpus(error):
            raise
        return traced.lower(lowering_platforms=("cuda",), **plain), True


def name_of(fn: Any) -> str:
    """The function's own name, seen through `functools.partial`; else that of its type."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    return str(getattr(fn, "__name__", type(fn).__name__))


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first `count` positional arguments, for people."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return [f"arg{i}" for i in range(count)]
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    return names[:count] + [f"arg{i}" for i in range(len(names), count)]


def positions(value: int | Sequence[int], count: int, option: str) -> tuple[int, ...]:
    """Argument numbers as a sorted tuple without repetition; negative ones count from the end."""
    given = [value] if isinstance(value, int) else list(value)
    for number in given:
        if not -count <= number < count:
            raise TraceError(f"argument {number} does not exist, got {count}", where=option)
    return tuple(sorted({number % count for number in given}))


def known_positions(argnums: int | Sequence[int] | Literal["auto"], count: int) -> tuple[int, ...]:
    """Numbers of arguments, counted from the beginning; none of what is not known yet, or is not
    given."""
    if argnums == "auto":
        return ()
    numbers: tuple[Any, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    return tuple(int(n) % count for n in numbers if -count <= int(n) < count)


def abstract(args: Sequence[Any], dynamic: Sequence[int], names: Sequence[str]) -> list[Any]:
    """Arguments with every array replaced by its shape and dtype; static ones are kept."""
    result = list(args)
    for i in dynamic:
        try:
            result[i] = _jax.eval_shape(_same, args[i])
        except TypeError:
            _blame_leaf(args[i], names[i])
            raise
    return result


def _blame_leaf(argument: Any, name: str) -> None:
    """Raise for the first leaf that is no array."""
    for path, leaf in trees.flatten_with_path(argument)[0]:
        try:
            _jax.eval_shape(_same, leaf)
        except TypeError as error:
            what, fix = f"a value of type {type(leaf).__name__} is no array", ""
            if isinstance(leaf, np.ndarray | np.generic):
                dtype: Any = np.dtype(cast("Any", leaf).dtype)
                what = f"JAX has no arrays of dtype {dtype.str!r}"
                if not dtype.isnative:
                    what += ", whose bytes are swapped"
                    fix = "x.astype(x.dtype.newbyteorder('='))"
                elif dtype.hasobject:
                    fix = "make it an array of numbers"
            raise TraceError(
                what,
                where=name + trees.text(path),
                fix=fix or "pass it in an argument listed in static_argnums",
            ) from error


def _same(x: Any) -> Any:
    return x


def _traced(
    fn: Callable[..., Any], full: Sequence[Any], static: tuple[int, ...], hook: bool
) -> tuple[Any, tagging.TagSession]:
    """JAX's trace, with equations tagged: those of differentiated functions, or all of a step
    that differentiates nothing."""

    names = argument_names(fn, len(full))

    def run(function: Callable[..., Any]) -> tuple[Any, tagging.TagSession]:
        with tagging.tag_gradients(hook) as session:
            watched = _watched(function, names)
            jitted = _jax.jit(watched, static_argnums=static, keep_unused=True)
            return jitted.trace(*full), session

    traced, session = run(fn)
    _refuse_ops(traced.jaxpr, name_of(fn))
    if not session.functions and not dependencies.has_gradients(traced.jaxpr.jaxpr):
        tagged = tagging.tag_equations(fn)
        tagged.__name__ = name_of(fn)
        traced, session = run(tagged)
        session.functions = 0
    if jaxprs.prints(traced.jaxpr):
        _, place = _line_of(traced.jaxpr.jaxpr, jaxprs.PRINTS) or ("", "")
        warnings.warn(
            f"{name_of(fn)}: what jax.debug prints or calls {place} is left out: the step "
            "runs in parts, on many devices",
            stacklevel=2,
        )
        traced = _evaluated(_without_prints, traced, full, static, name_of(fn))
    if shard_maps.holds(traced.jaxpr.jaxpr):
        traced = _evaluated(shard_maps.evaluate, traced, full, static, name_of(fn))
    return traced, session


def _without_prints(closed: Any, leaves: Sequence[Any]) -> list[Any]:
    kept = jaxprs.without_prints(closed)
    return list(_jax.core.eval_jaxpr(kept.jaxpr, kept.consts, *leaves))


def _in_rounds(
    traced: Any,
    full: Sequence[Any],
    static: tuple[int, ...],
    name: str,
    grouped: Mapping[int, int],
) -> tuple[Any, int]:
    """The trace with rounds of gradient accumulation mapped, and their number; 1 without any.

    Args:
        grouped: see `accumulation.evaluate`.
    """
    if not accumulation.takes_rounds(traced.jaxpr.jaxpr):
        return traced, 1
    found: list[int] = []

    def mapped(closed: Any, leaves: Sequence[Any]) -> list[Any]:
        results, rounds = accumulation.evaluate(closed, leaves, grouped)
        found.append(rounds)
        return results

    apart = _evaluated(mapped, traced, full, static, name)
    if found[-1] == 1:
        warnings.warn(
            "the loops of the step that take gradients stay loops: their numbers of rounds have no "
            "common divisor",
            stacklevel=2,
        )
    return (apart, found[-1]) if found[-1] > 1 else (traced, 1)


def _is_of_rounds(inputs: Sequence[Input], scanned: frozenset[int]) -> bool:
    """Whether batch arguments are `[rounds, examples, ..]`: a loop takes each of them a round at a
    time, and those of a round have as many rows."""
    found = [i for i, x in enumerate(inputs) if x.kind == "batch" and len(x.shape) > 1]
    rows = {inputs[i].shape[1] for i in found}
    has_more = any(len(inputs[i].shape) > 2 for i in found)
    return has_more and len(rows) == 1 and scanned.issuperset(found)


def _may_be_grouped(item: Input, leaf: Aval) -> bool:
    """Whether rows of an input may come in another order than the caller's."""
    return item.kind == "batch" and item.carried_by is None and not leaf.key_impl


@contextlib.contextmanager
def _described_gpu(compute_capability: str | None) -> Generator[None]:
    """A GPU for JAX's checks, where this process has none or the step is for others."""
    if compute_capability or not _has_gpu():
        with jax_internals.described_gpu(compute_capability or _ANY_GPU):
            yield
    else:
        yield


def _evaluated(
    evaluate: Callable[[Any, Sequence[Any]], list[Any]],
    traced: Any,
    full: Sequence[Any],
    static: tuple[int, ...],
    name: str,
) -> Any:
    """The trace of what `evaluate` makes of the jaxpr of another one and its leaves."""
    tree = trees.flatten(traced.out_info)[1]

    def step(*args: Any) -> Any:
        leaves, _ = trees.flatten(tuple(x for i, x in enumerate(args) if i not in static))
        return trees.unflatten(tree, evaluate(traced.jaxpr, leaves))

    step.__name__ = name
    return _jax.jit(step, static_argnums=static, keep_unused=True).trace(*full)


def _watched(fn: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, which must not change the models of flax.nnx that it is given: outside of
    `nnx.jit` nobody would see the change."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        before = [trees.leaves(x) if is_object(x) else None for x in args]
        result = fn(*args)
        returned = {id(leaf) for leaf in trees.leaves(result)}
        for argument, known, name in zip(args, before, names, strict=False):
            if known is None:
                continue
            seen = {id(leaf) for leaf in known} | returned
            if any(id(leaf) not in seen for leaf in trees.leaves(argument)):
                raise TraceError(
                    "the step changes this argument in place, and a parallel step returns its "
                    "state",
                    where=name,
                    fix="take states of nnx.split, nnx.merge them inside, and return nnx.state(..)",
                )
        return result

    call.__name__ = name_of(fn)
    return call


# Calls of Python from inside of the step would run once for each device and micro-batch.
_CALLS_PYTHON = "calls Python", "return the values and use them outside of the step"
_REFUSED = {
    **dict.fromkeys(("pure_callback", "io_callback"), _CALLS_PYTHON),
    "approx_top_k": (
        "takes more of the largest elements than it says",
        "leave out aggregate_to_topk=False, or take jax.lax.top_k",
    ),
}


def _refuse_ops(closed: Any, name: str) -> None:
    """Refuse what a step must not have, with its line."""
    found = _line_of(closed.jaxpr, _REFUSED)
    if found is not None:
        kind, place = found
        what, fix = _REFUSED[kind]
        raise TraceError(f"the step {what} ({kind}) {place}".rstrip(), where=name, fix=fix)
    if others := jaxprs.other_effects(closed):
        effects = ", ".join(sorted(str(effect) for effect in others))
        raise TraceError(
            f"the step has side effects ({effects})",
            where=name,
            fix="remove mutable references",
        )


def _line_of(jaxpr: Any, names: Collection[str], around: str = "") -> tuple[str, str] | None:
    """The first of these primitives, and the line of the user's that calls it, `at step.py:3`."""
    for eqn in jaxpr.eqns:
        line = user_line(eqn)
        place = f"at {line}" if line else around
        if eqn.primitive.name in names and not eqn.params.get("aggregate_to_topk"):
            return eqn.primitive.name, place
        for inner in bodies(eqn):
            found = _line_of(inner, names, place)
            if found is not None:
                return found
    return None


def _rows_of(x: Any) -> int | None:
    """How many examples an array may hold; none for scalars and random keys."""
    if not x.shape or ((getattr(x, "key_impl", None) or is_typed_key(x)) and len(x.shape) < 1):
        return None
    is_raw_key = str(x.dtype) == "uint32" and tuple(x.shape) in ((2,), (4,))
    return None if is_raw_key else int(x.shape[0])


def _leaves(tree: Any) -> list[Any]:
    return [x for x in trees.leaves(tree) if hasattr(x, "shape")]


def _last_batch(full: Sequence[Any], dynamic: Sequence[int], updated: set[int]) -> tuple[int, ...]:
    """The last argument that has rows and is not made anew; none if no argument has any."""
    for i in reversed(dynamic):
        if i not in updated and any(_rows_of(x) is not None for x in _leaves(full[i])):
            return (i,)
    return ()


def _batch_rows(full: Sequence[Any], batches: Sequence[int]) -> int | None:
    """Rows that most arrays of the batch have; of several such numbers those of the largest."""
    votes: dict[int, list[int]] = {}
    for x in (x for i in batches for x in _leaves(full[i])):
        rows = _rows_of(x)
        if rows is not None:
            votes.setdefault(rows, []).append(prod(x.shape))
    return max(votes, key=lambda rows: (len(votes[rows]), max(votes[rows])), default=None)


def _common_rows(argument: Any) -> int | None:
    """The rows that all arrays of an argument have which may hold examples; none if they differ."""
    found = {_rows_of(x) for x in _leaves(argument)} - {None}
    return found.pop() if len(found) == 1 else None


def _voted_rows(full: Sequence[Any], dynamic: Sequence[int], returned: set[int]) -> int | None:
    """The rows of more arguments that are not returned than have those of the last one; none
    without such: inputs and targets before an array of weights of classes."""
    votes = [_common_rows(full[i]) for i in dynamic if i not in returned]
    counts = Counter(rows for rows in votes if rows is not None)
    last = next((rows for rows in reversed(votes) if rows is not None), None)
    (best, count), *_ = counts.most_common(1) or [(None, 0)]
    return best if last is not None and count > max(1, counts[last]) else None


def _before(
    full: Sequence[Any], dynamic: Sequence[int], batches: Sequence[int], rows: int | None
) -> tuple[int, ...]:
    """The arguments before the batch that may belong to it: inputs before targets."""
    found: list[int] = []
    for i in reversed([i for i in dynamic if batches and i < batches[0]]):
        leaves = _leaves(full[i])
        if not leaves or any(_rows_of(x) not in (rows, None) for x in leaves):
            break
        found.append(i)
    return tuple(found)


def _with_others(
    full: Sequence[Any], before: Sequence[int], batches: Sequence[int], returned: set[int]
) -> tuple[int, ...]:
    """The batch, and the arguments before it, the last one first, that belong to it."""
    found = list(batches)
    for i in before:
        examples = [x for x in _leaves(full[i]) if _rows_of(x) is not None]
        if i in returned:
            break
        # A matrix of a step that returns no state is weights as likely as examples.
        if not returned and any(len(x.shape) == 2 and x.shape[0] == x.shape[1] for x in examples):
            break
        found.append(i)
    return tuple(sorted(found))


def _first(owners: Sequence[int], number: int) -> int:
    """Number of the first leaf of an argument; any number will do for one without leaves."""
    return owners.index(number) if number in owners else 0


def _check_main(module: Any, inputs: int, outputs: int, name: str) -> None:
    """Lowering must neither drop an argument nor add one."""
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            kind = op.attributes["function_type"].value
            if (len(kind.inputs), len(kind.results)) == (inputs, outputs):
                return
            raise TraceError(
                f"lowering made {len(kind.inputs)} inputs and {len(kind.results)} results of the "
                f"step's {inputs} and {outputs}",
                where=name,
                fix="pass large arrays as arguments instead of closing over them",
            )
    raise TraceError("lowering made no function @main", where=name)
