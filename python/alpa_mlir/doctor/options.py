"""What is there if it was installed: GPUs, solvers, Ray, IREE, transports, checkpoints."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from alpa_mlir.doctor._diagnosis import Finding
from alpa_mlir.doctor.child import run_probe
from alpa_mlir.doctor.installation import version_of

_PLUGINS = {"jax-cuda12-plugin": "cuda12", "jax-cuda13-plugin": "cuda13"}


def _extra(name: str) -> str:
    return f"pip install 'alpa-mlir[{name}]'"


def driver_version() -> str | None:
    """The version of NVIDIA's driver; empty if it is there without one, None if it is not there."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "" if Path("/dev/nvidiactl").exists() else None
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found[0] if found else ""


def gpu(seconds: float) -> Iterator[Finding]:
    """GPUs: NVIDIA's driver, JAX's plugin, and whether JAX computes on them."""
    driver = driver_version()
    plugins = {name: version for name in _PLUGINS if (version := version_of(name))}
    plugin, version = next(iter(plugins.items()), ("", ""))
    jaxlib = version_of("jaxlib")
    facts = {"driver": driver, "plugins": plugins}
    named = f"NVIDIA driver{' ' + driver if driver else ''}"
    if driver is None and not plugin:
        text = "no GPU: no NVIDIA driver, and no CUDA plugin for JAX"
        fix = f"plans for GPUs can be made here; to run them: a driver, and {_extra('cuda12')}"
        yield Finding("gpu", "missing", text, fix, facts=facts)
        return
    if not plugin:
        text = f"{named}, but no CUDA plugin for JAX"
        yield Finding("gpu", "missing", text, _extra("cuda12"), facts=facts)
        return
    if version != jaxlib:
        text = f"{plugin} {version} does not belong to jaxlib {jaxlib}"
        fix = f"pip install 'jax[{_PLUGINS[plugin]}]=={jaxlib}'"
        yield Finding("gpu", "problem", text, fix, facts=facts)
        return
    if driver is None:
        text = f"{plugin} {version} without an NVIDIA driver: programs for GPUs can be compiled"
        yield Finding("gpu", "ok", text, facts=facts)
        return
    environment = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    outcome = run_probe("devices", "cuda", seconds=seconds, environment=environment)
    if outcome.facts is None:
        text = f"JAX does not compute on the GPUs ({named}, {plugin} {version}): {outcome.error}"
        fix = "see whether `nvidia-smi` works, and the driver is new enough for CUDA 12"
        yield Finding("gpu", "problem", text, fix, facts=facts)
        return
    kinds: list[str] = outcome.facts["kinds"]
    count = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    text = f"GPUs: {count} ({named}, {plugin} {version})"
    yield Finding("gpu", "ok", text, facts={**facts, **outcome.facts})


def highs(seconds: float) -> Iterator[Finding]:
    """HiGHS solves a small problem."""
    version = version_of("highspy")
    if version is None:
        yield Finding("highs", "missing", "HiGHS is not installed", _extra("highs"))
        return
    facts = {"version": version}
    outcome = run_probe("solver", "highs", seconds=seconds)
    if outcome.facts is None:
        text = f"HiGHS {version} fails: {outcome.error}"
        yield Finding("highs", "problem", text, _extra("highs"), facts=facts)
    else:
        yield Finding("highs", "ok", f"HiGHS {version}", facts=facts)


def gurobi(seconds: float) -> Iterator[Finding]:
    """Gurobi and its licence."""
    version = version_of("gurobipy")
    if version is None:
        yield Finding("gurobi", "missing", "Gurobi is not installed", _extra("gurobi"))
        return
    outcome = run_probe("gurobi", seconds=seconds)
    if outcome.facts is None:
        text = f"Gurobi {version}: {outcome.error}"
        fix = "see whether its licence is there, or its licence server can be reached"
        yield Finding("gurobi", "problem", text, fix, facts={"version": version})
        return
    size = "" if outcome.facts["any_size"] else " for 2,000 columns and rows at most (the free one)"
    day = str(outcome.facts["expires"])
    until = f" until {day[:4]}-{day[4:6]}-{day[6:]}" if len(day) == 8 and day < "2099" else ""
    text = f"Gurobi {version}, licence{size}{until}"
    yield Finding("gurobi", "ok", text, facts={"version": version, **outcome.facts})


def ray(seconds: float) -> Iterator[Finding]:
    """Ray, and the cluster of `RAY_ADDRESS`."""
    version = version_of("ray")
    address = os.environ.get("RAY_ADDRESS", "")
    if version is None:
        text = "Ray is not installed: plans run in this process, or in others of this host"
        yield Finding("ray", "missing", text, _extra("ray"))
        return
    facts = {"version": version, "address": address}
    fix = "see whether the cluster is up (`ray status`), or unset RAY_ADDRESS"
    refused = _refused(address, min(seconds, 5.0))
    if refused:
        text = f"Ray {version}: nothing answers at RAY_ADDRESS={address} ({refused})"
        yield Finding("ray", "problem", text, fix, facts=facts)
        return
    outcome = run_probe("ray", address, seconds=seconds)
    if outcome.facts is None:
        at = f" at RAY_ADDRESS={address}" if address else ""
        text = f"Ray {version}{at}: {outcome.error}"
        yield Finding("ray", "problem", text, fix if address else _extra("ray"), facts=facts)
    elif not address:
        text = f"Ray {version}; RAY_ADDRESS is not set: on this host only, until it is"
        yield Finding("ray", "ok", text, facts=facts)
    else:
        told = outcome.facts
        nodes = f"{told['nodes']} nodes, {told['cpus']:g} CPUs, {told['gpus']:g} GPUs"
        text = f"Ray {version}, cluster at {address}: {nodes}"
        yield Finding("ray", "ok", text, facts={**facts, **told})


def _refused(address: str, seconds: float) -> str:
    """Why no connection can be made to `host:port`; Ray itself would try for long."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if found is None:
        return ""
    try:
        with socket.create_connection((found[1].strip("[]"), int(found[2])), seconds):
            return ""
    except (OSError, OverflowError) as error:
        return str(error)


def iree(seconds: float) -> Iterator[Finding]:
    """IREE's compiler and runtime, which belong together."""
    names = ("iree-base-compiler", "iree-base-runtime")
    compiler, runtime = (version_of(name) for name in names)
    facts = {"compiler": compiler, "runtime": runtime}
    if compiler is None or runtime is None:
        absent = " and ".join(name for name in names if version_of(name) is None)
        yield Finding("iree", "missing", f"IREE: no {absent}", _extra("iree"), facts=facts)
        return
    if compiler != runtime:
        text = f"IREE's compiler is {compiler}, its runtime {runtime}"
        fix = f"pip install 'iree-base-runtime=={compiler}'"
        yield Finding("iree", "problem", text, fix, facts=facts)
        return
    outcome = run_probe("iree", seconds=seconds)
    if outcome.facts is None:
        text = f"IREE {compiler} does not compile and run: {outcome.error}"
        yield Finding("iree", "problem", text, _extra("iree"), facts=facts)
    else:
        yield Finding("iree", "ok", f"IREE {compiler}", facts=facts)


def nccl(seconds: float) -> Iterator[Finding]:
    """CuPy with NCCL: what brings values from GPU to GPU of another worker."""
    yield _device_backend(
        "nccl", "NCCL", {"cupy-cuda12x": "nccl", "cupy-cuda13x": "nccl13"}, seconds
    )


def nixl(seconds: float) -> Iterator[Finding]:
    """NIXL with UCX, which does the same."""
    yield _device_backend("nixl", "NIXL", {"nixl-cu12": "nixl", "nixl-cu13": "nixl13"}, seconds)


def _device_backend(name: str, title: str, extras: dict[str, str], seconds: float) -> Finding:
    """A library of which one package, that of an extra, is for CUDA 12, and one for 13."""
    found = {package: version for package in extras if (version := version_of(package))}
    if not found:
        newer = version_of("jax-cuda13-plugin") and not version_of("jax-cuda12-plugin")
        package = list(extras)[1 if newer else 0]
        text = f"{title}: no {package}: values of GPUs go to other workers through the host"
        return Finding(name, "missing", text, _extra(extras[package]))
    package, version = next(iter(found.items()))
    outcome = run_probe(name, seconds=seconds)
    if outcome.facts is None:
        text = f"{title}: {package} {version} cannot be used: {outcome.error}"
        return Finding(name, "problem", text, _extra(extras[package]), facts=found)
    more = "".join(f", {key} {value}" for key, value in outcome.facts.items())
    return Finding(name, "ok", f"{title}: {package} {version}{more}", facts=found)


def _library(name: str, title: str, package: str, extra: str, seconds: float) -> Finding:
    """A library that only has to be importable."""
    version = version_of(package)
    facts = {package: version}
    if version is None:
        return Finding(name, "missing", f"{title}: no {package}", _extra(extra), facts=facts)
    outcome = run_probe("imports", package, seconds=seconds)
    if outcome.facts is None:
        text = f"{title}: {package} {version} cannot be imported: {outcome.error}"
        return Finding(name, "problem", text, _extra(extra), facts=facts)
    return Finding(name, "ok", f"{title}: {package} {version}", facts=facts)


def checkpoints(seconds: float) -> Iterator[Finding]:
    """What checkpoints are written with."""
    yield _library("checkpoints", "checkpoints", "tensorstore", "checkpoint", seconds)


def plots(seconds: float) -> Iterator[Finding]:
    """What reports draw pictures with."""
    yield _library("plots", "pictures of plans", "matplotlib", "plots", seconds)
