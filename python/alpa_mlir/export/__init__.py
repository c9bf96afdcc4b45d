"""Plans for other programs than this one: docs/export.md."""

from __future__ import annotations

import importlib
from pathlib import Path

from alpa_runtime.plan.plan import PlanLike, read_plan

from alpa_mlir.errors import ExportError
from alpa_mlir.export.formats import FORMATS, NOT_WRITTEN, Exported

__all__ = ["FORMATS", "Exported", "export_plan"]


def export_plan(plan: PlanLike | str | Path, to: str) -> Exported:
    """A plan in the form of another program.

    Args:
        plan: a plan, a planned or loaded step, which stands for its plan, or the folder where one
            was saved.
        to: one of `FORMATS`.

    Raises:
        ExportError: there is no such format, or it cannot say what the plan decides.

    Example:
        >>> from pathlib import Path
        >>> exported = export_plan("my_plan", "jax")                       # doctest: +SKIP
        >>> Path("shardings.py").write_text(exported.text)                 # doctest: +SKIP
    """
    if to in NOT_WRITTEN:
        raise ExportError(
            f"{to} is not written: {NOT_WRITTEN[to]}",
            where="export_plan",
            fix="use mpmd, which has stages, transfers and the schedule",
        )
    if to not in FORMATS:
        raise ExportError(f"no format {to!r}", where="export_plan", fix=f"use {', '.join(FORMATS)}")
    found = read_plan("export_plan", plan)
    form = FORMATS[to]
    if form.no_stages and len(found.stages) > 1:
        others = " or ".join(name for name, other in FORMATS.items() if not other.no_stages)
        raise ExportError(
            f"{len(found.stages)} pipeline stages, {form.no_stages}",
            where=f"plan of {found.name}",
            fix=f"export it to {others}, or plan with ShardParallel()",
        )
    module = importlib.import_module(f"alpa_mlir.export.{form.module}")
    exported: Exported = module.export(found)
    return exported
