"""Plans on disk, found again by what they were made from.

An entry's name is a hash of the traced module and its signature, the cluster, the method's
options, the compiler itself and the devices that finalists were measured on, so nothing ever has
to be declared out of date: whatever changes makes another name. Entries that were not used for
the longest time are removed when the cache outgrows its bound. A folder beside them holds solved
stages, which the compiler reads and writes itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import alpa_runtime
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import foreign

from alpa_mlir import compiler
from alpa_mlir.cluster import Cluster
from alpa_mlir.errors import AlpaError
from alpa_mlir.methods.method import Method

MOST_BYTES = 2 << 30
_RECORD = "record.json"
_SOLVED = "solved"
# Where a line stands in its file is no part of what it says; the names in locations are.
_FILE_LOCATION = re.compile(r'^(#loc\d* = loc\()"[^"\n]*":\d+:\d+(?: to :\d+)*.*$', re.MULTILINE)


@cache
def code_version() -> str:
    """A hash of the compiler's native module and of the Python files that drive it."""
    digest = hashlib.sha256(compiler.native_path().read_bytes())
    for folder in (Path(__file__).parents[1], Path(alpa_runtime.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def key(
    module: str,
    signature_json: str,
    cluster: Cluster,
    method: Method,
    version: str,
    devices: str = "",
) -> str:
    """The name of the entry for a step, a cluster, a method and a compiler.

    Args:
        module: the traced step's text.
        signature_json: its signature as the compiler gets it.
        devices: what the plan was chosen by measuring on; empty if by prediction.
    """
    options = {f.name: repr(getattr(method, f.name)) for f in fields(method)}
    parts = [
        _FILE_LOCATION.sub(r"\1", module),
        signature_json,
        cluster.as_text(),
        type(method).__name__,
        json.dumps(options, sort_keys=True),
        version,
        devices,
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class PlanCache:
    """A folder of plans.

    Args:
        folder: made when the first plan is kept.
        most_bytes: the bound on what the plans take together.

    Example:
        >>> cache = PlanCache(Path("/tmp/plans"))
        >>> cache.get("0" * 64) is None
        True
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def get(self, name: str) -> Plan | None:
        """The entry, or None. One that is damaged, or that others may write to, is removed with a
        warning."""
        entry = self.folder / name
        if not (entry / _RECORD).exists():
            return None
        try:
            for path in (entry, *entry.iterdir()):
                if reason := foreign(path.stat()):
                    raise ValueError(f"{path.name}: {reason}")
            record: dict[str, Any] = json.loads((entry / _RECORD).read_text())
            _check(entry, record)
            found = Plan.load(entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AlpaError) as error:
            warnings.warn(
                f"the plan in {entry} is not used and is made again: {error}", stacklevel=2
            )
            shutil.rmtree(entry, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(entry / _RECORD)
        return found

    def put(self, name: str, plan: Plan) -> None:
        """Keep a plan: all of it appears at once, or nothing. A folder that cannot be written
        to is a warning, since the plan itself is good."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as folder:
                new = Path(folder) / "entry"
                plan.save(new)
                record = {"files": {path.name: _digest(path) for path in sorted(new.iterdir())}}
                (new / _RECORD).write_text(json.dumps(record))
                for path in (new, *new.iterdir()):
                    path.chmod(0o700 if path == new else 0o600)
                with contextlib.suppress(FileExistsError):
                    _rename(new, self.folder / name)
            self._shrink(keep=name)
        except OSError as error:
            warnings.warn(f"the plan cannot be kept in {self.folder}: {error}", stacklevel=2)

    def solved_folder(self) -> Path | None:
        """The folder beside the plans in which the compiler keeps solved stages; None if it
        cannot be made, of which `put` warns, if others may write to it, or if its name cannot be
        said in a pass pipeline."""
        folder = self.folder / _SOLVED
        if {'"', "'"} <= set(str(folder)):
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            reason = foreign(folder.stat())
        except OSError:
            return None
        if reason is not None:
            warnings.warn(f"the solved stages in {folder} are not used: {reason}", stacklevel=2)
            return None
        return folder

    def _shrink(self, keep: str) -> None:
        entries: list[tuple[float, int, Path]] = []
        for entry in self.folder.iterdir():
            with contextlib.suppress(OSError):  # Another process may be removing it.
                used = (entry / _RECORD).stat().st_mtime
                size = sum(path.stat().st_size for path in entry.iterdir())
                entries.append((used, size, entry))
        total = sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if total <= self.most_bytes:
                break
            if entry.name != keep:
                shutil.rmtree(entry, ignore_errors=True)
                total -= size


def _rename(new: Path, entry: Path) -> None:
    """Move a whole folder; an entry that another process made meanwhile is as good, remains of
    one that was being removed are in the way."""
    try:
        new.rename(entry)
    except OSError:
        if (entry / _RECORD).exists():
            return
        shutil.rmtree(entry, ignore_errors=True)
        new.rename(entry)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(entry: Path, record: dict[str, Any]) -> None:
    files: dict[str, str] = record["files"]
    for name, digest in files.items():
        if _digest(entry / name) != digest:
            raise ValueError(f"{name} is not what was written")
