"""Turn a user's training step into StableHLO text and a signature.

The step is traced at micro-batch shape: every batch leaf has its dimension 0 divided by the
number of micro-batches. Every op's location carries JAX's name stack, in which the ops of a
differentiated function are tagged with their forward equation (see tagging.py).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import jax
import numpy as np

from . import carry, jaxpr_facts, micro_batch, random_keys, tagging, trees
from .bare_marks import filled
from .call_form import CallForm, static_arguments
from .compiler import Module
from .errors import TraceError
from .forward_only import ForwardStep
from .micro_batch import MICRO_BATCH, Leaf
from .plan_check import without_locations
from .plan_interface import StaticArgument
from .signature import Input, Output, Signature

__all__ = ["Input", "Leaf", "Output", "Signature", "Traced", "trace"]

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


@dataclass(frozen=True)
class Traced:
    """A step as the compiler wants it.

    Attributes:
        text: StableHLO module in generic form with locations.
        signature: what its inputs and outputs are.
        in_tree: tree of the tuple of positional arguments, the static ones left out.
        out_tree: tree of the result.
        in_leaves: the flattened arguments, batches at micro-batch size.
        out_leaves: the flattened results.
        static: the static arguments: positions, and values that are names or numbers.
        tagged_equations: number of forward equations that carry a tag; 0 if nothing is
            differentiated or this JAX cannot be tagged.
        whole_only: why the step has one micro-batch only; empty if it may have several, and
            always for steps with gradients.
        lowered: JAX's own stage, for `as_text` and for comparison with plain JAX; None if the
            text was kept from an earlier trace.
    """

    text: str = field(repr=False)
    signature: Signature
    in_tree: Any
    out_tree: Any
    in_leaves: tuple[Leaf, ...] = field(repr=False)
    out_leaves: tuple[Leaf, ...] = field(repr=False)
    static: tuple[StaticArgument, ...]
    tagged_equations: int
    whole_only: str
    lowered: Any = field(repr=False)

    def as_text(self, debug_info: bool = False) -> str:
        """The module in pretty form, for people."""
        if self.lowered is None:
            return Module(self.text, self.signature.name).as_text(debug_info=debug_info)
        return self.lowered.as_text(debug_info=debug_info)

    @cached_property
    def form(self) -> CallForm:
        """How the step is called."""
        return CallForm(
            self.signature.name,
            self.signature.num_micro_batches,
            self.in_tree,
            self.out_tree,
            self.in_leaves,
            self.out_leaves,
            tuple(item.kind == "batch" for item in self.signature.inputs[: len(self.in_leaves)]),
            self.static,
            is_numbered=len(self.signature.inputs) > len(self.in_leaves),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells this step from others: equal computations with equal signatures have equal ones."""
        text = without_locations(self.text) + self.signature.to_json()
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def resized(self, signature: Signature, text: str) -> Traced:
        """The same step at another number of micro-batches, as it was traced before.

        Args:
            signature, text: what that trace gave.
        """
        if signature.num_micro_batches == self.signature.num_micro_batches:
            return self

        def fit(leaves: Sequence[Leaf], forms: Sequence[Input] | Sequence[Output]) -> Any:
            return tuple(
                replace(leaf, shape=(*form.shape[:1], *leaf.shape[1:]), data_shape=form.shape)
                if leaf.shape
                else leaf
                for leaf, form in zip(leaves, forms, strict=False)
            )

        return replace(
            self,
            text=text,
            signature=signature,
            in_leaves=fit(self.in_leaves, signature.inputs),
            out_leaves=fit(self.out_leaves, signature.outputs),
            lowered=None,
        )

    def flatten_args(self, *args: Any) -> list[Any]:
        """Arrays for the module's inputs, batches at full size; keys become their data.

        Raises:
            ArgumentMismatchError: another tree, shape or dtype than the traced one.
        """
        return self.form.flatten_args(*args)

    def unflatten_results(self, flat: Sequence[Any]) -> Any:
        """The step's result from the module's outputs; key data become keys again."""
        return self.form.unflatten_results(flat)


def trace(
    fn: Callable[..., Any],
    *args: Any,
    num_micro_batches: int = 1,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] = (),
    gradient_reduction: Literal["mean", "sum"] = "mean",
    carried: Mapping[int, int | None] | None = None,
    hook: bool = True,
    platform: str | None = None,
) -> Traced:
    """Trace `fn(*args)` at micro-batch shape.

    Args:
        fn: the step, `(state..., batch) -> result`; jitted or not. Plain `jax.value_and_grad`
            inside gives exact forward/backward pairing.
        args: example arguments: arrays or `jax.ShapeDtypeStruct`; a batch has its full size.
        num_micro_batches: parts of every batch leaf along dimension 0.
        batch_argnums: the arguments that are batches; by default the last one that is not
            static. All others are state.
        static_argnums: arguments that are Python values, not arrays.
        gradient_reduction: whether gradients, and results of real dtype whose shape does not
            grow with the batch, are averaged or summed over micro-batches. Results of integer
            dtype that depend on the batch are counts and always summed. A step without gradients
            needs no such choice: its results are those of the whole batch.
        carried: by number of a state argument, the index of the result that is its next
            value, or None for an argument that is never replaced. By default found from the
            trees (see carry.py).
        hook: tag equations under plain `jax.grad` too, not only under `alpa_mlir.grad`.
        platform: `"cpu"`, `"cuda"`, ...: what to lower for; the default backend if None.

    Raises:
        MicroBatchError: a batch leaf cannot be split into `num_micro_batches`.
        TraceError: bad options, a step that fails at micro-batch shape, a result whose
            micro-batches cannot be combined, or an ambiguous state.

    Example:
        >>> traced = trace(step, state, batch, num_micro_batches=4)
        >>> print(traced.as_text())
    """
    if gradient_reduction not in ("mean", "sum"):
        raise TraceError(
            f"got {gradient_reduction!r}", where="gradient_reduction", fix="use 'mean' or 'sum'"
        )
    name = _name(fn)
    static = micro_batch.positions(static_argnums, len(args), "static_argnums")
    dynamic = [i for i in range(len(args)) if i not in static]
    if not dynamic:
        raise TraceError("no example argument holds arrays", where=name, fix="pass a batch")
    default = dynamic[-1] if batch_argnums is None else batch_argnums
    batches = micro_batch.positions(default, len(args), "batch_argnums")
    if set(batches) & set(static):
        raise TraceError("a batch argument is also in static_argnums", where="batch_argnums")
    for number in carried or {}:
        if number not in dynamic or number in batches:
            raise TraceError(f"argument {number} is not a state argument", where="carried")

    names = micro_batch.argument_names(fn, len(args))
    full = micro_batch.abstract(args, dynamic, names)
    micro = micro_batch.split_batches(full, batches, names, num_micro_batches)
    jitted = _jax.jit(fn, static_argnums=static, keep_unused=True)
    # Whether the step needs the micro-batch's number is known for sure once it is traced.
    numbered = num_micro_batches > 1 and any(
        random_keys.may_be_key(leaf) for i in dynamic for leaf in trees.leaves(full[i])
    )
    shapes = (micro, full)
    given = (static, dynamic, batches, shapes, num_micro_batches, hook, platform)
    traced, lowered, session, numbered = _run_and_lower(fn, jitted, *given, numbered)
    forward: ForwardStep | None = None
    if lowered is None:
        plain = jitted.trace(*micro) if numbered else traced
        forward = _forward_step(plain, jitted, shapes, batches, num_micro_batches, name)
        tagged = forward.function(name, dynamic, trees.structure(traced.out_info))
        again = _jax.jit(tagged, static_argnums=static, keep_unused=True)
        traced, lowered, session, numbered = _run_and_lower(
            tagged, again, *given, numbered, is_tagged=True
        )

    _check_single_examples(jitted, micro, full, num_micro_batches, name)

    in_paths, in_tree = trees.flatten_with_path(tuple(micro[i] for i in dynamic))
    owners: list[int] = [dynamic[path[0].idx] for path, _ in in_paths]
    in_leaves = tuple(
        micro_batch.make_leaf(names[owner] + trees.text(path[1:]), aval)
        for owner, (path, aval) in zip(owners, in_paths, strict=True)
    )
    out_paths, out_tree = trees.flatten_with_path(traced.out_info)
    out_leaves = tuple(
        micro_batch.make_leaf("result" + trees.text(path), aval) for path, aval in out_paths
    )

    facts = jaxpr_facts.result_facts(traced.jaxpr)
    if forward is not None and forward.why_whole:  # Any result may be the next value of a state.
        facts = [replace(f, phase="update" if f.phase == "forward" else f.phase) for f in facts]
    states: list[carry.Subtree] = []
    in_avals = [(leaf.shape, str(leaf.dtype)) for leaf in in_leaves]
    for number in dynamic:
        if number not in batches:
            states.append(
                carry.subtree(
                    micro[number], names[number], in_avals, _first(owners, number), number
                )
            )
    out_avals = [(leaf.shape, str(leaf.dtype)) for leaf in out_leaves]
    result = carry.subtree(traced.out_info, "result", out_avals, 0)
    pairs = carry.match_state(states, result, facts, carried)

    def full_shapes(factor: int) -> list[tuple[int, ...]]:
        grown = full
        if factor != num_micro_batches:
            grown = [_grow(a, factor) if i in batches else a for i, a in enumerate(micro)]
            try:
                jitted.eval_shape(*grown)
            except (TypeError, ValueError):  # the state fixes the batch size: nothing to combine
                grown = micro
        return [tuple(leaf.shape) for leaf in trees.leaves(jitted.eval_shape(*grown))]

    batch_bits = sum(1 << i for i, owner in enumerate(owners) if owner in batches)
    if numbered:
        number_bit = 1 << len(in_leaves)
        _check_carried_keys(in_leaves, pairs, facts, number_bit)
        batch_bits |= number_bit
    carried_results = set(pairs.values())
    if forward is not None:
        reductions = forward.check(out_leaves, carried_results)
        gradient_reduction = "sum"  # What the update reads of a batch are sums.
    else:
        reductions = micro_batch.find_reductions(
            out_leaves,
            facts,
            carried_results,
            batch_bits,
            num_micro_batches,
            gradient_reduction,
            full_shapes,
        )
    inputs = tuple(
        Input(
            leaf.name,
            leaf.data_shape,
            leaf.data_dtype,
            "batch" if owner in batches else "state",
            pairs.get(i),
        )
        for i, (leaf, owner) in enumerate(zip(in_leaves, owners, strict=True))
    )
    if numbered:
        inputs += (Input(MICRO_BATCH, (1,), "uint32", "batch", per_micro_batch=True),)
    outputs = tuple(
        Output(leaf.name, leaf.data_shape, leaf.data_dtype, reduction)
        for leaf, reduction in zip(out_leaves, reductions, strict=True)
    )
    module = lowered.compiler_ir("stablehlo").operation
    _check_main(module, len(inputs), len(outputs), name)
    return Traced(
        module.get_asm(print_generic_op_form=True, enable_debug_info=True),
        Signature(name, num_micro_batches, gradient_reduction, inputs, outputs),
        in_tree,
        out_tree,
        in_leaves,
        out_leaves,
        static_arguments(args, static),
        session.equations,
        "" if forward is None else forward.why_whole,
        lowered,
    )


def _forward_step(
    traced: Any,
    jitted: Any,
    shapes: tuple[Sequence[Any], Sequence[Any]],
    batches: Sequence[int],
    count: int,
    name: str,
) -> ForwardStep:
    """What of a step without gradients runs for each micro-batch, and what once.

    Args:
        traced: the step at micro-batch size.
        shapes: arguments at micro-batch size, and at full size.
    """
    micro, larger = shapes
    if count == 1:  # Seen beside a batch twice as large.
        larger = [_grow(a, 2) if i in batches else a for i, a in enumerate(micro)]
    try:
        whole = jitted.trace(*larger).jaxpr
    except (TypeError, ValueError) as error:
        whole = None
        if count > 1:
            raise TraceError(
                f"the step works on one of {count} micro-batches, but not on the whole batch: "
                f"{str(error).splitlines()[0]}",
                where=name,
                fix="take sizes from the batch's shape, or use one micro-batch",
            ) from error
    if whole is not None:
        whole = filled(whole, tagging.call_body)
    return ForwardStep(filled(traced.jaxpr, tagging.call_body), whole, count, name)


def _run_and_lower(
    fn: Callable[..., Any],
    jitted: Any,
    static: Sequence[int],
    dynamic: Sequence[int],
    batches: Sequence[int],
    shapes: tuple[Sequence[Any], Sequence[Any]],
    count: int,
    hook: bool,
    platform: str | None,
    numbered: bool,
    is_last: bool = False,
    is_tagged: bool = False,
) -> tuple[Any, Any, tagging.TagSession, bool]:
    """Trace and lower; anew if the step turns out to need the micro-batch's number after all,
    or not to need it. A step without gradients is not lowered before its equations are tagged."""
    with tagging.tag_gradients(hook) as session:
        if numbered:
            traced, is_stochastic = _run_numbered(
                session, fn, static, dynamic, batches, shapes, count
            )
        else:
            traced = _run(jitted, *shapes, count, _name(fn))
            is_stochastic = count > 1 and (
                session.keys > 0 or _outside_draws(traced, session, ()).found()
            )
        is_forward = session.functions == 0 and not jaxpr_facts.has_gradients(traced.jaxpr.jaxpr)
        if is_forward and not is_tagged:
            return traced, None, session, numbered
        if is_last or is_stochastic == numbered:
            platforms = (platform,) if platform else None
            return traced, traced.lower(lowering_platforms=platforms), session, numbered
    given = (fn, jitted, static, dynamic, batches, shapes, count, hook, platform)
    return _run_and_lower(*given, is_stochastic, is_last=True, is_tagged=is_tagged)


def _run_numbered(
    session: tagging.TagSession,
    fn: Callable[..., Any],
    static: Sequence[int],
    dynamic: Sequence[int],
    batches: Sequence[int],
    shapes: tuple[Sequence[Any], Sequence[Any]],
    count: int,
) -> tuple[Any, bool]:
    """Trace with the micro-batch's number as last argument, so that random keys are folded.

    Args:
        shapes: arguments at micro-batch size, and at full size.

    Returns:
        The trace, and whether the number is used.
    """

    def numbered(*given: Any) -> Any:
        session.micro_batch = given[-1][0]
        return fn(*given[:-1])

    name = _name(fn)
    numbered.__name__ = numbered.__qualname__ = name
    number = [_jax.ShapeDtypeStruct((size,), np.uint32) for size in (1, count)]
    micro, full = ([*args, n] for args, n in zip(shapes, number, strict=True))
    jitted = _jax.jit(numbered, static_argnums=tuple(static), keep_unused=True)
    traced = _run(jitted, micro, full, count, name)
    leaves = [(i in batches) for i in dynamic for _ in trees.leaves(micro[i])]
    outside = _outside_draws(traced, session, leaves)
    if not outside.found():
        return traced, session.keys > 0
    tree = trees.structure(traced.out_info)

    def redrawn(*given: Any) -> Any:
        flat = [x for i in (*dynamic, -1) for x in trees.leaves(given[i])]
        return trees.unflatten(tree, outside.evaluate(flat, given[-1][0]))

    redrawn.__name__ = redrawn.__qualname__ = name
    again = _jax.jit(redrawn, static_argnums=tuple(static), keep_unused=True)
    return _run(again, micro, full, count, name), True


def _outside_draws(
    traced: Any, session: tagging.TagSession, is_batch: Sequence[bool]
) -> random_keys.OutsideDraws:
    """Draws outside of differentiated functions; in a step that has none of these, those that
    results which depend on the batch are made of."""
    closed = traced.jaxpr
    wanted = [False] * len(closed.jaxpr.outvars)
    if session.functions == 0:
        # Unless it is known better, whatever is drawn may count.
        bits = sum(1 << i for i, batch in enumerate(is_batch) if batch) if is_batch else -1
        wanted = [bool(f.depends & bits) for f in jaxpr_facts.result_facts(closed)]
    return random_keys.OutsideDraws(closed, wanted, tagging.call_body)


def _check_carried_keys(
    in_leaves: Sequence[Leaf],
    pairs: Mapping[int, int],
    facts: Sequence[jaxpr_facts.ResultFacts],
    number_bit: int,
) -> None:
    """The next key is the unmodified step's, which knows no micro-batches."""
    for i, leaf in enumerate(in_leaves):
        is_key = leaf.key_impl is not None or leaf.data_dtype == "uint32"
        if is_key and i in pairs and facts[pairs[i]].depends & number_bit:
            raise TraceError(
                "the next value of this random key comes from inside of the loss function, mixed "
                "with what depends on the micro-batch",
                where=leaf.name,
                fix="split the key outside of the loss function, or use one micro-batch",
            )


def _name(fn: Any) -> str:
    """The function's own name, seen through `functools.partial`; else that of its type."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _first(owners: Sequence[int], number: int) -> int:
    """Number of the first leaf of an argument; any number will do for one without leaves."""
    return owners.index(number) if number in owners else 0


def _grow(tree: Any, factor: int) -> Any:
    return trees.map_leaves(
        lambda x: _jax.ShapeDtypeStruct((x.shape[0] * factor, *x.shape[1:]), x.dtype), tree
    )


def _run(jitted: Any, micro: Sequence[Any], full: Sequence[Any], count: int, name: str) -> Any:
    """Trace at micro-batch shape; a failure that the full batch does not have is explained."""
    try:
        traced = jitted.trace(*micro)
    except (TypeError, ValueError) as error:
        if count == 1:
            raise
        try:
            jitted.eval_shape(*full)
        except (TypeError, ValueError):
            raise error from None
        raise TraceError(
            f"the step works on the whole batch but not on one of {count} micro-batches: "
            f"{str(error).splitlines()[0]}",
            where=name,
            fix="take sizes from the batch's shape, keep data of single examples out of the state "
            "and arrays without a batch dimension out of the batch, or use one micro-batch",
        ) from error
    if traced.jaxpr.effects:
        effects = ", ".join(sorted(str(effect) for effect in traced.jaxpr.effects))
        raise TraceError(
            f"the step has side effects ({effects})",
            where=name,
            fix="remove callbacks such as jax.debug.print and mutable references",
        )
    return traced


def _check_single_examples(
    jitted: Any, micro: Sequence[Any], full: Sequence[Any], count: int, name: str
) -> None:
    """A batch of one example fits state with a batch dimension by broadcasting, silently."""

    def other(one: Any, all_of_them: Any) -> Any:
        if one.shape == all_of_them.shape or one.shape[0] != 1:
            return one
        size = 3 if all_of_them.shape[0] == 2 else 2
        return _jax.ShapeDtypeStruct((size, *one.shape[1:]), one.dtype)

    def forms(tree: Any) -> list[Any]:
        return [x for x in trees.leaves(tree) if hasattr(x, "shape")]

    pairs = [
        p for a, b in zip(micro, full, strict=True) for p in zip(forms(a), forms(b), strict=True)
    ]
    if all(a.shape == b.shape or a.shape[0] != 1 for a, b in pairs):
        return
    two = [
        _jax.tree.map(other, a, b) if forms(a) and forms(a) != forms(b) else a
        for a, b in zip(micro, full, strict=True)
    ]
    try:
        jitted.eval_shape(*two)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"the step works on micro-batches of one example, but not of two, so its state holds "
            f"data of single examples: {str(error).splitlines()[0]}",
            where=name,
            fix=f"keep data of single examples out of the state, or use fewer than {count} "
            "micro-batches",
        ) from error


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
