"""Trace a step at micro-batch shape, and lower it to StableHLO once it is known what it needs.

Two things show only in a trace: whether the step has gradients (if not, forward_only.py sorts
its equations before it is lowered), and whether it draws random numbers, so that it must be
told on which micro-batch it works (random_keys.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import jax
import numpy as np

from . import jaxpr_facts, random_keys, tagging, trees
from .bare_marks import filled
from .errors import TraceError
from .forward_only import ForwardStep

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


@dataclass(frozen=True)
class Example:
    """A step and what it is traced with.

    Attributes:
        fn: the step.
        static: numbers of the arguments that are Python values.
        dynamic: numbers of the others.
        batches: of these, the ones that are batches.
        micro: the arguments, arrays by shape and dtype, batches at micro-batch size.
        full: the same with whole batches.
        count: number of micro-batches.
    """

    fn: Callable[..., Any]
    static: tuple[int, ...]
    dynamic: tuple[int, ...]
    batches: tuple[int, ...]
    micro: Sequence[Any]
    full: Sequence[Any]
    count: int

    @cached_property
    def name(self) -> str:
        """Of the step, for messages and for the module."""
        return name_of(self.fn)

    @cached_property
    def jitted(self) -> Any:
        """The step under `jax.jit`."""
        return _jax.jit(self.fn, static_argnums=self.static, keep_unused=True)

    def may_draw(self) -> bool:
        """Whether an argument may be a random key, of which micro-batches need their own."""
        leaves = (leaf for i in self.dynamic for leaf in trees.leaves(self.full[i]))
        return self.count > 1 and any(map(random_keys.may_be_key, leaves))

    def grown(self, factor: int) -> list[Any]:
        """The arguments with batches of `factor` micro-batches."""
        return [_grow(x, factor) if i in self.batches else x for i, x in enumerate(self.micro)]

    def result_shapes(self, factor: int) -> list[tuple[int, ...]]:
        """Shapes of the results for a batch of `factor` micro-batches."""
        args = self.full
        if factor != self.count:
            args = self.grown(factor)
            try:
                self.jitted.eval_shape(*args)
            except (TypeError, ValueError):  # the state fixes the batch size: nothing to combine
                args = self.micro
        return [tuple(leaf.shape) for leaf in trees.leaves(self.jitted.eval_shape(*args))]


@dataclass(frozen=True)
class Lowered:
    """A step as JAX traced and lowered it.

    Attributes:
        traced: JAX's trace.
        lowered: its lowered form; None for a step without gradients whose equations carry no
            tags yet (see `forward_step`).
        session: what was tagged on the way.
        numbered: whether the step has the micro-batch's number as one more argument.
    """

    traced: Any
    lowered: Any
    session: tagging.TagSession
    numbered: bool


def name_of(fn: Any) -> str:
    """The function's own name, seen through `functools.partial`; else that of its type."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    return str(getattr(fn, "__name__", type(fn).__name__))


def lower(
    example: Example, numbered: bool, hook: bool, platform: str | None, *, is_tagged: bool = False
) -> Lowered:
    """Trace and lower; anew if the step turns out to need the micro-batch's number after all,
    or not to need it. A step without gradients is not lowered before its equations are tagged.

    Args:
        numbered: whether the step is thought to need the number.
        hook: tag equations under plain `jax.grad` too, not only under `alpa_mlir.grad`.
        platform: what to lower for; the default backend if None.
        is_tagged: the equations of this step without gradients are tagged.
    """
    step, is_right = _lower(example, numbered, hook, platform, is_tagged, is_last=False)
    if not is_right:
        step, _ = _lower(example, not numbered, hook, platform, is_tagged, is_last=True)
    return step


def _lower(
    example: Example,
    numbered: bool,
    hook: bool,
    platform: str | None,
    is_tagged: bool,
    is_last: bool,
) -> tuple[Lowered, bool]:
    """What `lower` gives, and whether the step needs the number just if it was given one."""
    with tagging.tag_gradients(hook) as session:
        if numbered:
            traced, is_stochastic = _run_numbered(example, session)
        else:
            traced = _run(example)
            is_stochastic = example.count > 1 and (
                session.keys > 0 or _outside_draws(traced, session, ()).found()
            )
        is_forward = session.functions == 0 and not jaxpr_facts.has_gradients(traced.jaxpr.jaxpr)
        if is_forward and not is_tagged:
            return Lowered(traced, None, session, numbered), True
        if not is_last and is_stochastic != numbered:
            return Lowered(traced, None, session, numbered), False
        platforms = (platform,) if platform else None
        lowered = traced.lower(lowering_platforms=platforms)
        return Lowered(traced, lowered, session, numbered), True


def _run(example: Example) -> Any:
    """Trace at micro-batch shape; a failure that the full batch does not have is explained."""
    try:
        traced = example.jitted.trace(*example.micro)
    except (TypeError, ValueError) as error:
        if example.count == 1:
            raise
        try:
            example.jitted.eval_shape(*example.full)
        except (TypeError, ValueError):
            raise error from None
        raise TraceError(
            f"the step works on the whole batch but not on one of {example.count} micro-batches: "
            f"{str(error).splitlines()[0]}",
            where=example.name,
            fix="take sizes from the batch's shape, keep data of single examples out of the state "
            "and arrays without a batch dimension out of the batch, or use one micro-batch",
        ) from error
    if traced.jaxpr.effects:
        effects = ", ".join(sorted(str(effect) for effect in traced.jaxpr.effects))
        raise TraceError(
            f"the step has side effects ({effects})",
            where=example.name,
            fix="remove callbacks such as jax.debug.print and mutable references",
        )
    return traced


def _run_numbered(example: Example, session: tagging.TagSession) -> tuple[Any, bool]:
    """Trace with the micro-batch's number as last argument, so that random keys are folded.

    Returns:
        The trace, and whether the number is used.
    """

    def numbered(*given: Any) -> Any:
        session.micro_batch = given[-1][0]
        return example.fn(*given[:-1])

    numbered.__name__ = numbered.__qualname__ = example.name
    number = [_jax.ShapeDtypeStruct((size,), np.uint32) for size in (1, example.count)]
    longer = replace(
        example,
        fn=numbered,
        micro=[*example.micro, number[0]],
        full=[*example.full, number[1]],
    )
    traced = _run(longer)
    is_batch = [
        i in example.batches for i in example.dynamic for _ in trees.leaves(example.micro[i])
    ]
    outside = _outside_draws(traced, session, is_batch)
    if not outside.found():
        return traced, session.keys > 0
    tree = trees.structure(traced.out_info)

    def redrawn(*given: Any) -> Any:
        flat = [x for i in (*example.dynamic, -1) for x in trees.leaves(given[i])]
        return trees.unflatten(tree, outside.evaluate(flat, given[-1][0]))

    redrawn.__name__ = redrawn.__qualname__ = example.name
    return _run(replace(longer, fn=redrawn)), True


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


def forward_step(example: Example, traced: Any) -> ForwardStep:
    """What of a step without gradients runs for each micro-batch, and what once.

    Args:
        traced: the step at micro-batch size, without a number.
    """
    # A single micro-batch is seen beside a batch twice as large.
    larger = example.grown(2) if example.count == 1 else example.full
    try:
        whole = example.jitted.trace(*larger).jaxpr
    except (TypeError, ValueError) as error:
        whole = None
        if example.count > 1:
            raise TraceError(
                f"the step works on one of {example.count} micro-batches, but not on the whole "
                f"batch: {str(error).splitlines()[0]}",
                where=example.name,
                fix="take sizes from the batch's shape, or use one micro-batch",
            ) from error
    if whole is not None:
        whole = filled(whole, tagging.call_body)
    micro = filled(traced.jaxpr, tagging.call_body)
    return ForwardStep(micro, whole, example.count, example.name)


def check_single_examples(example: Example) -> None:
    """A batch of one example fits state with a batch dimension by broadcasting, silently.

    Raises:
        TraceError: micro-batches have one example, and the step would not work with two.
    """

    def other(one: Any, all_of_them: Any) -> Any:
        if one.shape == all_of_them.shape or one.shape[0] != 1:
            return one
        size = 3 if all_of_them.shape[0] == 2 else 2
        return _jax.ShapeDtypeStruct((size, *one.shape[1:]), one.dtype)

    def forms(tree: Any) -> list[Any]:
        return [x for x in trees.leaves(tree) if hasattr(x, "shape")]

    micro, full = example.micro, example.full
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
        example.jitted.eval_shape(*two)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"the step works on micro-batches of one example, but not of two, so its state holds "
            f"data of single examples: {str(error).splitlines()[0]}",
            where=example.name,
            fix=f"keep data of single examples out of the state, or use fewer than "
            f"{example.count} micro-batches",
        ) from error


def _grow(tree: Any, factor: int) -> Any:
    return trees.map_leaves(
        lambda x: _jax.ShapeDtypeStruct((x.shape[0] * factor, *x.shape[1:]), x.dtype), tree
    )
