"""`alpa-mlir explain`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from alpa_mlir.cli._command import Answer, count
from alpa_mlir.cli._method import ASKED
from alpa_mlir.cli._source import (
    SOURCE,
    Source,
    add_source,
    alternative_fields,
    plan_alternatives,
    plan_source,
)

DESCRIPTION = (
    "Says why a plan is as it is: what limits its step (the slowest stage, memory, a link), what "
    "else was tried, where the time of each stage goes, which ops every device runs whole, and for "
    "the dearest decisions the sharding that came second and what it would cost. With "
    "--micro-batches alone, whether results are those of jax.jit on the whole batch, and by what "
    "means, with source lines."
)
EXAMPLES = """\
  alpa-mlir explain my_plan
  alpa-mlir explain my_plan --op qkv --most 3
  alpa-mlir explain my_plan --micro-batches
  alpa-mlir explain train.py:entry --cluster dgx-a100 --alternatives
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, SOURCE, asks_about_micro_batches=True)
    parser.add_argument(
        "--op", default="", metavar="TEXT", help="only ops and decisions with this in their name"
    )
    parser.add_argument(
        "--most",
        type=count,
        default=5,
        metavar="N",
        help="ops and decisions shown of each stage (default: 5)",
    )
    parser.add_argument(
        "--alternatives",
        action="store_true",
        help="also plan the step with data parallelism, FSDP, the best of Megatron-LM's grids, one "
        "mesh, and simple pipelines",
    )


def run(options: argparse.Namespace) -> Answer:
    if options.micro_batches == ASKED:
        options.micro_batches = None
        return _micro_batches(plan_source(options))
    source = plan_source(options)
    from alpa_mlir.report.explanation import bottlenecks, explain
    from alpa_mlir.report.method_comparison import alternatives_text
    from alpa_mlir.simulator.figures import figures_of

    plan = source.plan
    limits = bottlenecks(plan)
    figures = figures_of(plan)
    parts = [source.as_text(figures), f"what limits the step\n{limits.as_text()}"]
    others = plan_alternatives(options, source) if options.alternatives else ()
    if others:
        parts.append(alternatives_text(others, plan))
    parts.append(explain(plan, options.op, options.most))
    fields = {
        "name": plan.name,
        "stages": [
            asdict(limit) | {"explanation": plan.explanation(limit.stage)}
            for limit in limits.stages
        ],
        "slowest": limits.slowest,
        "tight": list(limits.tight),
        "bubble_fraction": limits.bubble_fraction,
        "busiest_link": limits.link,
        "busiest_link_utilization": limits.link_utilization,
        "figures": figures.to_fields(),
        "alternatives": alternative_fields(others),
        "tried": [asdict(row) for row in plan.tried],
    }
    return Answer("\n\n".join(parts), fields)


def _micro_batches(source: Source) -> Answer:
    """What micro-batches compute."""
    from alpa_runtime.plan.plan import micro_batches_text

    plan = source.plan
    rows = [row for row in plan.tried if row.seconds is None and row.num_micro_batches > 1]
    left_out = {row.num_micro_batches: row.reason for row in rows}
    parts = [micro_batches_text(plan)]
    if left_out:
        parts.append("no plan")
        parts += [f"  {count} micro-batches: {left_out[count]}" for count in sorted(left_out)]
    fields = {
        "name": plan.name,
        "num_micro_batches": plan.num_micro_batches,
        **asdict(plan.exactness),
        "left_out": [
            {"num_micro_batches": count, "reason": left_out[count]} for count in sorted(left_out)
        ],
    }
    return Answer("\n".join(parts), fields)
