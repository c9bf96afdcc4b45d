"""What a search that begins with a plan from before takes and finds, against one in full.

Each case is a model and a cluster for which there is a plan, and another model or cluster. For the
latter three plans are made: in full, with the former plan's stages and meshes kept where it has
such, and with `start=`. Seconds are the processor's, of all threads, from the traced step to a
plan; `step` are predicted ones.

Run: python benchmark/replan.py [NUMBER ..] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

import jax
from paper.models import make_case
from planning_job import cluster_of

_jax: Any = jax


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model, the factor on its batch, and how many devices there are."""

    case: str
    depth: int
    gpus: int
    batch: int = 1


SMALL = Problem("gpt-2.6b", 12, 16)
LARGE = Problem("gpt-6.7b", 16, 32)
EXPERTS = Problem("moe-2.4b", 8, 16)
CASES = (
    (SMALL, dataclasses.replace(SMALL, depth=14)),
    (SMALL, dataclasses.replace(SMALL, batch=2)),
    (SMALL, dataclasses.replace(SMALL, gpus=8)),
    (SMALL, dataclasses.replace(SMALL, gpus=32)),
    (SMALL, dataclasses.replace(SMALL, case="gpt-6.7b")),
    (LARGE, dataclasses.replace(LARGE, gpus=24)),
    (LARGE, dataclasses.replace(LARGE, gpus=40)),
    (LARGE, dataclasses.replace(LARGE, depth=12)),
    (LARGE, dataclasses.replace(LARGE, case="gpt-15b", depth=12)),
    (EXPERTS, dataclasses.replace(EXPERTS, gpus=8)),
    (EXPERTS, dataclasses.replace(EXPERTS, gpus=32)),
    (EXPERTS, dataclasses.replace(EXPERTS, depth=10)),
)


def plan(problem: Problem, **given: Any) -> tuple[Any, float]:
    """The plan and the processor's seconds; None if nothing fits."""
    import alpa_mlir
    from alpa_mlir.errors import InfeasiblePlanError, MethodError

    model = make_case(problem.case, layers=problem.depth)

    def larger(x: Any) -> Any:
        return jax.ShapeDtypeStruct((x.shape[0] * problem.batch, *x.shape[1:]), x.dtype)

    batch = _jax.tree.map(larger, model.batch)
    base = alpa_mlir.AutoParallel(micro_batch_semantics="independent", widen_sums=False)
    kept = given.pop("kept", None)
    method = base if kept is None else alpa_mlir.keep_stages(kept, base)
    traced = alpa_mlir.parallelize(
        model.step, cluster=cluster_of(model.cluster, problem.gpus), method=method, cache=False
    ).trace(model.state, batch)
    begin = time.process_time()
    try:
        found = traced.plan(**given).plan
    except (InfeasiblePlanError, MethodError):
        found = None
    return found, time.process_time() - begin


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", type=int, nargs="*")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    before: dict[Problem, Any] = {}
    rows: list[dict[str, Any]] = []
    for number in options.numbers or range(len(CASES)):
        old, new = CASES[number]
        if old not in before:
            before[old], _ = plan(old)
        full, full_seconds = plan(new)
        kept, _ = plan(new, kept=before[old])
        near, near_seconds = plan(new, start=before[old])
        row: dict[str, Any] = {"before": dataclasses.asdict(old), "after": dataclasses.asdict(new)}
        row |= {"full_cpu_seconds": full_seconds, "near_cpu_seconds": near_seconds}
        for name, found in (("full", full), ("kept", kept), ("near", near)):
            row[f"{name}_step"] = found and found.predicted["step_seconds"]
        rows.append(row)
        if not options.json:
            change = {k: v for k, v in row["after"].items() if row["before"][k] != v}
            worse = row["near_step"] / row["full_step"] - 1
            kept_text = "-" if kept is None else f"{row['kept_step']:.3f}"
            print(
                f"{number:2} {old.case}, {old.depth} layers, {old.gpus} devices -> {change}: "
                f"full {full_seconds:.0f} s, near {near_seconds:.1f} s; step {row['full_step']:.3f}"
                f", kept {kept_text}, near {row['near_step']:.3f} ({worse:+.2%})",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
