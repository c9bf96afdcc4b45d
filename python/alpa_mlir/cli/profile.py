"""`alpa-mlir profile`."""

from __future__ import annotations

import argparse
from typing import Any

from alpa_runtime.backends.gpus import DTYPES

from alpa_mlir.cli._command import (
    Answer,
    add_force,
    add_virtual_devices,
    count,
    count_from_0,
    file_in_folder,
    positive,
    progress,
    refuse_existing,
    use_devices,
)
from alpa_mlir.errors import DevicesError

DESCRIPTION = (
    "Measures the devices of this host (dots by dtype, memory traffic, collectives by size and "
    "number of devices) and writes a profile that a cluster file names as `profile: FILE`. To "
    "measure links between hosts start it on every host with --coordinator, --processes and "
    "--process."
)
EXAMPLES = """\
  alpa-mlir profile --output measured.yaml --cluster-output cluster.yaml
  alpa-mlir profile --coordinator 10.0.0.1:1234 --processes 2 --process 0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=file_in_folder,
        default="profile.yaml",
        metavar="FILE",
        help="the profile (default: profile.yaml)",
    )
    parser.add_argument(
        "--cluster-output",
        type=file_in_folder,
        metavar="FILE",
        help="also write a cluster file made of what was measured",
    )
    add_force(parser)
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
        type=positive,
        default=0.05,
        metavar="SECONDS",
        help="sizes rise until one operation takes that long (default: 0.05)",
    )
    add_virtual_devices(parser)
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    parser.add_argument("--processes", type=count, metavar="N", help="number of hosts")
    parser.add_argument(
        "--process", type=count_from_0, metavar="I", help="number of this host, from 0"
    )


def run(options: argparse.Namespace) -> Answer:
    refuse_existing(options, "output", "cluster_output")
    import jax

    from alpa_mlir.cluster import device_memory_bytes, profiling

    jax_: Any = jax
    _join(options, jax_)
    use_devices(options)
    is_first = jax_.process_index() == 0
    profile = profiling.measure(
        device_type=options.device_type,
        dtypes=options.dtypes,
        longest_seconds=options.longest,
        progress=progress(options, "measuring") if is_first else None,
    )
    if not is_first:
        return Answer("", {})
    options.output.write_text(profile.as_text())
    lines = [f"wrote {options.output}: {summary(profile)}"]
    if options.cluster_output is not None:
        cluster = profile.to_cluster(
            jax_.process_count(),
            jax_.local_device_count(),
            device_memory_bytes(),
            f"measured-{jax_.default_backend()}",
        )
        cluster.save(options.cluster_output)
        lines.append(f"wrote {options.cluster_output}")
    made = options.cluster_output
    fields = {
        "profile": str(options.output),
        "cluster": None if made is None else str(made),
        "flops": {dtype: table.rate() for dtype, table in profile.matmul.items()},
        "memory_bandwidth": profile.memory.rate(),
        "links": {"intra_host": profile.link(False), "inter_host": profile.link(True)},
    }
    return Answer("\n".join(lines), fields)


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
