"""Saving a state: copies first, then a thread that writes, then one rename."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpa_runtime.argument_types import PATH, WHOLE, check_type
from alpa_runtime.checkpoint.folders import Writing, step_number
from alpa_runtime.checkpoint.remote import RemoteCopies
from alpa_runtime.checkpoint.shards import (
    copied_shards,
    held_boxes,
    new_manifest,
    start_copies,
    state_leaves,
)
from alpa_runtime.checkpoint.store import check_written, require_tensorstore, write_shards
from alpa_runtime.errors import CheckpointError

_log = logging.getLogger("alpa_mlir")
# What a writer reports: for each leaf, by number of the chunk, its checksum.
Crcs = dict[int, dict[int, str]]


class Saving:
    """A checkpoint that is being written while the steps go on.

    Attributes:
        folder: where it will be.
        step: the number under which it is saved.
    """

    def __init__(
        self,
        writing: Writing,
        write: Callable[[], Sequence[Crcs]],
        keep: int | None,
        waits_for_workers: bool,
    ) -> None:
        self.folder: Path = writing.final
        self.step: int = writing.manifest.step
        self._error: CheckpointError | None = None
        # A program that ends waits for its last checkpoint, but not for workers: they may hang.
        self._thread = threading.Thread(
            target=self._run,
            args=(writing, write, keep),
            name=f"checkpoint {self.step}",
            daemon=waits_for_workers,
        )
        self._thread.start()

    def _run(self, writing: Writing, write: Callable[[], Sequence[Crcs]], keep: int | None) -> None:
        try:
            found: Crcs = {}
            for crcs in write():
                for number, chunks in crcs.items():
                    found.setdefault(number, {}).update(chunks)
            manifest = writing.manifest.with_crcs(found)
            check_written(writing.folder, manifest)
            writing.commit(manifest, keep)
        except BaseException as error:
            writing.abandon()
            if not isinstance(error, CheckpointError):
                error = CheckpointError(f"{type(error).__name__}: {error}", where=str(self.folder))
            self._error = error
            _log.error("checkpoint of step %d was not written: %s", self.step, error)

    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> Path:
        """Wait until it is written.

        Args:
            timeout: seconds; by default as long as it takes.

        Returns:
            Its folder.

        Raises:
            CheckpointError: it could not be written; those that were there before still are.
            TimeoutError: it is not written yet.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the checkpoint of step {self.step} is not written yet")
        if self._error is not None:
            raise self._error
        return self.folder


def save_checkpoint(
    folder: str | Path, state: Any, *, step: int, keep: int | None = None
) -> Saving:
    """Write a state to `folder/<step>` while the program goes on.

    The call waits for the state's values and copies them; then it returns, and a thread writes.
    The next step may use the state up at once. The checkpoint appears under its name when all of
    it is on the disk; a process that is killed before leaves the older ones as they are.

    Args:
        folder: of the run's checkpoints; made if needed.
        state: a tree of arrays and numbers, as a step returned it or any other.
        step: a number of at least 0, the checkpoint's name; one that a step returned, such as
            that of a `TrainState`, is read.
        keep: how many to keep: this one and those of the highest steps; by default all.

    Returns:
        A handle; `wait()` says when it is written, or why it could not be.

    Raises:
        CheckpointError: the folder holds other things or this step already, a leaf is no array,
            there is no room. Nothing has changed.

    Example:
        >>> saving = save_checkpoint("run/checkpoints", state, step=100, keep=3)  # doctest: +SKIP
        >>> saving.wait()                                                       # doctest: +SKIP
    """
    check_type("save_checkpoint", "folder", folder, PATH)
    check_type("save_checkpoint", "step", step, WHOLE)
    check_type("save_checkpoint", "keep", keep, WHOLE, None)
    step, keep = step_number(step), None if keep is None else operator.index(keep)
    if keep is not None and keep < 1:
        raise CheckpointError(f"keep={keep}", fix="keep at least one checkpoint")
    require_tensorstore()
    leaves = state_leaves(state)
    manifest = new_manifest(step, state, leaves, [held_boxes(leaf) for leaf in leaves])
    writing = Writing(Path(folder).absolute(), manifest)
    pieces = [leaf.pieces for leaf in leaves]
    numbered = list(enumerate(manifest.leaves))
    everything = [(n, leaf, p) for (n, leaf), p in zip(numbered, pieces, strict=True)]
    remote: RemoteCopies | None = None
    try:
        remote = RemoteCopies(writing.folder.name, everything)
        start_copies(leaves)
        shards = [copied_shards(found) for found in pieces]
    except BaseException:
        if remote is not None:
            remote.drop()
        writing.abandon()
        raise

    def write() -> list[Crcs]:
        theirs = remote.write(writing.folder)
        return [*theirs, write_shards(writing.folder, numbered, shards)]

    return Saving(writing, write, keep, remote.is_needed)
