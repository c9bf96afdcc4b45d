"""What nothing works without: the package, Python, JAX, the compiler."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from alpa_runtime.version import VERSION

from alpa_mlir.doctor._diagnosis import Finding
from alpa_mlir.doctor.child import run_bounded, run_probe

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
