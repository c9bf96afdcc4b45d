"""`alpa-mlir report`."""

from __future__ import annotations

import argparse
from pathlib import Path

from alpa_mlir.cli._command import Answer, file_in_folder, new_folder, reserved
from alpa_mlir.cli._source import SOURCE, add_source, plan_alternatives, plan_source

DESCRIPTION = (
    "Writes a report of a plan, one HTML file that opens from disk: stages on the cluster, how "
    "every tensor is split, the pipeline's timeline, memory, communication, alternatives, and what "
    "the solver proved. Plans an entry point or a StableHLO file first."
)
EXAMPLES = """\
  alpa-mlir report my_plan --open
  alpa-mlir report train.py:entry --cluster p4d.24xlarge:128 -o step.html
  alpa-mlir report my_plan -o plan.html --plots pictures
  alpa-mlir report my_plan --record step.json --compare other_plan -o both.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser, SOURCE)
    parser.add_argument(
        "-o",
        "--output",
        type=file_in_folder,
        default=Path("report.html"),
        metavar="FILE",
        help="the report (default: report.html)",
    )
    parser.add_argument(
        "--force", action="store_true", help="write over a file that is there already"
    )
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="real steps to show beside the simulated one: what `run` with --trace wrote",
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="PLAN",
        help="another plan's folder to show beside this one; may be given several times",
    )
    parser.add_argument(
        "--plots",
        type=new_folder,
        metavar="FOLDER",
        help="also write pictures there, as SVG and PNG",
    )
    parser.add_argument(
        "--alternatives",
        action="store_true",
        help="also plan the step with data parallelism, ZeRO, and simple pipelines, and show those",
    )


def run(options: argparse.Namespace) -> Answer:
    output: Path = options.output
    if output.exists() and not options.force:
        options.error(f"{output} exists; name another with -o, or give --force")
    from alpa_runtime.plan import Plan

    # Before planning, which may take long.
    others = {name: Plan.load(name) for name in options.compare}
    if options.record is not None and not options.record.is_file():
        options.error(f"there is no file {options.record}")
    source = plan_source(options)
    from alpa_runtime.plan.plan import plan_summary
    from alpa_runtime.plan.text import bytes_text

    from alpa_mlir.report import write_plots, write_report

    if options.alternatives:
        planned = plan_alternatives(options, source)
        others |= {other.name: other.plan for other in planned if other.plan is not None}
    path = write_report(source.plan, output, record=options.record, compare=others)
    size = path.stat().st_size
    lines = [plan_summary(source.plan), f"wrote {path} ({bytes_text(size)})"]
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
