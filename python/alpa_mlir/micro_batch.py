"""Shapes of a step's arguments and results at full batch and at micro-batch size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from . import trees
from .errors import MicroBatchError, TraceError
from .jaxpr_facts import ResultFacts
from .leaf import Leaf
from .signature import Reduction

# JAX leaves many of its types unknown to checkers; the alias says so in one place.
_jax: Any = jax


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
            raise TraceError(
                f"a value of type {type(leaf).__name__} is no array",
                where=name + trees.text(path),
                fix="pass it in an argument listed in static_argnums",
            ) from error


def _same(x: Any) -> Any:
    return x


def split_batches(
    full: Sequence[Any], batches: Sequence[int], names: Sequence[str], count: int
) -> list[Any]:
    """`full` with dimension 0 of every batch leaf divided by `count`."""
    if type(count) is not int or count < 1:
        raise MicroBatchError(
            f"got {count!r}", where="num_micro_batches", fix="use a whole number of at least 1"
        )
    result = list(full)
    first: tuple[str, int] | None = None
    for i in batches:
        for path, leaf in trees.flatten_with_path(full[i])[0]:
            if not leaf.shape:
                continue
            name, size = names[i] + trees.text(path), leaf.shape[0]
            first = first or (name, size)
            if size != first[1]:
                raise MicroBatchError(
                    f"dimension 0 has {size} examples, that of {first[0]} has {first[1]}",
                    where=name,
                    fix="pass what has no example in each row in a state argument",
                )

        def split(path: Any, leaf: Any, name: str = names[i]) -> Any:
            where = name + trees.text(path)
            if not leaf.shape:
                raise MicroBatchError(
                    "a scalar cannot be split into micro-batches",
                    where=where,
                    fix="pass it in a state argument, or name the batch by batch_argnums",
                )
            size = leaf.shape[0]
            if size % count or size == 0:
                divisors = [d for d in range(1, min(size, 64) + 1) if size % d == 0]
                choice = ", ".join(map(str, divisors[-6:])) or "a batch that is not empty"
                raise MicroBatchError(
                    f"batch size {size} cannot be split into {count} equal micro-batches",
                    where=where,
                    fix=f"use a batch size that is a multiple of {count}, or as the number of "
                    f"micro-batches one of {choice}",
                )
            return _resized(leaf, size // count)

        result[i] = trees.map_with_path(split, full[i])
    return result


def _resized(leaf: Any, size: int) -> Any:
    weak = getattr(leaf, "weak_type", False)
    return _jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, weak_type=weak)


def find_reductions(
    out_leaves: Sequence[Leaf],
    facts: Sequence[ResultFacts],
    carried: set[int],
    batch_inputs: int,
    count: int,
    option: Literal["mean", "sum"],
    full_shapes: Callable[[int], list[tuple[int, ...]]],
) -> list[Reduction | None]:
    """How each result's micro-batch values become one.

    Args:
        out_leaves: results at micro-batch size.
        facts: facts on each result.
        carried: numbers of the results that carry state; they get None.
        batch_inputs: bit i is set if input i belongs to a batch.
        count: number of micro-batches.
        option: reduction of real values that do not grow with the batch.
        full_shapes: shapes of all results when the micro-batch grows by a factor.

    Raises:
        TraceError: a result has no value for the whole batch.
    """
    loose = [i for i in range(len(out_leaves)) if i not in carried]
    factor = max(count, 2)
    bigger: list[tuple[int, ...]] | None = None
    # Only arrays can grow with the batch: most steps return scalars and need no second trace.
    if any(out_leaves[i].shape and facts[i].depends & batch_inputs for i in loose):
        bigger = full_shapes(factor)
    result: list[Reduction | None] = [None] * len(out_leaves)
    for i in loose:
        leaf = out_leaves[i]
        full = leaf.shape if bigger is None else bigger[i]
        if full == leaf.shape:
            result[i] = _reduce(
                leaf, facts[i], bool(facts[i].depends & batch_inputs), count, option
            )
        elif full[1:] == leaf.shape[1:] and full[0] == factor * leaf.shape[0]:
            result[i] = "concat"
        else:
            raise TraceError(
                f"this result has shape {list(leaf.shape)} for one micro-batch and {list(full)} "
                f"for {factor}: its parts can neither be averaged nor joined",
                where=leaf.name,
                fix="return it with the batch as dimension 0, or reduced over the batch",
            )
    return result


def _reduce(
    leaf: Leaf, facts: ResultFacts, batched: bool, count: int, option: Literal["mean", "sum"]
) -> Reduction:
    if not batched or leaf.key_impl:
        return "mean"  # The same in all micro-batches.
    if leaf.data_dtype == "bool" and count > 1 and facts.phase in ("forward", "backward"):
        raise TraceError(
            "a truth value of each micro-batch has no value for the whole batch",
            where=leaf.name,
            fix="return a number, such as a count or a share",
        )
    # Whole numbers that depend on the examples are counts.
    return "sum" if leaf.data_dtype.startswith(("int", "uint")) else option
