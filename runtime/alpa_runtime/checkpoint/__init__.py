"""Checkpoints: every process writes and reads its own shards, in a form that orbax reads too."""

from alpa_runtime.checkpoint.folders import steps_in
from alpa_runtime.checkpoint.save_restore import (
    Saving,
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)

__all__ = ["Saving", "latest_checkpoint", "restore_checkpoint", "save_checkpoint", "steps_in"]
