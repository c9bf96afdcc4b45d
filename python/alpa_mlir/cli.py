"""The command `alpa-mlir`; every subcommand is one function over the Python API."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpa_mlir.cluster import DTYPES
from alpa_mlir.errors import AlpaError, DevicesError
from alpa_mlir.gpus import GPUS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 after an error of alpa_mlir's own, 2 for wrong usage.

    Example:
        >>> main(["profile", "--output", "measured.yaml"])  # doctest: +SKIP
    """
    parser = argparse.ArgumentParser(
        prog="alpa-mlir", description="Plans and runs JAX training steps on GPU clusters."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_profile(commands)
    _add_simulate(commands)
    _add_measure(commands)
    _add_compile(commands)
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except AlpaError as error:
        print(f"alpa-mlir: error: {error}", file=sys.stderr)
        return 1
    return 0


def _add_profile(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="measure dots, memory and collectives of the devices of this host",
        description="Measures the devices of this host (dots by dtype, memory traffic, collectives "
        "by size and number of devices) and writes a profile that a cluster file names as "
        "`profile: FILE`. To measure links between hosts start it on every host with "
        "--coordinator, --processes and --process.",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_new_file,
        default=Path("profile.yaml"),
        metavar="FILE",
        help="the profile (default: profile.yaml)",
    )
    parser.add_argument(
        "--cluster-output",
        type=_new_file,
        metavar="FILE",
        help="also write a cluster file made of what was measured",
    )
    parser.add_argument(
        "--device-type", metavar="NAME", help="the devices' name in the cluster file"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=["float32", "bfloat16", "float16"],
        metavar="DTYPE",
        help="dtypes of the dots, where the devices have them (default: float32 bfloat16 float16)",
    )
    parser.add_argument(
        "--longest",
        type=_positive,
        default=0.05,
        metavar="SECONDS",
        help="sizes rise until one operation takes that long (default: 0.05)",
    )
    parser.add_argument(
        "--virtual-devices", type=_count, metavar="N", help="N virtual devices of the CPU instead"
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    parser.add_argument("--processes", type=_count, metavar="N", help="number of hosts")
    parser.add_argument("--process", type=int, metavar="I", help="number of this host, from 0")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_profile)


def _add_simulate(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="execute a saved plan on a described cluster, without devices",
        description="Executes a plan's instruction lists on the cluster it was made for, or on one "
        "with other links between hosts: seconds, busy and idle time of each stage, memory over "
        "time, traffic.",
    )
    parser.add_argument("plan", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="a preset or a file; its devices and the links within stages must be those that the "
        "plan was made for",
    )
    parser.add_argument(
        "--trace", type=_new_file, metavar="FILE", help="also write a trace for Chrome or Perfetto"
    )
    parser.add_argument(
        "--own-links",
        action="store_true",
        help="every pair of meshes has links of its own: transfers never slow each other down",
    )
    parser.set_defaults(run=_simulate)


def _simulate(options: argparse.Namespace) -> None:
    from alpa_mlir.plan import Plan
    from alpa_mlir.runtime.linear import linearize
    from alpa_mlir.simulator import simulate

    plan = Plan.load(options.plan)
    linearize(plan)  # Refuses programs that contradict each other.
    timeline = simulate(plan, options.cluster, share_links=not options.own_links)
    print(timeline.as_text())
    if options.trace is not None:
        timeline.to_chrome_trace(options.trace)
        print(f"wrote {options.trace}")


def _add_measure(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "measure",
        help="compile and time the stages of saved plans on the devices of this host",
        description="Compiles and times every function of the plans' stages on the devices of this "
        "host, simulates the steps with these seconds, and names the fastest plan. A stage that "
        "needs more devices keeps its predicted seconds.",
    )
    parser.add_argument("plans", nargs="+", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "-o",
        "--output",
        type=_new_folder,
        metavar="FOLDER",
        help="also save the fastest plan, with the measured seconds",
    )
    parser.add_argument(
        "--virtual-devices", type=_count, metavar="N", help="N virtual devices of the CPU instead"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=_measure)


def _measure(options: argparse.Namespace) -> None:
    from alpa_mlir.api import progress_bar
    from alpa_mlir.finalists import MeasuredPlan, fastest
    from alpa_mlir.plan import Plan
    from alpa_mlir.plan_text import seconds_text
    from alpa_mlir.runtime import use_virtual_devices

    if options.virtual_devices is not None:
        use_virtual_devices(options.virtual_devices)
    names: list[str] = options.plans
    plans = [Plan.load(name) for name in names]
    best, results = fastest(
        plans,
        progress=None if options.quiet else lambda i: progress_bar(f"measuring {names[i]}"),
    )
    for name, plan, result in zip(names, plans, results, strict=True):
        if not isinstance(result, MeasuredPlan):
            print(f"{name}: {result.what}\n")
            continue
        predicted = plan.predicted.get("step_seconds")
        before = "" if predicted is None else f" (predicted {seconds_text(predicted)})"
        print(f"{name}: a step takes {seconds_text(result.step_seconds)}{before}")
        print(f"{result.as_text()}\n")
    chosen = None if best is None else results[best]
    if best is None or not isinstance(chosen, MeasuredPlan):
        raise DevicesError("no plan fits into memory", where="measure", fix="see the reasons above")
    if len(names) > 1:
        print(f"fastest: {names[best]}")
    if options.output is not None:
        chosen.plan.save(options.output)
        print(f"wrote {options.output}")


def _add_compile(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "compile",
        help="compile the stages of a saved plan ahead of time, without its devices",
        description="Compiles every program of a plan and stores it in the plan's folder, from "
        "where loading takes it. GPUs need not be here. Prints the size of each program and the "
        "memory that it needs, and refuses a plan that does not fit.",
    )
    parser.add_argument("plan", metavar="PLAN", help="folder that Plan.save wrote")
    parser.add_argument(
        "--target",
        choices=("cpu", *GPUS),
        help="kind of device; by default the devices that the plan was made for",
    )
    parser.add_argument(
        "--backend", choices=("xla", "iree"), default="xla", help="who compiles (default: xla)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_compile)


def _compile(options: argparse.Namespace) -> None:
    from alpa_mlir.ahead import compile_ahead
    from alpa_mlir.plan import Plan
    from alpa_mlir.runtime import use_virtual_devices

    if options.target == "cpu":
        use_virtual_devices(Plan.load(options.plan).num_devices)
    done = compile_ahead(
        options.plan, options.target, backend=options.backend, progress=not options.quiet
    )
    print(done.as_text())
    print(f"wrote {len(done.binaries)} programs to {options.plan}")


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


def _new_folder(text: str) -> Path:
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{text} exists")
    return path


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _profile(options: argparse.Namespace) -> None:
    import jax

    from alpa_mlir import profiling
    from alpa_mlir.api import progress_bar
    from alpa_mlir.cluster import device_memory_bytes
    from alpa_mlir.runtime import use_virtual_devices

    jax_: Any = jax
    _join(options, jax_)
    if options.virtual_devices is not None:
        use_virtual_devices(options.virtual_devices)
    quiet = options.quiet or jax_.process_index() != 0
    profile = profiling.measure(
        device_type=options.device_type,
        dtypes=options.dtypes,
        longest_seconds=options.longest,
        progress=None if quiet else progress_bar("measuring"),
    )
    if jax_.process_index() != 0:
        return
    options.output.write_text(profile.as_text())
    print(f"wrote {options.output}: {summary(profile)}")
    if options.cluster_output is not None:
        cluster = profile.to_cluster(
            jax_.process_count(),
            jax_.local_device_count(),
            device_memory_bytes(),
            f"measured-{jax_.default_backend()}",
        )
        cluster.save(options.cluster_output)
        print(f"wrote {options.cluster_output}")


def _join(options: argparse.Namespace, jax_: Any) -> None:
    """Make one world of the processes of all hosts, if there are several."""
    given = [options.coordinator, options.processes, options.process]
    if all(value is None for value in given):
        return
    if any(value is None for value in given):
        raise DevicesError(
            "--coordinator, --processes and --process belong together",
            where="profile",
            fix="give all three, or none",
        )
    try:
        jax_.distributed.initialize(
            options.coordinator,
            options.processes,
            options.process,
            cluster_detection_method="deactivate",
        )
    except (RuntimeError, ValueError) as error:
        raise DevicesError(
            f"the hosts cannot be joined: {str(error).splitlines()[0]}",
            where=options.coordinator,
            fix="start the command on every host with the same address and number of processes",
        ) from None


def summary(profile: Any) -> str:
    """The best rates of a `profiling.Profile` in one line."""
    rates = [
        f"{dtype} {table.rate() / 1e12:.3g} TFLOP/s" for dtype, table in profile.matmul.items()
    ]
    rates.append(f"memory {profile.memory.rate() / 1e9:.3g} GB/s")
    for name, between in (("within the host", False), ("between hosts", True)):
        link = profile.link(between)
        if link is not None:
            rates.append(
                f"{name} {link['bandwidth'] / 1e9:.3g} GB/s after {link['latency'] * 1e6:.3g} us"
            )
    return ", ".join(rates)


if __name__ == "__main__":
    sys.exit(main())
