"""Where this package keeps what it would otherwise make again."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "ALPA_MLIR_CACHE"
CacheLike = bool | str | Path


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
