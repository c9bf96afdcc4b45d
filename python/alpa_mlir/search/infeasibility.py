"""What would have to change for a step to fit: tried, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.errors import InfeasiblePlanError, MethodError
from alpa_mlir.methods.method import Method
from alpa_mlir.search.planner import Planner

# As many times the hosts are tried at most.
_MOST_HOSTS = 64


def explain_infeasibility(planner: Planner, error: InfeasiblePlanError) -> InfeasiblePlanError:
    """The error with the nearest changes that make a plan fit, each found by a search.

    Args:
        planner: of the step, the cluster and the method that have no plan; its candidates are
            still open.
        error: why there is none: the stage and the limit.
    """
    changes = list(_changes(planner))
    if changes:
        return InfeasiblePlanError(error.what, where=error.where, fix=" or ".join(changes))
    tried = ["bfloat16"]
    if planner.method.num_micro_batches is not None:
        tried.append("more micro-batches")
    if not planner.method.has_fixed_meshes:
        tried.append(f"{_MOST_HOSTS} times the hosts")
    return InfeasiblePlanError(
        f"{error.what}; it does not fit with {' or with '.join(tried)} either",
        where=error.where,
        fix="make the model smaller",
    )


def _changes(planner: Planner) -> Iterator[str]:
    method = planner.method
    count = _more_micro_batches(planner, method)
    if count is not None:
        yield f"fits with {count} micro-batches"
    if method.remat not in ("auto", "all") and _fits(planner, replace(method, remat="all")):
        yield 'fits with remat="all"'
    if not method.has_fixed_meshes:
        yield from _more_hosts(planner, method)
    if _fits(planner, method, dtype="bfloat16"):
        yield "fits in bfloat16"


def _likely_counts(planner: Planner) -> list[int]:
    """The count to begin with, and the largest one, whose micro-batches need least."""
    return list(dict.fromkeys((planner.start(), planner.counts[-1])))


def _fits(
    planner: Planner,
    method: Method,
    *,
    cluster: Cluster | None = None,
    dtype: str = "",
    counts: list[int] | None = None,
) -> int | None:
    """A number of micro-batches with which it fits."""
    # Searches that cannot succeed are the slowest: all state has to lie somewhere.
    where = cluster or planner.candidates.cluster
    held = planner.candidates.state_bytes / (2 if dtype else 1)
    if held > method.memory_fraction * where.memory_bytes:
        return None
    for count in counts or _likely_counts(planner):
        try:
            if planner.candidates.estimate(count, method, cluster, dtype).seconds is not None:
                return count
        except MethodError:  # The method and that cluster have nothing in common.
            continue
    return None


def _more_micro_batches(planner: Planner, method: Method) -> int | None:
    """The least number beyond those that may be chosen, where doubling is tried."""
    if method.num_micro_batches is None:
        return None
    size = planner.candidates.batch_size
    allowed: list[int] = [n for n in range(planner.counts[-1] + 1, size + 1) if size % n == 0]
    last = planner.counts[-1]
    while allowed:
        count = next((n for n in allowed if n >= 2 * last), allowed[-1])
        if _fits(planner, method, counts=[count]):
            between = [n for n in allowed if last < n < count]
            return _least(between, count, lambda n: bool(_fits(planner, method, counts=[n])))
        last = count
        allowed = [n for n in allowed if n > count]
    return None


def _more_hosts(planner: Planner, method: Method) -> Iterator[str]:
    groups = planner.candidates.cluster.host_groups
    for group, (count, kind) in enumerate(groups):

        def fits(hosts: int, group: int = group) -> bool:
            cluster = planner.candidates.cluster.with_hosts(group, hosts)
            try:
                return bool(_fits(planner, method, cluster=cluster))
            except InfeasiblePlanError:
                return False

        hosts = 2 * count
        while hosts <= _MOST_HOSTS * count and not fits(hosts):
            hosts *= 2
        if hosts > _MOST_HOSTS * count:
            continue
        least = _least(range(max(count, hosts // 2) + 1, hosts), hosts, fits)
        yield f"fits with {least} hosts" + (f" of {kind}" if len(groups) > 1 else "")


def _least(smaller: list[int] | range, known: int, fits: Callable[[int], bool]) -> int:
    """The least of `smaller` that fits, found by halving, or else `known`, which does."""
    low, high = 0, len(smaller)
    while low < high:
        middle = (low + high) // 2
        if fits(smaller[middle]):
            high = middle
        else:
            low = middle + 1
    return smaller[low] if low < len(smaller) else known
