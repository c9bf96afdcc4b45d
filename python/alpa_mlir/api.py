"""What users call to plan: `parallelize` and `compile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from alpa_runtime.cache import CACHE, CacheLike
from alpa_runtime.errors import FLAG, FUNCTION, ROW, TEXT, WHOLE, check_type
from alpa_runtime.parallel_step import ParallelStep, Progress
from alpa_runtime.worker_group import HOSTS, Hosts

from alpa_mlir.cluster import CLUSTER, ClusterLike
from alpa_mlir.errors import MethodError
from alpa_mlir.follow_parallel import (
    CreateStateParallel,
    FollowingFunction,
    FollowParallel,
    StateFunction,
)
from alpa_mlir.methods.method import Method
from alpa_mlir.stages import Options, ParallelFunction
from alpa_mlir.trace.call_form import names_of


@overload
def parallelize(fn: Callable[..., Any], *, method: CreateStateParallel) -> StateFunction: ...
@overload
def parallelize(
    *, method: CreateStateParallel
) -> Callable[[Callable[..., Any]], StateFunction]: ...
@overload
def parallelize(
    fn: Callable[..., Any],
    *,
    cluster: ClusterLike = None,
    method: Method | FollowParallel | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | Literal["auto"] = (),
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    micro_batch_semantics: Literal["exact", "relaxed", "independent"] | None = None,
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> ParallelFunction: ...
@overload
def parallelize(
    *,
    cluster: ClusterLike = None,
    method: Method | FollowParallel | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | Literal["auto"] = (),
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    micro_batch_semantics: Literal["exact", "relaxed", "independent"] | None = None,
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> Callable[[Callable[..., Any]], ParallelFunction]: ...
def parallelize(
    fn: Callable[..., Any] | None = None,
    *,
    cluster: ClusterLike = None,
    method: Method | FollowParallel | CreateStateParallel | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | Literal["auto"] = (),
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    micro_batch_semantics: Literal["exact", "relaxed", "independent"] | None = None,
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
) -> Any:
    """Make a step of training, inference or evaluation run in parallel, as a decorator.

    Args:
        fn: `(state..., batch) -> result`, written for one device.
        cluster: what to plan for: a `Cluster`, the name of a preset, a file or a dictionary;
            by default what `init` named, and without that the devices of this process.
        method: `AutoParallel()` by default. With `FollowParallel` the function lies as another one
            does, with `CreateStateParallel` it makes another one's state; these two decide the
            cluster too.
        batch_argnums: the arguments that may be split into micro-batches along dimension 0. By
            default the last one with arrays that are neither scalars nor random keys and that the
            step does not make anew, and those before it that have as many rows; rows that more of
            them have in common come first. The log says which they are.
        static_argnums, static_argnames: arguments that are Python values, by position or by name;
            another value traces and plans anew. Flags, strings and functions always are, in trees
            too; with `"auto"` numbers as well.
        donate_argnums, donate_argnames: another way to write `donate_state`: all arguments that the
            step returns anew, or none of them; others do not count.
        in_shardings, out_shardings: as of `jax.jit`, over meshes of axes' sizes that the plan's
            meshes have; constraints of the plan (docs/methods.md, "Sharding constraints").
        micro_batch_semantics: another way to write the method's: `"exact"` (results are those of
            `jax.jit` on the whole batch), `"relaxed"` or `"independent"`; see `Method`.
        donate_state: a call uses up the state it is given (if it came from an earlier call).
        cache: whether plans and compiled programs are kept on disk and found again, or the
            folder to keep them in.
        workers: where to start workers, such as `ThreadWorkers()`; None as `init` said, and
            without that in this process.

    Example:
        >>> @alpa_mlir.parallelize(cluster="cpu-test")   # doctest: +SKIP
        ... def train_step(state, batch): ...
        >>> state, loss = train_step(state, batch)       # doctest: +SKIP
    """
    check_type("parallelize", "fn", fn, FUNCTION, None)
    options = Options(
        batch_argnums,
        static_argnums,
        micro_batch_semantics,
        donate_state,
        cache,
        workers,
        donate_argnums,
        _names("parallelize", "static_argnames", static_argnames),
        _names("parallelize", "donate_argnames", donate_argnames),
        in_shardings,
        out_shardings,
    )
    _check("parallelize", cluster, method, options)

    def make(function: Callable[..., Any]) -> ParallelFunction | StateFunction:
        if isinstance(method, CreateStateParallel):
            if cluster is not None or workers is not None:
                raise MethodError(
                    "a cluster or workers for a function that makes another one's state",
                    where="CreateStateParallel",
                    fix="leave them out",
                )
            return StateFunction(function, method)
        return _function(function, cluster, method, options)

    return make if fn is None else make(fn)


def compile(
    fn: Callable[..., Any],
    *example_args: Any,
    cluster: ClusterLike = None,
    method: Method | FollowParallel | None = None,
    batch_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | Literal["auto"] = (),
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    donate_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    micro_batch_semantics: Literal["exact", "relaxed", "independent"] | None = None,
    donate_state: bool = True,
    cache: CacheLike = True,
    workers: Hosts | None = None,
    progress: bool | Progress = False,
) -> ParallelStep:
    """Trace, plan and load a step for arguments like the examples; see `parallelize`.

    Args:
        example_args: arrays, or `jax.ShapeDtypeStruct`s; a batch at its full size.
        progress: True for a progress bar, or a function of (done, total, label).

    Returns:
        The step, called like `fn`.

    Raises:
        AlpaError: every stage has its own named errors.
    """
    check_type("compile", "fn", fn, FUNCTION)
    check_type("compile", "progress", progress, FLAG, FUNCTION)
    options = Options(
        batch_argnums,
        static_argnums,
        micro_batch_semantics,
        donate_state,
        cache,
        workers,
        donate_argnums,
        _names("compile", "static_argnames", static_argnames),
        _names("compile", "donate_argnames", donate_argnames),
        in_shardings,
        out_shardings,
    )
    _check("compile", cluster, method, options)
    function = _function(fn, cluster, method, options)
    return function.compile(*example_args, progress=progress)


def _names(where: str, option: str, given: Any) -> tuple[str, ...]:
    check_type(where, option, given, TEXT, ROW, None)
    return names_of(given)


def _check(where: str, cluster: Any, method: Any, options: Options) -> None:
    check_type(where, "cluster", cluster, CLUSTER)
    check_type(where, "method", method, Method, FollowParallel, CreateStateParallel, None)
    check_type(where, "batch_argnums", options.batch_argnums, WHOLE, ROW, None)
    check_type(where, "static_argnums", options.static_argnums, WHOLE, ROW, TEXT)
    check_type(where, "donate_argnums", options.donate_argnums, WHOLE, ROW, TEXT)
    check_type(where, "donate_state", options.donate_state, FLAG)
    check_type(where, "cache", options.cache, CACHE)
    check_type(where, "workers", options.workers, HOSTS, None)


def _function(
    fn: Callable[..., Any],
    cluster: ClusterLike,
    method: Method | FollowParallel | None,
    options: Options,
) -> ParallelFunction:
    if not isinstance(method, FollowParallel):
        return ParallelFunction(fn, cluster, method, options)
    if cluster is not None:
        raise MethodError(
            "a cluster for a function that follows another one",
            where="FollowParallel",
            fix="leave it out",
        )
    return FollowingFunction(fn, method, options)
