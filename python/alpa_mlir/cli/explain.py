"""`alpa-mlir explain`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from alpa_mlir.cli.common import Answer, count
from alpa_mlir.cli.source import SOURCE, add_source, plan_alternatives, plan_source

DESCRIPTION = (
    "Says why a plan is as it is: what limits its step (the slowest stage, memory, a link), what "
    "else was tried, where the time of each stage goes, and for the dearest decisions the sharding "
    "that came second and what it would cost."
)
EXAMPLES = """\
  alpa-mlir explain my_plan
  alpa-mlir explain my_plan --op qkv --most 3
  alpa-mlir explain train.py:entry --cluster dgx-a100 --alternatives
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, SOURCE)
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
        help="also plan the step with data parallelism, ZeRO, and simple pipelines",
    )


def run(options: argparse.Namespace) -> Answer:
    source = plan_source(options)
    from alpa_mlir.alternatives import alternatives_text
    from alpa_mlir.bottleneck import bottlenecks
    from alpa_mlir.explanation import explain

    plan = source.plan
    limits = bottlenecks(plan)
    parts = [source.as_text(), f"what limits the step\n{limits.as_text()}"]
    others = plan_alternatives(options, source) if options.alternatives else ()
    if others:
        parts.append(alternatives_text(others, plan.predicted.get("step_seconds")))
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
        "alternatives": [
            {
                "name": other.name,
                "seconds": other.seconds,
                "peak_bytes": other.peak_bytes,
                "reason": other.reason,
            }
            for other in others
        ],
        "tried": [asdict(row) for row in plan.tried],
    }
    return Answer("\n\n".join(parts), fields)
