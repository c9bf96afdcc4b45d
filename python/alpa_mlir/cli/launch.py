"""`alpa-mlir launch`."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from pathlib import Path
from typing import Any

from alpa_mlir.cli._command import Answer, count, count_from_0, ended_by_signals, positive
from alpa_mlir.errors import MethodError

DESCRIPTION = (
    "Starts a training program over several hosts, without a service. Run it on every host (srun, "
    "an indexed job of Kubernetes, anything that sets RANK and WORLD_SIZE), or once with --hosts, "
    "which goes by SSH. On host 0 it also runs the program, whose steps take "
    "workers=alpa_mlir.LaunchedWorkers(). A program that fails is started again, and the hosts "
    "wait for it. All end with the program's status."
)
EXAMPLES = """\
  srun --ntasks-per-node=1 alpa-mlir launch -- python train.py
  alpa-mlir launch --hosts node0,node1,node2 -- python train.py
  alpa-mlir launch --rank 1 --num-hosts 2 --coordinator node0:29400 -- python train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rank", type=count_from_0, metavar="I", help="number of this host, from 0"
    )
    parser.add_argument("--num-hosts", type=count, metavar="N", help="number of hosts")
    parser.add_argument(
        "--coordinator", metavar="HOST:PORT", help="host 0 and a free port there (default: 29400)"
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="holds the key that all hosts share, for its owner only (default: the variable "
        "ALPA_MLIR_LAUNCH_KEY; under Slurm host 0 makes one in the home folder)",
    )
    parser.add_argument("--key-from-input", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--hosts", metavar="HOST[,HOST..]", help="start the launch on these by SSH, from here"
    )
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        default="ssh -o BatchMode=yes",
        help="what goes to a host (default: ssh -o BatchMode=yes)",
    )
    parser.add_argument(
        "--restarts",
        type=count_from_0,
        default=3,
        metavar="N",
        help="how often the program is started again when it fails (default: 3)",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="FOLDER",
        help="write driver.log, and host-RANK.log of each host's workers, instead of printing",
    )
    parser.add_argument(
        "--start-seconds",
        type=positive,
        default=600.0,
        metavar="S",
        help="how long hosts wait for the program (default: 600)",
    )
    parser.add_argument(
        "--encrypt",
        action="store_true",
        help="encrypt what goes over TCP (TLS 1.3); on all hosts, which need the program openssl",
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ..", help="what host 0 runs"
    )


def run(options: argparse.Namespace) -> Answer:
    from alpa_runtime.hosts import launch

    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        options.error("no program is given; put it last: alpa-mlir launch -- PROGRAM ..")
    logging.basicConfig(format="alpa-mlir launch: %(message)s")
    how: dict[str, Any] = {
        "restarts": options.restarts,
        "logs": options.logs,
        "start_seconds": options.start_seconds,
        "encrypt": options.encrypt,
    }
    with ended_by_signals():
        if options.hosts is not None:
            status = _by_ssh(options, program, how)
        else:
            place = launch.find_place(
                os.environ, options.rank, options.num_hosts, options.coordinator
            )
            if options.key_from_input:
                key = launch.end_with_input()
            else:
                key = launch.find_key(place, os.environ, options.key_file, options.start_seconds)
            os.environ.pop(launch.KEY_VARIABLE, None)  # Programs need not know it.
            status = launch.launch(program, place, key, **how)
    return Answer("", {"status": status}, status)


def _by_ssh(options: argparse.Namespace, program: list[str], how: dict[str, Any]) -> int:
    from alpa_runtime.hosts import launch

    hosts = [name.strip() for name in options.hosts.split(",")]
    if not all(hosts) or any(name.startswith("-") for name in hosts):
        raise MethodError(
            f"--hosts {options.hosts}: expected names", where="launch", fix="give HOST,HOST,.."
        )
    taken = [n for n in ("rank", "num_hosts", "key_file") if getattr(options, n) is not None]
    if taken:
        names = ", ".join("--" + name.replace("_", "-") for name in taken)
        raise MethodError(f"{names} with --hosts", where="launch", fix="leave it out")
    ssh = shlex.split(options.ssh)
    return launch.launch_by_ssh(program, hosts, coordinator=options.coordinator, ssh=ssh, **how)
