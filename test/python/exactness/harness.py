"""A table of steps, and what "the results of `jax.jit` on the whole batch" means for them.

A style is a function that makes a `Case`: a step, the arguments that it carries from call to
call, and batches made of a generator of random numbers. Two steps with different batches are
compared with `jax.jit`:

- integers, booleans and keys are equal;
- a leaf of the carried state is as near as 1e-5 of the lengths of its updates so far, plus the
  rounding of the leaf itself, which no order of sums avoids;
- any other leaf is as near as 1e-5 of its own length.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
from alpa_mlir.errors import AlpaError, MicroBatchError

STEPS = 2
COUNTS = (1, 2, 4, 8)
# What the error of steps that cannot be split says.
COUPLES = "couples examples"
# Differences that an error lists.
SHOWN = 10


@dataclass(frozen=True)
class Case:
    """A step with its arguments.

    Attributes:
        step: what is compiled.
        state: the first arguments.
        batch: the arguments after them, of a generator.
        carried: how many results, from the first on, are the state's first arguments of the next
            call. A step that carries something returns a tuple.
        order: positions of `(*state, *batch)` in the call, where these are not the first ones.
        options: of `alpa_mlir.compile`, such as `batch_argnums`.
    """

    step: Callable[..., Any]
    state: tuple[Any, ...]
    batch: Callable[[np.random.Generator], tuple[Any, ...]]
    carried: int = 1
    order: Sequence[int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, state: Sequence[Any], number: int) -> tuple[Any, ...]:
        """Those of the step with this number."""
        given = (*state, *self.batch(np.random.default_rng(number)))
        return given if self.order is None else tuple(given[i] for i in self.order)

    def run(self, step: Callable[..., Any], convert: Callable[[Any], Any] = lambda x: x) -> list:
        """What each step returns, on the host."""
        state, results = convert(self.state), []
        static = self.options.get("static_argnums", ())
        for number in range(STEPS):
            arguments = self.arguments(state, number)
            arguments = tuple(a if i in static else convert(a) for i, a in enumerate(arguments))
            result = step(*arguments)
            results.append(jax.tree.map(on_host, result))
            if self.carried:
                state = (*result[: self.carried], *state[self.carried :])
        return results


@dataclass(frozen=True)
class Style:
    """A row of the table.

    Attributes:
        name: of the function that makes the case.
        make: that function.
        couples: why more than one micro-batch may be refused; empty where it may not.
        meets: why micro-batches wait for each other between forward and backward runs; empty
            where they do not have to.
        one_stage: why two stages may be refused; empty where they may not.
        counts: numbers of micro-batches to try.
        zero: parts of paths of leaves that are zero, or do not change, but for rounding.
        rounds: of its own accumulation of gradients, each of which is a micro-batch at least.
        tolerance: relative to the size of updates.
        single: whether the step draws floats or mixes types, so that it is not the same, or
            fails, with 64 bits.
    """

    name: str
    make: Callable[[], Case]
    couples: str = ""
    meets: str = ""
    one_stage: str = ""
    counts: tuple[int, ...] = COUNTS
    zero: tuple[str, ...] = ()
    rounds: int = 1
    tolerance: float = 1e-5
    single: bool = False

    @functools.cached_property
    def case(self) -> Case:
        return self.make()

    @functools.cached_property
    def expected(self) -> list:
        return self.case.run(self.jitted())

    def jitted(self) -> Callable[..., Any]:
        static = self.case.options.get("static_argnums", ())
        return jax.jit(self.case.step, static_argnums=static)


STYLES: dict[str, Style] = {}


def style(make: Callable[[], Case] | None = None, **options: Any) -> Any:
    """Registers a function that makes a case as a style of its name."""
    if make is None:
        return functools.partial(style, **options)
    assert make.__name__ not in STYLES, f"two styles named {make.__name__}"
    assert not inspect.signature(make).parameters
    STYLES[make.__name__] = Style(make.__name__, make, **options)
    return make


def on_host(x: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(getattr(x, "dtype", np.int32), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def is_float(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def length(x: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(x, np.float64)))


def is_finite(results: Any) -> bool:
    """Whether all floats are."""
    floats = [x for x in jax.tree.leaves(results) if is_float(x)]
    return all(np.isfinite(x.astype(np.float64)).all() for x in floats)


def run_in_64_bits(style: Style) -> list:
    """The results of `jax.jit` with arguments, and so most values, of double precision."""

    def wider(tree: Any) -> Any:
        def leaf(x: Any) -> Any:
            is_single = getattr(x, "dtype", None) == np.float32
            return jnp.asarray(on_host(x), jnp.float64) if is_single else x

        return jax.tree.map(leaf, tree)

    with jax.enable_x64(True):
        return style.case.run(style.jitted(), wider)


def differences(
    style: Style, found: list, expected: list, *, types: bool = True, share: float = 1.0
) -> list[str]:
    """What differs by more than it may, one line a leaf.

    Args:
        types: whether types of elements have to agree.
        share: of the style's tolerance that is allowed.
    """
    lines: list[str] = []
    tolerance = share * style.tolerance
    travelled: dict[str, float] = {}
    before: dict[str, np.ndarray] = {}
    for i, state in enumerate(style.case.state[: style.case.carried]):
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            before[f"[{i}]{jax.tree_util.keystr(path)}"] = on_host(leaf)
    for number, (result, wanted) in enumerate(zip(found, expected, strict=True)):
        trees = jax.tree.structure(result), jax.tree.structure(wanted)
        assert trees[0] == trees[1], f"step {number}: {trees[0]} instead of {trees[1]}"
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(wanted), strict=True
        ):
            name = jax.tree_util.keystr(path)
            where = f"{style.name}, step {number}, result{name}"
            if a.shape != b.shape or (types and a.dtype != b.dtype):
                lines.append(f"{where}: {a.shape} {a.dtype}, not {b.shape} {b.dtype}")
                continue
            if not is_float(b):
                if not np.array_equal(a, b):
                    lines.append(f"{where}: {np.sum(a != b)} of {b.size} differ: {a} {b}"[:400])
                continue
            epsilon = float(jnp.finfo(b.dtype).eps if types else np.finfo(np.float32).eps)
            size = length(b)
            if any(zero in name for zero in style.zero):
                allowed, size = tolerance, 1.0
            elif name in before:
                size = length(b.astype(np.float64) - before[name].astype(np.float64))
                travelled[name] = size = travelled.get(name, 0.0) + size
                allowed = tolerance * size + 2 * epsilon * length(b)
                before[name] = b
            else:
                allowed = tolerance * size
            error = length(a.astype(np.float64) - b.astype(np.float64))
            if not error <= allowed:
                share = error / size if size else float("inf")
                lines.append(
                    f"{where}: off by {error:.2e}, {share:.1e} of {size:.2e}; allowed {allowed:.1e}"
                )
    return lines


def check(style: Style, cluster: Any, method: Any, count: int | None, may_be_refused: bool) -> Any:
    """Plan, run, compare with `jax.jit`.

    Args:
        count: how many micro-batches the plan has to have, if it is given.
        may_be_refused: whether any named error at planning is fine, as with stages of steps
            that are of one stage.

    Returns:
        The planned step, or the error at planning.
    """
    case = style.case
    try:
        planned = alpa_mlir.compile(
            case.step,
            *case.arguments(case.state, 0),
            cluster=cluster,
            method=method,
            **case.options,
        )
    except MicroBatchError as error:
        if may_be_refused:
            return error
        if not style.couples or count in (None, 1):
            raise
        if COUPLES not in str(error):
            raise
        return error
    except AlpaError as error:
        if may_be_refused:
            return error
        raise
    if count is not None:
        assert planned.plan.num_micro_batches == max(count, style.rounds)
    if planned.plan.num_micro_batches > 1 and not style.couples:
        assert bool(planned.plan.exactness.barriers) == bool(style.meets)
    lines = differences(style, case.run(planned), style.expected)
    assert not lines, "\n".join(["differs from jax.jit:", *lines[:SHOWN]])
    return planned
