"""`alpa-mlir doctor`."""

from __future__ import annotations

import argparse

from alpa_mlir.cli._command import Answer, positive

DESCRIPTION = (
    "Looks at the installation, the devices, the solvers and their licences, Ray, IREE, and the "
    "room on this machine, and says what to do about what does not work. What could crash or hang "
    "is tried in processes of its own. Exits with 1 if something that is needed does not work."
)
EXAMPLES = """\
  alpa-mlir doctor
  alpa-mlir doctor --json
  RAY_ADDRESS=10.0.0.1:6379 alpa-mlir doctor
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=positive,
        default=60.0,
        metavar="SECONDS",
        help="how long anything that is tried may take (default: 60)",
    )


def run(options: argparse.Namespace) -> Answer:
    from alpa_mlir.doctor import diagnose

    found = diagnose(seconds=options.seconds)
    return Answer(found.as_text(), found.fields(), status=1 if found.broken else 0)
