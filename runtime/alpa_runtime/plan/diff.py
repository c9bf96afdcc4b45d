"""What two plans decide differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpa_runtime.plan.text import (
    bytes_text,
    rematerialized_text,
    seconds_text,
    spec_text,
    table,
    transfers_text,
)

if TYPE_CHECKING:
    from alpa_runtime.plan import Plan


@dataclass(frozen=True)
class Change:
    """`what` is `before` in the first plan and `after` in the other; None where it has none."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PlanDiff:
    """Differences of two plans; false if there are none.

    Attributes:
        decisions: name, cluster, schedule, micro-batches, layers and meshes of stages,
            how tensors go from mesh to mesh.
        shardings: of weights, by name.
        predictions: seconds and bytes that the search foresaw, apart from those of searching.
    """

    decisions: tuple[Change, ...]
    shardings: tuple[Change, ...]
    predictions: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.decisions or self.shardings or self.predictions)

    def as_text(self, most: int = 40) -> str:
        """A table; of the shardings at most so many."""
        if not self:
            return "the plans are equal"
        shown = self.shardings[:most]
        changes = (*self.decisions, *shown, *self.predictions)
        rows = [[c.what, c.before or "-", c.after or "-"] for c in changes]
        hidden = len(self.shardings) - len(shown)
        more = f"\nand {hidden} more weights are split otherwise" if hidden else ""
        return table(("", "this plan", "other plan"), rows) + more


def diff_plans(first: Plan, second: Plan) -> PlanDiff:
    """See `Plan.diff`."""
    return PlanDiff(
        tuple(_changes(_decisions(first), _decisions(second))),
        tuple(_changes(_shardings(first), _shardings(second))),
        tuple(_changes(_predictions(first), _predictions(second))),
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in (*before, *(name for name in after if name not in before)):
        if before.get(what) != after.get(what):
            yield Change(what, before.get(what), after.get(what))


def _decisions(plan: Plan) -> dict[str, str]:
    found = {
        "step": plan.name,
        "cluster": str(plan.cluster.get("name", "unnamed")),
        "schedule": plan.schedule,
        "micro-batches": str(plan.num_micro_batches),
        "stages": str(len(plan.stages)),
    }
    for index, stage in enumerate(plan.stages):
        lo, end = stage.layers
        found[f"layers of stage {index}"] = f"{lo}-{end - 1}"
        found[f"mesh of stage {index}"] = plan.meshes[stage.mesh].as_text()
        found[f"rematerialized layers of stage {index}"] = rematerialized_text(stage) or "none"
        found[f"export of stage {index}"] = stage.export
    for (source, target), text in transfers_text(plan, seconds=False).items():
        found[f"mesh {source} to mesh {target}"] = text
    return found


def _shardings(plan: Plan) -> dict[str, str]:
    """A weight of several stages has one text for all of them."""
    found: dict[str, str] = {}
    for stage in plan.stages:
        mesh = plan.meshes[stage.mesh]
        sizes = "x".join(map(str, mesh.shape))
        for weight in stage.weights:
            text = f"{spec_text(weight.spec)} of {sizes}"
            known = found.get(weight.name)
            found[weight.name] = text if known in (None, text) else f"{known}, {text}"
    return found


_SEARCH = ("search_seconds", "dp_seconds")  # How long planning took is no property of the plan.


def _predictions(plan: Plan) -> dict[str, str]:
    found = dict(_quantities("predicted ", plan.predicted))
    for index, stage in enumerate(plan.stages):
        found |= dict(_quantities(f"stage {index}: ", stage.predicted))
    return found


def _quantities(prefix: str, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    units: dict[str, Callable[[float], str]] = {"_seconds": seconds_text, "_bytes": bytes_text}
    for name, value in values.items():
        for suffix, text in units.items():
            if name.endswith(suffix) and name not in _SEARCH:
                words = name.removesuffix(suffix).replace("_", " ")
                kind = "seconds" if suffix == "_seconds" else "memory"
                yield f"{prefix}{words} {kind}", text(value)
