"""What a subcommand is about: a saved plan, or an entry point or StableHLO file to be planned."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpa_mlir.cli._command import (
    add_virtual_devices,
    did_you_mean,
    importing,
    interruptible,
    numbers,
    progress,
    use_devices,
)
from alpa_mlir.cli._method import OPTIONS, add_method, method_of
from alpa_mlir.errors import (
    ClusterFileError,
    EntryPointError,
    InfeasiblePlanError,
    PlanFormatError,
)

if TYPE_CHECKING:
    from alpa_runtime.plan import Plan

    from alpa_mlir.cli._entry_points import EntryPoint
    from alpa_mlir.cluster import Cluster, ClusterLike
    from alpa_mlir.report.method_comparison import Alternative
    from alpa_mlir.simulator.figures import Figures
    from alpa_mlir.stages import PlannedStep, TracedStep

FILE_OPTIONS = ("batch_arguments", "carried")
FILES = (".mlir", ".mlirbc")
SOURCE = "a plan's folder, an entry point (module:function, file.py:function), or a .mlir file"


@dataclass(frozen=True)
class Source:
    """A plan, and where it came from.

    Attributes:
        name: as the user gave it.
        traced, planned: if it was planned now.
        entry: if it is that of an entry point.
    """

    name: str
    plan: Plan
    traced: TracedStep | None = None
    planned: PlannedStep | None = None
    entry: EntryPoint | None = None

    def as_text(self, figures: Figures) -> str:
        """The plan as a table with its figures, and what else was tried."""
        from alpa_runtime.plan.plan import tried_text

        text = self.plan.as_text(figures=figures.lines()).rstrip()
        return f"{text}\n{tried_text(self.plan.tried)}".rstrip()


def plan_alternatives(
    options: argparse.Namespace, source: Source, *, parts: bool = True
) -> tuple[Alternative, ...]:
    """The step parallelized in the ways that have names; see `alternatives`.

    Raises:
        EntryPointError: it is a saved plan, from which nothing can be planned.
    """
    from alpa_mlir.report.method_comparison import alternatives

    traced = source.traced
    if traced is None:
        raise EntryPointError(
            "alternatives cannot be planned from a saved plan",
            where=source.name,
            fix="give the entry point or the .mlir file",
        )
    bar = progress(options, "alternatives", "plan")
    return interruptible(lambda: alternatives(traced, bar, parts=parts))


def alternative_fields(found: Sequence[Alternative]) -> list[dict[str, Any]]:
    """Alternatives, for machines."""
    return [
        {
            "name": other.name,
            "seconds": other.seconds,
            "peak_bytes": other.peak_bytes,
            "fits": other.fits,
            "reason": other.reason,
        }
        for other in found
    ]


def add_source(
    parser: argparse.ArgumentParser, what: str, *, asks_about_micro_batches: bool = False
) -> None:
    """The positional argument and everything that planning takes; see `add_method`."""
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
    add_method(parser, asks_about_micro_batches=asks_about_micro_batches)
    group = parser.add_argument_group(
        "StableHLO files", "where the file does not say it; the program is that of the whole batch"
    )
    group.add_argument(
        "--batch-arguments",
        type=numbers,
        metavar="N[,N..]",
        help="arguments of @main that are batches (default: the last)",
    )
    group.add_argument(
        "--carried",
        type=_pairs,
        metavar="A=R[,A=R..]",
        help="arguments whose values for the next step are these results; ranges such as 0-5=0-5",
    )


def plan_source(options: argparse.Namespace, start: Plan | None = None) -> Source:
    """Load the plan, or make it.

    Args:
        start: a plan near which to look.

    Raises:
        AlpaError: by the cause.
    """
    name: str = options.source
    check_inputs(options)
    if not is_code(name):
        if not Path(name).is_dir():
            raise EntryPointError(
                "there is no such plan, nor is it code",
                where=name,
                fix=_file_hint(Path(name)) or f"give {SOURCE}",
            )
        _refuse_planning(options)
        use_devices(options)
        from alpa_runtime.plan import Plan

        return Source(name, Plan.load(name))
    traced, entry = trace_source(options)
    with here(options, traced.cluster):
        planned = interruptible(lambda: traced.plan(start=start, progress=shown(options)))
    return Source(name, planned.plan, traced, planned, entry)


def trace_source(options: argparse.Namespace) -> tuple[TracedStep, EntryPoint | None]:
    """Trace the step, with the cluster and the method that were asked for.

    Raises:
        AlpaError: by the cause.
    """
    name: str = options.source
    check_inputs(options)
    with importing(options):
        use_devices(options)
        importlib.import_module("alpa_mlir.api")
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    if name.endswith(FILES):
        return _read_file(options, cluster), None
    _refuse_file_options(options)
    from alpa_runtime.parallel_step import phase

    from alpa_mlir.api import ParallelFunction
    from alpa_mlir.cli._entry_points import load_entry

    entry = load_entry(name, dict(options.set))
    given = entry.function
    function = ParallelFunction(
        given.fn,
        given.cluster if cluster is None else cluster,
        method_of(options, given.method),
        replace(given.options, cache=False) if options.no_cache else given.options,
    )
    entry = replace(entry, function=function)
    with phase("tracing", shown(options)):
        return function.trace(*entry.arguments), entry


def check_inputs(options: argparse.Namespace) -> None:
    """Look for the files that options name, before JAX is imported.

    Raises:
        EntryPointError, PlanFormatError, ClusterFileError: one is not there, or the cluster's is
            wrong.
    """
    _check_file(options.source)
    for plan in (getattr(options, "start", None), options.keep_stages):
        if plan is not None:
            check_plan(plan)
    if options.cluster is not None:
        cluster_text(options.cluster)


def check_plan(name: str) -> None:
    """Look for a plan's folder, before anything is imported that takes long.

    Raises:
        PlanFormatError: there is none.
    """
    path, hint = Path(name), ""
    if not (path / "plan.json").is_file():
        if path.is_file():
            why = "it is a file"
        else:
            why = "no plan.json is there" if path.is_dir() else "there is no such folder"
            hint = _file_hint(path)
        raise PlanFormatError(
            f"cannot read the plan: {why}",
            where=name,
            fix=hint or "give a folder that Plan.save wrote",
        )


def _check_file(name: str) -> None:
    place = name.rpartition(":")[0] if ".py:" in name else name
    if place.endswith((".py", *FILES)) and not Path(place).is_file():
        what = "it is a folder" if Path(place).is_dir() else "there is no such file"
        form = "path/file.py:function" if place.endswith(".py") else SOURCE
        raise EntryPointError(what, where=place, fix=_file_hint(Path(place)) or f"give {form}")


def _file_hint(path: Path) -> str:
    """The file, or the plan's folder, whose name is most like one that is not there."""
    try:
        beside = [each for each in path.parent.iterdir() if each.suffix == path.suffix]
    except OSError:
        return ""
    names = [each.name for each in beside if path.suffix or (each / "plan.json").is_file()]
    return did_you_mean([path.name], names, path.with_name)


@contextlib.contextmanager
def here(options: argparse.Namespace, cluster: ClusterLike) -> Generator[None, None, None]:
    """Say that planning without a cluster is for this process, which few want."""
    if cluster is not None:
        yield
        return
    if not options.quiet:
        print("planning for the devices of this process; --cluster names others", file=sys.stderr)
    try:
        yield
    except InfeasiblePlanError as error:
        fix = f"name a cluster with --cluster, or {error.fix or 'use more devices'}"
        raise InfeasiblePlanError(error.what, where=error.where, fix=fix) from None


def is_code(name: str) -> bool:
    """Whether this names code rather than a plan's folder."""
    return not Path(name).is_dir() and (name.endswith((".py", *FILES)) or ":" in name)


def _read_file(options: argparse.Namespace, cluster: Cluster | None) -> TracedStep:
    from alpa_mlir.stablehlo_file import read_stablehlo
    from alpa_mlir.stages import Options

    name: str = options.source
    if options.set:
        raise EntryPointError(
            "--set for a file, which has no parameters", where=name, fix="leave --set out"
        )
    step = read_stablehlo(
        name,
        batches=options.batch_arguments,
        carried=dict(options.carried or ()),
        method=method_of(options, None),
        options=Options(cache=not options.no_cache),
    )
    return replace(step, cluster=cluster)


def _refuse_file_options(options: argparse.Namespace) -> None:
    for option in FILE_OPTIONS:
        if getattr(options, option) is not None:
            flag = "--" + option.replace("_", "-")
            raise EntryPointError(
                f"{flag} is for .mlir files", where=options.source, fix=f"leave {flag} out"
            )


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
        if Path(name).exists():
            raise
        preset = name.partition(":")[0]
        if preset in cluster_presets():
            raise
        if Path(name).suffix in (".yaml", ".yml"):
            fix = _file_hint(Path(name))
        else:
            fix = did_you_mean([preset], cluster_presets())
        if not fix:
            raise
        raise ClusterFileError(error.what, where=error.where, fix=fix) from None


def shown(options: argparse.Namespace) -> bool:
    """Whether planning and loading show a bar."""
    return not options.quiet


def _refuse_planning(options: argparse.Namespace) -> None:
    """A saved plan cannot be planned otherwise."""
    given = [n for n in ("cluster", *FILE_OPTIONS, *OPTIONS) if getattr(options, n) is not None]
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


def _pairs(text: str) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for item in text.split(","):
        left, _, right = item.partition("=")
        first, second = numbers(left), numbers(right)
        if len(first) != len(second):
            raise argparse.ArgumentTypeError(f"{item!r} is no pair such as 0=0 or 0-5=0-5")
        pairs += zip(first, second, strict=True)
    return pairs
