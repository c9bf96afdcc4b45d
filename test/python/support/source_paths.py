"""Where other processes find the packages that are tested."""

from __future__ import annotations

import os
from pathlib import Path

import alpa_mlir
import alpa_runtime

PYTHONPATH = os.pathsep.join(
    dict.fromkeys(str(Path(str(p.__file__)).parents[1]) for p in (alpa_mlir, alpa_runtime))
)
