"""The newest checkpoint that can be read: what a run goes on from."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from alpa_runtime.checkpoint.folders import numbered_in, set_aside
from alpa_runtime.checkpoint.restore import restore_checkpoint
from alpa_runtime.errors import CheckpointError, DamagedCheckpointError


def restore_newest(folder: str | Path, target: Any, log: logging.Logger) -> tuple[int, Any] | None:
    """The step and the state of the newest checkpoint that is not damaged.

    Newer ones that are damaged are set aside once an older one is restored: they become
    `<step>.damaged`, are logged, and stay until somebody deletes them, while their steps can be
    saved anew.

    Args:
        target: as for `restore_checkpoint`.

    Returns:
        None if there is no checkpoint.

    Raises:
        DamagedCheckpointError: all of them are damaged; says how.
        CheckpointError: one is of another model or version, or cannot be read.
    """
    root = Path(folder).absolute()
    damaged: dict[int, str] = {}
    while left := [step for step in numbered_in(root) if step not in damaged]:
        step = left[-1]
        try:
            state = restore_checkpoint(root, target, step=step)
        except CheckpointError as error:
            if not (root / str(step)).exists():
                continue  # Another run deleted it meanwhile.
            if not isinstance(error, DamagedCheckpointError):
                raise
            damaged[step] = f"{error.where}: {error.what}"
            continue
        for number, problem in damaged.items():
            if (aside := set_aside(root, number)) is not None:
                log.warning(
                    "the checkpoint of step %d is damaged, now called %s, and that of step %d is "
                    "taken instead: %s",
                    number, aside, step, problem,
                )  # fmt: skip
        return step, state
    if damaged:
        raise DamagedCheckpointError(
            "no checkpoint is whole: "
            + "; ".join(f"step {number}: {problem}" for number, problem in damaged.items()),
            where=str(root),
            fix="bring what is missing back, or begin anew in another folder",
        )
    return None
