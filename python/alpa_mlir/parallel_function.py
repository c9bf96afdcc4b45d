"""Functions that are planned, compiled and run when they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from typing import Any

import jax
from alpa_runtime.arrays import WholeArray
from alpa_runtime.calling_convention import positional
from alpa_runtime.parallel_step import ParallelStep, Progress

from alpa_mlir import session
from alpa_mlir.cluster.description import ClusterLike
from alpa_mlir.methods.automatic import AutoParallel
from alpa_mlir.methods.method import Method
from alpa_mlir.stages import Options, PlannedStep, TracedStep, trace_step
from alpa_mlir.trace.tracing import known_positions

_jax: Any = jax


class ParallelFunction:
    """A function that is planned when it is first called, once for each form of arguments.

    The steps can be taken one by one: `f.trace(*args).plan(cluster).load()`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        cluster: ClusterLike = None,
        method: Method | None = None,
        options: Options | None = None,
    ) -> None:
        self.fn: Callable[..., Any] = _by_position(fn)
        self.cluster = cluster
        self.method: AutoParallel | Method = AutoParallel() if method is None else method
        self.options: Options = Options() if options is None else options
        self._steps: dict[Any, ParallelStep] = {}
        self._last: ParallelStep | None = None
        update_wrapper(self, fn)
        session.remember(self)

    def trace(self, *args: Any) -> TracedStep:
        """Trace at the whole batch.

        Raises:
            TraceError: the function or its arguments do not fit.
        """
        options = self.options.for_arguments(args)
        static = known_positions(options.static_argnums, len(args))
        examples = tuple(arg if i in static else shapes_of(arg) for i, arg in enumerate(args))
        cluster = session.default_cluster(self.cluster)
        traced = trace_step(self.fn, examples, options)
        return TracedStep(self.fn, options, traced, cluster, self.method)

    def plan(self, *args: Any, progress: bool | Progress = False) -> PlannedStep:
        """Trace and plan with this function's cluster and method."""
        return self.trace(*args).plan(progress=progress)

    def compile(self, *args: Any, progress: bool | Progress = False) -> ParallelStep:
        """Trace, plan and load for arguments of this form; remembered."""
        key = self._key(args)
        if key not in self._steps:
            self._steps[key] = self._compile(args, progress)
        self._last = self._steps[key]
        return self._last

    def _compile(self, args: Sequence[Any], progress: bool | Progress) -> ParallelStep:
        return self.plan(*args, progress=progress).load(progress=progress)

    def get_executable(self, *args: Any) -> ParallelStep:
        """The step for arguments of this form, planned and compiled, but not run: `compile`.

        Args:
            args: arrays, or trees of `jax.ShapeDtypeStruct`s.
        """
        return self.compile(*args)

    def get_last_executable(self) -> ParallelStep | None:
        """The step that was compiled or called last; None before."""
        return self._last

    def preshard_dynamic_args(self, *args: Any) -> tuple[Any, ...]:
        """The arguments, copied to where the step reads them first: `ParallelStep.place`."""
        return self.compile(*args).place(*args)

    def clear(self, session: int | None = None) -> None:
        """Forget the steps, or those of one session (`init`); the next call plans anew, or finds
        its plan on disk."""
        kept = {k: v for k, v in self._steps.items() if session not in (None, k[0])}
        self._steps = kept
        if self._last is not None and not any(step is self._last for step in kept.values()):
            self._last = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run one step, planning it first if arguments of this form are new."""
        if named:
            names = tuple(inspect.signature(self.fn).parameters)
            args = positional(names, args, named, getattr(self.fn, "__name__", "the function"))
        return self.compile(*args)(*args)

    def _key(self, args: Sequence[Any]) -> Any:
        static = known_positions(self.options.for_arguments(args).static_argnums, len(args))
        leaves, tree = _jax.tree.flatten([a for i, a in enumerate(args) if i not in static])
        forms: Any = tuple(
            (x.shape, x.dtype) if hasattr(x, "dtype") else type(x).__name__ for x in leaves
        )
        number = session.session_of(self.cluster, self.options.workers)
        return number, tree, forms, tuple(args[i] for i in static)


def _by_position(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose keyword-only arguments may be given by position, in their order."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return fn
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not keywords or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return fn
    first = parameters.index(keywords[0])

    @wraps(fn)
    def call(*args: Any) -> Any:
        named = {p.name: x for p, x in zip(keywords, args[first:], strict=False)}
        return fn(*args[:first], **named)

    positional = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in parameters]
    call.__signature__ = inspect.Signature(positional)  # pyright: ignore
    return call


def shapes_of(tree: Any) -> Any:
    """Shapes and dtypes in place of arrays, so that a plan keeps no data alive."""

    def shape(x: Any) -> Any:
        if not isinstance(x, jax.Array | WholeArray):
            return x
        weak = getattr(x, "weak_type", False)
        return _jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak)

    return _jax.tree.map(shape, tree)
