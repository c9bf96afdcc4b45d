"""Reports of plans: one HTML file that opens without a network, and pictures.

Example:
    >>> from alpa_runtime.plan import Plan
    >>> write_report(Plan.load("my_plan"), "plan.html")      # doctest: +SKIP
    >>> write_plots(Plan.load("my_plan"), "pictures")        # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alpa_runtime.plan.plan import PlanLike, as_plan

from alpa_mlir.report._data import Others, RecordLike, collect
from alpa_mlir.report._html import to_html
from alpa_mlir.report._model import ReportData
from alpa_mlir.report._plots import draw

if TYPE_CHECKING:
    from alpa_mlir.simulator import Timeline

__all__ = ["ReportData", "collect", "write_plots", "write_report"]


def write_report(
    plan: PlanLike,
    path: str | Path,
    *,
    timeline: Timeline | None = None,
    record: RecordLike | None = None,
    compare: Others = (),
    price: float | None = None,
) -> Path:
    """Write a report of a plan: a page that holds all it needs, for any browser.

    It shows stages on the cluster, how each tensor is split, who does what when, memory,
    communication, what else was close, and what the solver proved. What the plan does not say,
    because it was written by hand or by an older compiler, is named in the report.

    Args:
        plan: made here, or loaded from disk; or a planned or loaded step, which stands for its
            plan.
        path: the file to write.
        timeline: `alpa_mlir.simulate(plan, ..)`; by default the plan is simulated on its cluster.
        record: what real steps did: the `Recording` of `step.record`, its trace, or its file.
        compare: other plans to stand beside this one, by name or in order; text instead of a plan
            says why there is none.
        price: of a device for an hour: also say what 10^9 tokens or 10^6 rows cost.

    Returns:
        The file.

    Raises:
        PlanFormatError: a part of the plan is malformed, or `record` holds no steps.
        OSError: the file cannot be written.

    Example:
        >>> with step.record("trace.json") as recording:             # doctest: +SKIP
        ...     state, loss = step(state, batch)
        >>> write_report(step.plan, "plan.html", record=recording)   # doctest: +SKIP
    """
    path = Path(path)
    plan = as_plan("write_report", plan)
    data = collect(plan, timeline=timeline, record=record, compare=compare, price=price)
    path.write_text(to_html(data), encoding="utf-8")
    return path


def write_plots(
    plan: PlanLike,
    folder: str | Path,
    formats: Sequence[str] = ("svg", "png"),
    *,
    timeline: Timeline | None = None,
    record: RecordLike | None = None,
) -> tuple[Path, ...]:
    """Write pictures of a plan: `cluster`, `timeline`, `memory`, `communication`, and
    `timeline_real` if something was recorded, each in every format.

    A picture of which the plan says nothing is left out. Needs matplotlib (`alpa-mlir[plots]`).

    Args:
        plan, timeline, record: as of `write_report`.
        folder: is made if needed.
        formats: any that matplotlib writes: `svg`, `png`, `pdf`, ..

    Returns:
        The files.

    Raises:
        BackendError: matplotlib is not installed.
        PlanFormatError: an unknown format, a malformed plan, or a record without steps.

    Example:
        >>> write_plots(Plan.load("my_plan"), "pictures", formats=["pdf"])   # doctest: +SKIP
    """
    data = collect(as_plan("write_plots", plan), timeline=timeline, record=record)
    return draw(data, Path(folder), formats)
