"""`alpa-mlir export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from alpa_mlir.cli._command import Answer, add_force, file_in_folder, refuse_existing
from alpa_mlir.cli._source import check_plan
from alpa_mlir.export.formats import FORMATS, NOT_WRITTEN

DESCRIPTION = (
    "Writes a saved plan in the form of another program, and says what of the plan that form "
    "cannot hold: " + "; ".join(f"{name}, {form.summary}" for name, form in FORMATS.items()) + "."
)
EXAMPLES = """\
  alpa-mlir export my_plan --to jax -o shardings.py
  alpa-mlir export pipeline_plan --to mpmd -o step.mlir
  alpa-mlir export llama_plan --to maxtext -o llama_plan.yml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "--to", required=True, type=_written, choices=tuple(FORMATS), help="the form"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=file_in_folder,
        metavar="FILE",
        help="the file to write (default: the output)",
    )
    add_force(parser)


def _written(name: str) -> str:
    if name in NOT_WRITTEN:
        raise argparse.ArgumentTypeError(f"{name} is not written: {NOT_WRITTEN[name]}")
    return name


def run(options: argparse.Namespace) -> Answer:
    output: Path | None = options.output
    refuse_existing(options, "output")
    check_plan(options.plan)
    from alpa_mlir.export import export_plan

    exported = export_plan(options.plan, options.to)
    fields = {"plan": options.plan, "format": options.to, "notes": list(exported.notes)}
    if output is None:
        return Answer(exported.text.rstrip("\n"), fields | {"text": exported.text})
    output.write_text(exported.text)
    lines = [*(f"note: {note}" for note in exported.notes), f"wrote {output}"]
    return Answer("\n".join(lines), fields | {"output": str(output)})
