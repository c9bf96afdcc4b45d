"""Checkpoints: every process writes and reads its own shards, in a form that orbax reads too."""

from alpa_runtime.checkpoint.folders import steps_in
from alpa_runtime.checkpoint.restore import latest_checkpoint, restore_checkpoint
from alpa_runtime.checkpoint.save import Saving, save_checkpoint

__all__ = ["Saving", "latest_checkpoint", "restore_checkpoint", "save_checkpoint", "steps_in"]
