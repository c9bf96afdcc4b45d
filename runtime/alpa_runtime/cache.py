"""What is kept on disk instead of being made again: where, and compiled programs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from alpa_runtime.errors import FLAG, PATH, Kind
from alpa_runtime.plan.plan import foreign, key_of

FOLDER_VARIABLE = "ALPA_MLIR_CACHE"
CacheLike = bool | str | Path
CACHE = Kind("True, False or a folder", lambda value: FLAG.fits(value) or PATH.fits(value))


def default_folder() -> Path:
    """`$ALPA_MLIR_CACHE`, or `alpa_mlir` in the user's cache folder (`$XDG_CACHE_HOME`)."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "alpa_mlir" / "plans"


def chosen_folder(choice: CacheLike) -> Path | None:
    """The folder of a caller's choice: True for the usual one, False for none.

    Example:
        >>> chosen_folder(False) is None
        True
    """
    if choice is False:
        return None
    return default_folder() if choice is True else Path(choice)


MOST_BYTES = 2 << 30
_FOLDER = "compiled"
_FORMAT = "alpa_mlir.compiled 1"
_SUFFIX = ".program"
_NEW = ".new-"


class CompiledCache:
    """A folder of compiled programs.

    Args:
        folder: made when the first program is kept.
        most_bytes: the bound on what all of them take; those used last are kept.

    Example:
        >>> cache = CompiledCache(Path("/tmp/compiled"))
        >>> cache.get({"text": "module {}"}) is None
        True
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes

    def path(self, parts: Mapping[str, str]) -> Path:
        """Where the program that was made of these parts is kept."""
        return self.folder / f"{key_of(parts)}{_SUFFIX}"

    def get(self, parts: Mapping[str, str]) -> bytes | None:
        """The program, or None. A damaged or foreign file is removed with a warning."""
        path = self.path(parts)
        try:
            with path.open("rb") as file:
                # Of the opened file: another may have taken its name meanwhile.
                found = os.fstat(file.fileno())
                data = file.read()
        except OSError:
            return None
        reason = foreign(found) or _damage(data, key_of(parts))
        if reason is not None:
            self.drop(parts, reason)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data[data.index(b"\n") + 1 :]

    def drop(self, parts: Mapping[str, str], reason: str) -> None:
        """Remove a program that cannot be used, and warn."""
        path = self.path(parts)
        warnings.warn(f"{path} is compiled again: {reason}", stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink()

    def put(self, parts: Mapping[str, str], program: bytes) -> None:
        """Keep a program: the whole file appears at once. A folder that cannot be written to is
        a warning, since the program itself is good."""
        record = {
            "format": _FORMAT,
            "key": key_of(parts),
            "sha256": hashlib.sha256(program).hexdigest(),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=_NEW)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(json.dumps(record).encode() + b"\n" + program)
                os.replace(name, self.path(parts))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            self._shrink(keep=self.path(parts))
        except OSError as error:
            warnings.warn(f"programs cannot be kept in {self.folder}: {error}", stacklevel=2)

    def _shrink(self, keep: Path) -> None:
        for path in self.folder.glob(f"{_NEW}*"):
            with contextlib.suppress(OSError):  # Of a process that was killed.
                if time.time() - path.stat().st_mtime > 3600:
                    path.unlink()
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # Another process may be removing it.
                found = path.stat()
                files.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.most_bytes:
                break
            if path != keep:
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size


def compiled_cache(choice: CacheLike) -> CompiledCache | None:
    """The cache of a caller's choice: True for the usual folder, False for none."""
    folder = chosen_folder(choice)
    return None if folder is None else CompiledCache(folder / _FOLDER)


def _damage(data: bytes, key: str) -> str | None:
    """Why a file is not the program of this key."""
    line, separator, program = data.partition(b"\n")
    record = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(program).hexdigest()}
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if separator and found == record:
        return None
    return "it is not what was written here for this program"
