"""Why a simulated step takes other seconds than the search foresaw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from alpa_mlir.simulator.engine import execute

if TYPE_CHECKING:
    from alpa_mlir.simulator.timeline import Timeline

SHARING = "links shared by transfers"
UPDATES = "updates beside other stages' work"
TRANSFERS = "transfers not hidden by compute"
SCHEDULE = "warm-up and round trips of the schedule"
NAMES = (SHARING, UPDATES, TRANSFERS, SCHEDULE)


def explain_differences(timeline: Timeline) -> Mapping[str, float]:
    """Seconds by cause, found by simulating again with one cause after the other taken away."""
    predicted = timeline.plan.predicted
    if "step_seconds" not in predicted:
        return {}
    work = timeline.work
    total = timeline.step_seconds
    alone = execute(work, share_links=False).seconds if timeline.share_links else total
    still = {k: 0.0 if k[1].startswith("update") else s for k, s in work.seconds.items()}
    without_update = execute(replace(work, seconds=still), share_links=False).seconds
    instant = tuple(replace(r, latency_seconds=0.0, flow_seconds=0.0) for r in work.routes)
    computing = execute(replace(work, seconds=still, routes=instant), share_links=False).seconds
    update = predicted.get("update_seconds", 0.0)
    transfer = predicted.get("transfer_seconds", 0.0)
    return {
        SHARING: total - alone,
        UPDATES: alone - without_update - update,
        TRANSFERS: without_update - computing - transfer,
        SCHEDULE: computing - (predicted["step_seconds"] - update - transfer),
    }
