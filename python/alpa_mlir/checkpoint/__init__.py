"""Checkpoints: every process writes and reads its own shards, in a form that orbax reads too."""

from alpa_mlir.checkpoint.folders import steps_in
from alpa_mlir.checkpoint.restore import latest_checkpoint, restore_checkpoint
from alpa_mlir.checkpoint.save import Saving, save_checkpoint

__all__ = ["Saving", "latest_checkpoint", "restore_checkpoint", "save_checkpoint", "steps_in"]
