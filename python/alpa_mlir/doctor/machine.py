"""Room and limits of this machine."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from alpa_runtime.cache import FOLDER_VARIABLE, default_folder

from alpa_mlir.doctor._diagnosis import Finding

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
