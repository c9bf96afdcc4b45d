"""Programs that were compiled ahead of time and travel with a plan."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alpa_runtime.plan.json_nodes import pretty

FILE = "compiled.json"
_FORMAT, _VERSION = "alpa_mlir.binaries", 1


@dataclass(frozen=True)
class Binary:
    """One compiled program of a plan.

    Attributes:
        label: what it is, as progress shows it (`"stage 0 forward"`).
        compiler: `"xla"` or `"iree"`.
        target: the kind of device (`"h100"`, `"cpu"`).
        key: a hash of all that went into it; a loader takes it where its own is the same.
        memory_bytes: arguments, results and temporaries on a device, as the compiler counts.
        program: the compiler's bytes.
    """

    label: str
    compiler: str
    target: str
    key: str
    memory_bytes: int
    program: bytes = field(repr=False)

    @property
    def file(self) -> str:
        """The name of its file in the plan's folder."""
        return f"{self.label.replace(' ', '_')}.{self.target}.{self.compiler}.{self.key[:8]}.bin"


def key_of(parts: Mapping[str, str]) -> str:
    """A hash of named parts, whatever their order."""
    digest = hashlib.sha256()
    for name, part in sorted(parts.items()):
        for data in (name.encode(), part.encode()):
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def foreign(found: os.stat_result) -> str | None:
    """Why a file of machine code may be somebody else's, where users are told apart."""
    if not hasattr(os, "getuid"):
        return None
    if found.st_uid not in (os.getuid(), 0):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & stat.S_IWOTH:
        return "every user may write to it"
    return None


def write_binaries(folder: Path, binaries: Sequence[Binary]) -> None:
    """Write programs beside plan.json, in place of all that lay there."""
    rows = [
        {
            "label": item.label,
            "compiler": item.compiler,
            "target": item.target,
            "key": item.key,
            "memory_bytes": item.memory_bytes,
            "file": item.file,
            "sha256": hashlib.sha256(item.program).hexdigest(),
        }
        for item in binaries
    ]
    # A reader finds the old table with its files, or the new one.
    for item in binaries:
        _replace(folder / item.file, item.program)
    fields = {"format": _FORMAT, "version": _VERSION, "programs": rows}
    _replace(folder / FILE, (pretty(fields) + "\n").encode())
    for path in {*folder.glob("*.bin")} - {folder / item.file for item in binaries}:
        path.unlink()


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    os.replace(new, path)


def read_binaries(folder: Path) -> tuple[Binary, ...]:
    """The programs beside plan.json. What is damaged, or was written by another user, is left
    out with a warning: stages are compiled where no program is."""
    path = folder / FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        _warn(path, str(error))
        return ()
    try:
        table = json.loads(text)
        if table["format"] != _FORMAT or table["version"] != _VERSION:
            raise ValueError(f"format {table['format']} {table['version']}")
        rows = [
            (
                Binary(
                    str(row["label"]),
                    str(row["compiler"]),
                    str(row["target"]),
                    str(row["key"]),
                    int(row["memory_bytes"]),
                    b"",
                ),
                Path(str(row["file"])).name,
                str(row["sha256"]),
            )
            for row in table["programs"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        _warn(path, f"it is malformed ({error})")
        return ()
    found: list[Binary] = []
    for item, name, digest in rows:
        try:
            with (folder / name).open("rb") as file:
                reason = foreign(os.fstat(file.fileno()))
                program = file.read()
        except OSError as error:
            reason, program = error.strerror or str(error), b""
        if reason is None and hashlib.sha256(program).hexdigest() != digest:
            reason = "it is not what was written"
        if reason is None:
            fields = item.label, item.compiler, item.target, item.key, item.memory_bytes
            found.append(Binary(*fields, program))
        else:
            _warn(folder / name, reason)
    return tuple(found)


def _warn(path: Path, reason: str) -> None:
    warnings.warn(f"compiled program {path} is not used: {reason}", stacklevel=4)
