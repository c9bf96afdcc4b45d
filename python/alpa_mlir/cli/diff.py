"""`alpa-mlir diff`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from alpa_mlir.cli._command import Answer, count
from alpa_mlir.cli._source import check_plan

DESCRIPTION = (
    "Lists what two saved plans decide otherwise: cluster, schedule, stages, meshes, shardings of "
    "weights, predicted seconds and bytes."
)
EXAMPLES = """\
  alpa-mlir diff my_plan other_plan
  alpa-mlir diff my_plan other_plan --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="PLAN", help="folder of a plan")
    parser.add_argument("second", metavar="OTHER", help="folder of another plan")
    parser.add_argument(
        "--most", type=count, default=40, metavar="N", help="weights shown (default: 40)"
    )


def run(options: argparse.Namespace) -> Answer:
    for name in (options.first, options.second):
        check_plan(name)
    from alpa_runtime.plan import Plan

    found = Plan.load(options.first).diff(Plan.load(options.second))
    fields = {"first": options.first, "second": options.second, "equal": not found}
    return Answer(found.as_text(options.most), fields | asdict(found))
