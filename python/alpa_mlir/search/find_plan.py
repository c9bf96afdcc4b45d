"""The way from a traced step to its plan: kept from before, or searched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from alpa_runtime.parallel_step import progress_bar
from alpa_runtime.plan import Plan

from alpa_mlir.cluster.description import Cluster
from alpa_mlir.errors import InfeasiblePlanError, MethodError
from alpa_mlir.methods.method import Method
from alpa_mlir.methods.pinned_shardings import pinned_axes
from alpa_mlir.search import autotune, plan_cache
from alpa_mlir.search.candidates import Candidates, Progress
from alpa_mlir.search.infeasibility import explain_infeasibility
from alpa_mlir.search.plan_cache import PlanCache, code_version
from alpa_mlir.search.planner import Planner
from alpa_mlir.trace.tracing import Traced


def find_plan(
    traced: Traced,
    cluster: Cluster,
    method: Method,
    kept_in: Path | None = None,
    progress: bool | Progress = False,
) -> Plan:
    """The best plan for a step on a cluster, which says what else was tried.

    Args:
        method: settled for the cluster (`Method.settled`).
        kept_in: a folder of plans from before, to which this one is added; None for no folder.
        progress: True for a bar, or a function of (candidates tried, candidates known of, what is
            tried now).

    Raises:
        MethodError, MicroBatchError, UnsupportedOpError, InfeasiblePlanError: by the cause.
        DevicesError: the method's finalists cannot be measured in this process.
    """
    # A function as a schedule does not say whether it is the one of another day.
    cache = PlanCache(kept_in) if kept_in and isinstance(method.schedule, str) else None
    annotated = _signature_json(traced, method)
    name = ""
    if cache is not None:
        devices = autotune.devices_text() if method.finalists else ""
        name = plan_cache.key(traced.text, annotated, cluster, method, code_version(), devices)
        found = cache.get(name)
        if found is not None:
            return found
    shown = progress_bar("planning", "candidate") if progress is True else progress or None
    solved = None if cache is None else cache.solved_folder()
    with Candidates(traced, annotated, cluster, method, shown, solved) as candidates:
        planner = Planner(candidates)
        try:
            chosen = planner.run()
        except InfeasiblePlanError as error:
            raise explain_infeasibility(planner, error) from None
    plan = replace(chosen.found.plan, tried=chosen.tried, fingerprint=traced.fingerprint)
    if cache is not None:
        cache.put(name, plan)
    return plan


def _signature_json(traced: Traced, method: Method) -> str:
    """The signature with the shardings that the method's user has decided."""
    fields: dict[str, Any] = json.loads(traced.signature.to_json())
    # An input of the compiler's own comes last, and has no pin.
    pins = pinned_axes(method.in_shardings, method.mesh_axes, traced.in_tree)
    for item, pin in zip(fields["inputs"], pins, strict=False):
        if pin is None:
            continue
        rank = len(item["shape"])
        if len(pin) > rank:
            raise MethodError(
                f"a sharding of {len(pin)} dimensions for {rank}",
                where=item["name"],
                fix="give at most one entry for each dimension",
            )
        item["sharding"] = pin + [[]] * (rank - len(pin))
    return json.dumps(fields)
