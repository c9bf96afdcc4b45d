"""What a subcommand is about: a saved plan, or an entry point or StableHLO file to be planned."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from alpa_mlir.cli.common import add_virtual_devices, use_devices
from alpa_mlir.cli.method import OPTIONS, add_method, method_of
from alpa_mlir.errors import ClusterFileError, EntryPointError

if TYPE_CHECKING:
    from alpa_mlir.api import PlannedStep
    from alpa_mlir.cluster import Cluster
    from alpa_mlir.entry import EntryPoint
    from alpa_mlir.plan import Plan

SOURCE = "a plan's folder, an entry point (module:function, file.py:function)"


@dataclass(frozen=True)
class Source:
    """A plan, and where it came from.

    Attributes:
        name: as the user gave it.
        planned: if it was planned now.
        entry: if it is that of an entry point.
    """

    name: str
    plan: Plan
    planned: PlannedStep | None = None
    entry: EntryPoint | None = None

    def as_text(self) -> str:
        return self.plan.as_text() if self.planned is None else self.planned.as_text()


def add_source(parser: argparse.ArgumentParser, what: str) -> None:
    """The positional argument and everything that planning takes."""
    parser.usage = "%(prog)s STEP [options]"
    parser.add_argument("source", metavar="STEP", help=what)
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="a preset, some hosts of it (dgx-a100:4), or a YAML file (default: what the step "
        "comes with, else the devices of this process); `alpa-mlir clusters` lists presets",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a keyword argument of the entry point; may be given several times",
    )
    add_virtual_devices(parser)
    parser.add_argument(
        "--no-cache", action="store_true", help="plan and compile anew, and keep neither"
    )
    add_method(parser)


def plan_source(options: argparse.Namespace) -> Source:
    """Load the plan, or make it.

    Raises:
        AlpaError: by the cause.
    """
    name: str = options.source
    if not is_entry(name):
        if not Path(name).is_dir():
            raise EntryPointError(
                "there is no such plan, nor is it code", where=name, fix=f"give {SOURCE}"
            )
        _refuse_planning(options)
        use_devices(options)
        from alpa_mlir.plan import Plan

        return Source(name, Plan.load(name))
    use_devices(options)
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    from alpa_mlir.api import ParallelFunction
    from alpa_mlir.entry import load_entry

    entry = load_entry(name, dict(options.set))
    given = entry.function
    function = ParallelFunction(
        given.fn,
        given.cluster if cluster is None else cluster,
        method_of(options, given.method),
        replace(given.options, cache=False) if options.no_cache else given.options,
    )
    entry = replace(entry, function=function)
    planned = function.plan(*entry.arguments, progress=shown(options))
    return Source(name, planned.plan, planned, entry)


def is_entry(name: str) -> bool:
    """Whether this names code rather than a plan's folder."""
    if Path(name).is_dir():
        return False
    return name.endswith(".py") or ":" in name


def cluster_of(name: str) -> Cluster:
    """A preset or a file; see `cluster_text`."""
    from alpa_mlir.cluster import Cluster

    return Cluster(cluster_text(name))


def cluster_text(name: str) -> str:
    """The checked description of a preset or a file.

    Raises:
        ClusterFileError: with the nearest preset, if there is none of that name.
    """
    from alpa_mlir.compiler import check_cluster, cluster_presets

    try:
        return check_cluster(name)
    except ClusterFileError as error:
        near = difflib.get_close_matches(name.partition(":")[0], cluster_presets(), 1)
        if Path(name).exists() or not near:
            raise
        fix = f"did you mean {near[0]}?"
        raise ClusterFileError(error.what, where=error.where, fix=fix) from None


def shown(options: argparse.Namespace) -> bool:
    """Whether planning and loading show a bar."""
    return not options.quiet


def _refuse_planning(options: argparse.Namespace) -> None:
    """A saved plan cannot be planned otherwise."""
    given = [n for n in ("cluster", *OPTIONS) if getattr(options, n) is not None]
    given += ["set"] if options.set else []
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise EntryPointError(
            f"{flag} for a plan that is made already",
            where=options.source,
            fix=f"leave {flag} out, or give the entry point that it was made from",
        )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
