"""Looks at an installation; whatever could crash or hang runs in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from alpa_runtime.cache import FOLDER_VARIABLE, default_folder
from alpa_runtime.version import VERSION

from alpa_mlir.doctor.probes import run_bounded, run_probe

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at; a key for machines, such as `"ray"`.
        state: `"ok"`; `"missing"`, an option that is not installed; `"problem"`, it does not work.
        what: what was found.
        fix: what to do about it, if it is not ok.
        needed: nothing works without it; the others are options.
        facts: the same for machines: versions, sizes in bytes, counts.
    """

    name: str
    state: State
    what: str
    fix: str = ""
    needed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_text(self) -> str:
        """One line, and one more with what to do."""
        line = f"  {self.state:<8} {self.what}"
        return f"{line}\n{'':11}{self.fix}" if self.fix else line


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        groups: findings by headline, in the order in which they are shown.
    """

    groups: Mapping[str, tuple[Finding, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them in one row."""
        return tuple(finding for group in self.groups.values() for finding in group)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Needed things that do not work; without any, `alpa-mlir doctor` exits with 0."""
        return tuple(found for found in self.findings if found.needed and found.state != "ok")

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)

    def as_text(self) -> str:
        """A line for each finding, and what it comes to."""
        lines: list[str] = []
        for title, findings in self.groups.items():
            lines += [title, *(finding.as_text() for finding in findings), ""]
        troubles = sum(found.state == "problem" for found in self.findings)
        if self.broken:
            end = f"not usable: {', '.join(found.name for found in self.broken)}"
        elif troubles:
            end = f"usable, with {troubles} problem{'s' if troubles > 1 else ''}"
        else:
            end = "all is well"
        return "\n".join([*lines, end])

    def fields(self) -> dict[str, Any]:
        """The same as a JSON object."""
        groups = {title: [asdict(found) for found in group] for title, group in self.groups.items()}
        return {"usable": not self.broken, "groups": groups}

    def as_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.fields(), indent=1)


# What nothing works without: the package, Python, JAX, the compiler.

PYTHON = (3, 11)
#: The least versions of what the package needs; pyproject.toml has the same.
NEEDED = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "numpy": "2",
    "scipy": "",
    "shtab": "1.13",
    "tqdm": "",
}
PROGRAMS = ("alpa-opt", "alpa-solve")
_FOLDER = Path(__file__).resolve().parents[1]


def source_tree() -> Path | None:
    """The checkout that the package is used in place from, if it is."""
    root = _FOLDER.parents[1]
    return root if (root / "pyproject.toml").exists() else None


def package(seconds: float) -> Iterator[Finding]:
    """The package: version, and what it was made of."""
    root = source_tree()
    commit = _commit(root, seconds)
    where = f"used in place in {root}" if root else f"in {_FOLDER.parent}"
    text = f"alpa_mlir {VERSION}{f', commit {commit}' if commit else ''}, {where}"
    facts = {"version": VERSION, "commit": commit, "folder": str(_FOLDER)}
    yield Finding("alpa_mlir", "ok", text, needed=True, facts=facts)


def _commit(root: Path | None, seconds: float) -> str:
    """The commit of the sources; empty if it is not known."""
    if root is None:
        if importlib.util.find_spec("alpa_mlir._build") is None:
            return ""
        build: Any = importlib.import_module("alpa_mlir._build")
        return str(build.COMMIT)
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return ""
    program = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    told = run_bounded(program, min(seconds, 10.0))
    return "" if isinstance(told, str) or told.returncode else told.stdout.strip()


def python(seconds: float) -> Iterator[Finding]:
    """Python itself."""
    text = f"Python {platform.python_version()}, {sys.executable}"
    wanted = ".".join(map(str, PYTHON))
    facts = {"version": platform.python_version(), "platform": platform.platform()}
    if sys.version_info[:2] < PYTHON:
        fix = f"install Python {wanted} or newer"
        yield Finding("python", "problem", text, fix, needed=True, facts=facts)
    else:
        yield Finding("python", "ok", text, needed=True, facts=facts)


def version_of(package: str) -> str | None:
    """The version of an installed package; None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def older(version: str, least: str) -> bool:
    """Whether a version is below another; only the leading numbers count.

    Example:
        >>> older("0.10.1", "0.10.2"), older("0.11.0.dev3", "0.10.2"), older("2.4", "2")
        (True, False, False)
    """

    def numbers(text: str) -> list[int]:
        result: list[int] = []
        for part in text.split("."):
            if not part.isdigit():
                break
            result.append(int(part))
        return result

    return numbers(version) < numbers(least)


def dependencies(seconds: float) -> Iterator[Finding]:
    """The packages that ours needs."""
    found = {name: version_of(name) for name in NEEDED}
    for name, least in NEEDED.items():
        version = found[name]
        wanted = f"{name}>={least}" if least else name
        fix = f"pip install '{wanted}'"
        if version is None:
            yield Finding(name, "problem", f"{name} is not installed", fix, needed=True)
        elif older(version, least):
            text = f"{name} {version} is older than {least}"
            yield Finding(name, "problem", text, fix, True, {"version": version})
        else:
            yield Finding(name, "ok", f"{name} {version}", needed=True, facts={"version": version})
    jax, jaxlib = found["jax"], found["jaxlib"]
    if jax and jaxlib and older(jax, jaxlib):
        text = f"jax {jax} is older than jaxlib {jaxlib}, which JAX refuses"
        yield Finding("jax versions", "problem", text, "pip install --upgrade jax jaxlib", True)


def _rebuild() -> str:
    return "make build" if source_tree() else "pip install --force-reinstall --no-deps alpa-mlir"


def compiler(seconds: float) -> Iterator[Finding]:
    """The compiler as a Python module and as programs, all of one build."""
    outcome = run_probe("native", seconds=seconds)
    if outcome.facts is None:
        text = f"the native module does not work: {outcome.error}"
        yield Finding("native module", "problem", text, _rebuild(), needed=True)
        yield from _programs(None, seconds)
        return
    build, version = outcome.facts["build"], outcome.facts["version"]
    text = f"native module: {build}"
    if version != VERSION:
        text += f", but the package is {VERSION}"
        yield Finding("native module", "problem", text, _rebuild(), True, outcome.facts)
    else:
        yield Finding("native module", "ok", text, needed=True, facts=outcome.facts)
    yield from _programs(build, seconds)


def find_program(name: str) -> Path | None:
    """One of the programs: in the build of a checkout, beside Python, or on the path."""
    root = source_tree()
    given = os.environ.get("ALPA_BUILD")
    folders = [Path(given or root / "build", "bin")] if root else []
    folders.append(Path(sysconfig.get_path("scripts")))
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def _programs(build_of_module: str | None, seconds: float) -> Iterator[Finding]:
    for name in PROGRAMS:
        path = find_program(name)
        if path is None:
            text = f"{name} is neither beside Python nor on the path"
            yield Finding(name, "missing", text, _rebuild())
            continue
        told = run_bounded([str(path), "--version"], seconds)
        lines = [] if isinstance(told, str) else told.stdout.splitlines()
        build = next((s.strip() for s in lines if s.strip().startswith("alpa_mlir ")), "")
        facts = {"path": str(path), "build": build}
        if not build:
            why = told if isinstance(told, str) else "it does not say what it was built from"
            yield Finding(name, "problem", f"{path}: {why}", _rebuild(), facts=facts)
        elif build_of_module not in (None, build):
            text = f"{path} is of another build: {build}"
            yield Finding(name, "problem", text, _rebuild(), facts=facts)
        else:
            yield Finding(name, "ok", f"{path}, of the same build", facts=facts)


def cpu(seconds: float) -> Iterator[Finding]:
    """JAX computes on the CPU."""
    cores = len(os.sched_getaffinity(0))
    outcome = run_probe("devices", "cpu", seconds=seconds, environment={"JAX_PLATFORMS": "cpu"})
    if outcome.facts is None:
        text = f"JAX does not compute on the CPU: {outcome.error}"
        fix = "pip install --force-reinstall jax jaxlib"
        yield Finding("cpu", "problem", text, fix, needed=True, facts={"cores": cores})
    else:
        text = f"CPU: {cores} cores for this process"
        yield Finding("cpu", "ok", text, needed=True, facts={"cores": cores})


def built_in_solver(seconds: float) -> Iterator[Finding]:
    """The built-in solver."""
    outcome = run_probe("solver", "built-in", seconds=seconds)
    if outcome.facts is None:
        text = f"the built-in solver fails: {outcome.error}"
        yield Finding("built-in", "problem", text, _rebuild(), needed=True)
    else:
        yield Finding("built-in", "ok", "built-in solver", needed=True)


# Room and limits of this machine.

LEAST_DISK_BYTES = 1 << 30
LEAST_SHM_BYTES = 1 << 30
LEAST_OPEN_FILES = 4096
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size_text(count: float) -> str:
    """A number of bytes for people.

    Example:
        >>> size_text(0), size_text(1536), size_text(3 << 30)
        ('0 bytes', '1.5 KiB', '3 GiB')
    """
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    number = f"{count:.{0 if power == 0 or count >= 100 else 1}f}".removesuffix(".0")
    return f"{number} {_UNITS[power]}"


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _folder(name: str, title: str, folder: Path, used: int | None, remedy: str) -> Finding:
    there = _existing(folder.absolute())
    usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    free = shutil.disk_usage(there).free
    facts = {"folder": str(folder), "free_bytes": free, "used_bytes": used}
    holds = "" if used is None else f"holds {size_text(used)}, "
    if not usable:
        text = f"{title} {folder} cannot be written"
        return Finding(name, "problem", text, remedy, facts=facts)
    text = f"{title} {folder}: {holds}{size_text(free)} free"
    if free < LEAST_DISK_BYTES:
        return Finding(name, "problem", text, f"make room, or {remedy}", facts=facts)
    return Finding(name, "ok", text, facts=facts)


def cache(seconds: float) -> Iterator[Finding]:
    """The folder of plans and programs that were made before."""
    folder = default_folder()
    used = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                used += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # Another process has removed it.
    yield _folder("cache", "cache", folder, used, f"set {FOLDER_VARIABLE} to another folder")


def temporary(seconds: float) -> Iterator[Finding]:
    """The folder for temporary files, where Ray keeps its sockets too."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        yield Finding("temporary", "problem", str(error), "set TMPDIR to a folder with room")
        return
    yield _folder("temporary", "temporary files", folder, None, "set TMPDIR to another folder")


def memory(seconds: float) -> Iterator[Finding]:
    """Memory, and shared memory, through which workers of a host hand over arrays."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(fields[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    text = f"memory: {size_text(total)}, {size_text(free)} free"
    yield Finding("memory", "ok", text, facts={"total_bytes": total, "free_bytes": free})
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        text = "/dev/shm cannot be written: workers of one host hand over arrays through sockets"
        yield Finding("shared memory", "problem", text, "mount a tmpfs there")
        return
    free = shutil.disk_usage(shm).free
    text = f"shared memory: {size_text(free)} free in /dev/shm"
    facts = {"free_bytes": free}
    if free < LEAST_SHM_BYTES:
        fix = "make it larger: `mount -o remount,size=8G /dev/shm`, or `docker run --shm-size=8g`"
        yield Finding("shared memory", "problem", text, fix, facts=facts)
    else:
        yield Finding("shared memory", "ok", text, facts=facts)


def limits(seconds: float) -> Iterator[Finding]:
    """Limits of the process, and variables that change how XLA runs on the CPU."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft == resource.RLIM_INFINITY
    text = f"open files: {'no limit' if many else f'{soft:,} at most'}"
    facts = {"soft": soft, "hard": hard}
    if not many and soft < LEAST_OPEN_FILES:
        fix = f"`ulimit -n {LEAST_OPEN_FILES}` or more, for workers on many hosts"
        yield Finding("open files", "problem", text, fix, facts=facts)
    else:
        yield Finding("open files", "ok", text, facts=facts)
    names = ("NPROC", "XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64")
    given = {name: os.environ[name] for name in names if name in os.environ}
    if given:
        told = " ".join(f"{name}={value}" for name, value in given.items())
        yield Finding("environment", "ok", f"environment: {told}", facts=given)


# What is there if it was installed: GPUs, solvers, Ray, IREE, transports, checkpoints.

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


# Looks at an installation; whatever could crash or hang runs in a process of its own.

Check = Callable[[float], Iterable[Finding]]

#: What is looked at, by headline.
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "installation": (
        package,
        python,
        dependencies,
        compiler,
    ),
    "devices": (cpu, gpu),
    "solvers": (built_in_solver, highs, gurobi),
    "options": (
        ray,
        iree,
        nccl,
        nixl,
        checkpoints,
        plots,
    ),
    "this machine": (cache, temporary, memory, limits),
}


def diagnose(*, seconds: float = 60.0) -> Diagnosis:
    """Find out what works here.

    It neither raises nor hangs: what is tried runs in other processes, of which nothing is left
    behind, and a check that fails itself is a finding too.

    Args:
        seconds: how long anything that is tried may take; several things are tried at a time.

    Example:
        >>> found = diagnose()  # doctest: +SKIP
        >>> found["jax"].state  # doctest: +SKIP
        'ok'
    """
    with ThreadPoolExecutor(4) as pool:
        pending = {
            title: [pool.submit(_carefully, check, seconds) for check in checks]
            for title, checks in CHECKS.items()
        }
        groups = {
            title: tuple(finding for future in futures for finding in future.result())
            for title, futures in pending.items()
        }
    return Diagnosis(groups)


def _carefully(check: Check, seconds: float) -> list[Finding]:
    try:
        return list(check(seconds))
    except Exception as error:
        name = check.__name__
        what = f"{name}: the check itself failed: {type(error).__name__}: {error}"
        return [Finding(name, "problem", what, "report this")]
