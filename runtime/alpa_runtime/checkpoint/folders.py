"""The folder of checkpoints: one folder a step, which is there as a whole or not at all.

A checkpoint is written under another name, beside a lock that its writer holds, and renamed when
all of it is on the disk. What a process that died has left is told by its lock, and deleted.
A run holds another lock on the folder, so that no second run writes its checkpoints there.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import operator
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from alpa_runtime.checkpoint.manifest import ARRAYS, MANIFEST, Manifest
from alpa_runtime.errors import CheckpointError, DamagedCheckpointError

_SAVING, _DELETING, _LOCK = ".saving-", ".deleting-", "lock"
_RUNNING = ".running"  # Locked by a run; says whose it is.
_DAMAGED = ".damaged"  # After a step's number.
# Of file systems that are mounted without locks: what is left there, nobody clears away.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_NUMBER = re.compile("0|[1-9][0-9]*")
_OURS = re.compile(
    rf"\{_SAVING}.*|\{_DELETING}.*|\{_RUNNING}|({_NUMBER.pattern})\{_DAMAGED}(-[0-9]+)?"
)


def steps_in(folder: str | Path) -> list[int]:
    """The steps of which there are checkpoints, rising; empty if there is no such folder."""
    return [step for step in numbered_in(folder) if (Path(folder) / str(step) / MANIFEST).is_file()]


def numbered_in(folder: str | Path) -> list[int]:
    """The same, with those that have lost their manifests."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _is_numbered(path))


def step_number(step: Any) -> int:
    """The number of a step, which may be one of NumPy or JAX.

    Raises:
        CheckpointError: it is none.
    """
    number = operator.index(step)
    if number < 0:
        raise CheckpointError(f"step {number}", fix="number steps from 0")
    return number


def _is_numbered(path: Path) -> bool:
    """Whether it is a folder with the name of a step."""
    return bool(_NUMBER.fullmatch(path.name)) and path.is_dir()


def _is_ours(path: Path) -> bool:
    """Whether it is a checkpoint, a part of one, or one that was set aside."""
    has_manifest = _is_numbered(path) and (path / MANIFEST).is_file()
    return has_manifest or bool(_OURS.fullmatch(path.name))


def set_aside(root: Path, step: int) -> Path | None:
    """Give a checkpoint a name under which nobody takes it for one, and nobody deletes it.

    Returns:
        Where it is now; None if it is gone, or had that name already.

    Raises:
        CheckpointError: the file system refuses.
    """
    for number in itertools.count(1):
        aside = root / f"{step}{_DAMAGED}{f'-{number}' if number > 1 else ''}"
        if aside.exists():
            continue
        try:
            os.rename(root / str(step), aside)
            _sync(root)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise _os_error(error, root) from None
        else:
            return aside
    return None


def check_root(folder: Path) -> None:
    """Refuse a folder that holds other things and no checkpoint.

    Raises:
        CheckpointError: names what is there.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError("a file, expected a folder", where=str(folder), fix="give another")
    entries = sorted(folder.iterdir())
    if entries and not any(map(_is_ours, entries)):
        raise CheckpointError(
            f"the folder holds {entries[0].name!r} and no checkpoint",
            where=str(folder),
            fix="give a new or an empty folder",
        )


def check_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written, before there is anything to lose.

    Raises:
        CheckpointError: names the folder, or the one above it in which it would be made.
    """
    path = folder.absolute()
    there = next(path for path in (path, *path.parents) if path.exists())
    if not there.is_dir():
        raise _os_error(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), there)
    if not os.access(there, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
        raise _os_error(OSError(code, os.strerror(code)), there)


@contextmanager
def held_by_run(folder: Path) -> Generator[None]:
    """Keep other runs out of a folder of checkpoints. The lock ends with the process that holds it.

    A file system that has no locks, or on which nothing can be written, keeps nobody out.

    Raises:
        CheckpointError: another run holds the folder; says which process on which host.
    """
    path = folder / _RUNNING
    lock = _lock_run(path)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                # A file that was deleted by hand, and made anew, is another run's.
                if os.path.samestat(os.fstat(lock), path.stat()):
                    path.unlink()
            os.close(lock)


def check_no_run(folder: Path) -> None:
    """Refuse a folder that another run holds, and leave it as it is.

    Raises:
        CheckpointError: names that run's process and host.
    """
    path = folder / _RUNNING
    with suppress(OSError):
        os.close(_locked(path, os.O_RDWR))


def _lock_run(path: Path) -> int | None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _locked(path, os.O_CREAT | os.O_RDWR)
        except OSError:
            return None
        if not os.fstat(lock).st_nlink:
            os.close(lock)  # The run that held it has ended meanwhile.
            continue
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        with suppress(OSError):
            os.ftruncate(lock, 0)
            holder = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
            os.pwrite(lock, holder.encode(), 0)
        return lock


def _locked(path: Path, flags: int) -> int:
    """An open, locked file."""
    lock = os.open(path, flags, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = ""
        with suppress(OSError):  # Some file systems let nobody read what is locked.
            holder = os.pread(lock, 200, 0).decode(errors="replace")
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise CheckpointError(
            f"another run writes its checkpoints here: {holder or 'an unknown process'}",
            where=str(path.parent),
            fix=f"end it or give another folder; if that process is gone, delete {path.name} there",
        ) from None
    return lock


class Writing:
    """A checkpoint that is being written, in a folder beside those that are whole.

    It holds a lock as long as its process lives, so that what a killed process left can be told
    from what another one is writing, and is deleted by the next one that saves there.

    Args:
        root: the folder of checkpoints.
        manifest: what is going to be written.

    Raises:
        CheckpointError: the folder holds other things, there is a checkpoint of that step, or
            the disk is too full. Nothing is left behind.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        check_root(root)
        self.root = root
        self.manifest = manifest
        self.final: Path = root / str(manifest.step)
        if self.final.exists():
            raise self._there_is_one()
        self._lock = -1
        try:
            root.mkdir(parents=True, exist_ok=True)
            _delete_leftovers(root)
            self._files: dict[str, str] = _descriptions(manifest)
            _check_room(root, manifest, self._files)
            self.folder: Path = self._make()
            self._describe()
        except OSError as error:
            if self._lock >= 0:
                self.abandon()
            raise _os_error(error, root) from None

    def _there_is_one(self) -> CheckpointError:
        return CheckpointError(
            f"there is a checkpoint of step {self.manifest.step}",
            where=str(self.root),
            fix="save another step, or delete it first",
        )

    def _make(self) -> Path:
        """A folder of its own, locked."""
        while True:
            folder = self.root / f"{_SAVING}{self.manifest.step}-{secrets.token_hex(6)}"
            folder.mkdir()
            try:
                lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(lock)
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
            if os.fstat(lock).st_nlink:
                self._lock = lock
                return folder
            os.close(lock)  # Another process took it for one that was left, and deleted it.

    def _describe(self) -> None:
        (self.folder / ARRAYS).mkdir()
        for name, text in self._files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def commit(self, manifest: Manifest, keep: int | None) -> Path:
        """Give the written checkpoint its name, and delete the oldest beyond `keep`.

        Raises:
            CheckpointError: the file system refuses.
        """
        try:
            (self.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            for name in (*self._files, MANIFEST):
                _sync(self.folder / name)
            for folder, _, _ in os.walk(self.folder):
                _sync(Path(folder))
            try:
                os.rename(self.folder, self.final)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # Written meanwhile.
                    raise self._there_is_one() from None
                raise
            _sync(self.root)
            (self.final / _LOCK).unlink()
        except OSError as error:
            raise _os_error(error, self.root) from None
        finally:
            os.close(self._lock)
            self._lock = -1
        if keep is not None:
            others = [step for step in steps_in(self.root) if step != manifest.step]
            for step in others[: max(0, len(others) - (keep - 1))]:
                _delete(self.root / str(step))
        return self.final

    def abandon(self) -> None:
        """Delete what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _descriptions(manifest: Manifest) -> dict[str, str]:
    """Name to text of the files that stand beside the chunks, but the manifest."""
    files = {ARRAYS + "/" + k: v for k, v in manifest.orbax_files().items()}
    for leaf in manifest.leaves:
        files[f"{ARRAYS}/{leaf.folder}/zarr.json"] = leaf.zarr_json()
    files["_CHECKPOINT_METADATA"] = json.dumps(
        {
            "item_handlers": None,
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": time.time_ns(),
            "commit_timestamp_nsecs": time.time_ns(),
            "custom_metadata": {},
        }
    )
    return files


_ENTRY_BYTES = 32  # Of a file in its folder, beside a long name.
_CHECKSUM = "0" * 8


def bytes_on_disk(manifest: Manifest, files: Mapping[str, str], block: int) -> int:
    """What a checkpoint takes of a disk: each file whole blocks, and so the entries of each folder.

    Args:
        manifest: without checksums, as before anything is written.
        files: text of those beside the chunks, by name.
        block: bytes of one.
    """

    def in_blocks(size: int) -> int:
        return -(-size // block) * block

    sums = [replace(leaf, crc32c=(_CHECKSUM,) * leaf.num_chunks) for leaf in manifest.leaves]
    total = in_blocks(len(replace(manifest, leaves=tuple(sums)).to_json().encode()))
    total += sum(in_blocks(len(text.encode())) for text in files.values())
    entries: dict[PurePosixPath, set[str]] = {}
    for name in files:
        path = PurePosixPath(name)
        for child in (path, *path.parents[:-1]):
            entries.setdefault(child.parent, set()).add(child.name)
    for names in entries.values():
        total += in_blocks(sum(_ENTRY_BYTES + len(name) for name in names))
    for leaf in manifest.leaves:
        total += leaf.num_chunks * in_blocks(leaf.chunk_bytes)
        folders = 1 if leaf.num_chunks else 0
        for size in leaf.grid:  # A folder for each index but the last: c/0/1.
            total += folders * in_blocks(size * _ENTRY_BYTES)
            folders *= size
    return total


def _check_room(root: Path, manifest: Manifest, files: Mapping[str, str]) -> None:
    disk = os.statvfs(root)
    needed = bytes_on_disk(manifest, files, max(1, disk.f_frsize))
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise CheckpointError(
            f"the checkpoint takes {needed} bytes of the disk, {free} are free",
            where=str(root),
            fix="make room or give another folder; the checkpoints that were there are whole",
        )


def _delete_leftovers(root: Path) -> None:
    """What killed processes left: folders whose lock nobody holds, or that lost it as they were
    deleted while somebody still wrote there."""
    for path in root.glob(f"{_DELETING}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(f"{_SAVING}*"):
        with suppress(OSError):
            try:
                lock = os.open(path / _LOCK, os.O_RDWR)
            except FileNotFoundError:
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _delete(path: Path) -> None:
    """A checkpoint is no checkpoint any more at once, and gone soon after."""
    doomed = path.with_name(f"{_DELETING}{path.name}-{secrets.token_hex(6)}")
    with suppress(OSError):
        os.rename(path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _os_error(error: OSError, root: Path) -> CheckpointError:
    remedy = "make room or give" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "give"
    return CheckpointError(
        f"cannot write: {error.strerror}",
        where=str(error.filename or root),
        fix=f"{remedy} another folder; the checkpoints that were there are whole",
    )


def choose_step(folder: Path, step: int | None) -> int:
    """The step to restore: the one that is wanted, or the last.

    Raises:
        DamagedCheckpointError: it has lost its manifest.
        CheckpointError: there is no such checkpoint; says which there are.
    """
    present = steps_in(folder)
    if step is None and present:
        return present[-1]
    if step is not None and (step := step_number(step)) in present:
        return step
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    fix = "there are steps " + _list(present) if present else "give the folder of save_checkpoint"
    if (folder / str(step)).is_dir():
        what += f": {step}/{MANIFEST} is missing"
        raise DamagedCheckpointError(what, where=str(folder), fix=fix)
    check_root(folder)
    raise CheckpointError(what, where=str(folder), fix=fix)


def _list(steps: Iterable[int]) -> str:
    return ", ".join(map(str, steps))
