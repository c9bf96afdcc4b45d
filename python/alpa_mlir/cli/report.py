"""`alpa-mlir report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from alpa_mlir.cli._command import (
    Answer,
    add_force,
    file_in_folder,
    positive,
    refuse_existing,
    refuse_existing_pictures,
    reserved,
)
from alpa_mlir.cli._source import SOURCE, add_source, check_plan, plan_alternatives, plan_source

DESCRIPTION = (
    "Writes a report of a plan, one HTML file that opens from disk: strategy, tokens/s and MFU, "
    "where the time goes, stages on the cluster, how every tensor is split, the pipeline's "
    "timeline, memory, communication, alternatives, and what the solver proved. Plans an entry "
    "point or a StableHLO file first, and beside it data parallelism, FSDP, and Megatron-LM's best "
    "grid."
)
EXAMPLES = """\
  alpa-mlir report my_plan --open
  alpa-mlir report train.py:entry --cluster p4d.24xlarge:128 -o step.html
  alpa-mlir report my_plan -o plan.html --plots pictures
  alpa-mlir report my_plan other_plan third_plan -o side_by_side.html
  alpa-mlir report my_plan --record step.json --price 2.5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, SOURCE)
    parser.usage = "%(prog)s STEP [PLAN ...] [options]"
    parser.add_argument(
        "others", nargs="*", metavar="PLAN", help="folders of other plans, to show side by side"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=file_in_folder,
        default=Path("report.html"),
        metavar="FILE",
        help="the report (default: report.html)",
    )
    add_force(parser)
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="real steps to show beside the simulated one: what `run` with --trace wrote",
    )
    parser.add_argument(
        "--price",
        type=positive,
        metavar="PRICE",
        help="of a device for an hour: also show what 10^9 tokens or 10^6 rows cost",
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="FOLDER",
        help="also write pictures there, as SVG and PNG",
    )
    parser.add_argument(
        "--no-compare",
        action="store_true",
        help="leave out data parallelism, FSDP and Megatron-LM's best grid, which take once or "
        "twice as long to plan as the step",
    )
    parser.add_argument(
        "--alternatives",
        action="store_true",
        help="also plan the step as one mesh and with simple pipelines, and show those",
    )


def run(options: argparse.Namespace) -> Answer:
    output: Path = options.output
    refuse_existing(options, "output", "plots")
    refuse_existing_pictures(options)
    from alpa_runtime.plan import Plan

    # Before planning, which may take long.
    for name in options.others:
        check_plan(name)
    others: dict[str, Plan | str] = {name: Plan.load(name) for name in options.others}
    if options.record is not None and not options.record.is_file():
        options.error(f"there is no file {options.record}")
    source = plan_source(options)
    from alpa_runtime.plan.plan import plan_summary
    from alpa_runtime.plan.strategy import strategy_text
    from alpa_runtime.plan.text import bytes_text

    from alpa_mlir.report import write_plots, write_report

    if options.alternatives or (source.traced is not None and not options.no_compare):
        planned = plan_alternatives(options, source, parts=options.alternatives)
        others |= {other.name: other.plan or other.why_not for other in planned}
    path = write_report(
        source.plan, output, record=options.record, compare=others, price=options.price
    )
    size = path.stat().st_size
    words = strategy_text(source.plan)
    strategy = [f"strategy: {words}"] if words else []
    lines = [plan_summary(source.plan), *strategy, f"wrote {path} ({bytes_text(size)})"]
    pictures: tuple[Path, ...] = ()
    if options.plots is not None:
        with reserved(options.plots):
            pictures = write_plots(source.plan, options.plots, record=options.record)
        lines.append(f"wrote {len(pictures)} pictures to {options.plots}")
    if options.open:
        import webbrowser

        if not webbrowser.open(path.absolute().as_uri()):
            lines.append("no browser was found; open the file in one")
    fields = {"report": str(path), "bytes": size, "name": source.plan.name}
    return Answer("\n".join(lines), fields | {"plots": [str(picture) for picture in pictures]})
