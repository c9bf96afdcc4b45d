"""Where sources and programs are, and where other processes find the packages that are tested."""

from __future__ import annotations

import os
from pathlib import Path

import alpa_mlir
import alpa_runtime

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("ALPA_BUILD", ROOT / "build"))
SUPPORT = Path(__file__).resolve().parent
PYTHONPATH = os.pathsep.join(
    dict.fromkeys(str(Path(str(p.__file__)).parents[1]) for p in (alpa_mlir, alpa_runtime))
)
