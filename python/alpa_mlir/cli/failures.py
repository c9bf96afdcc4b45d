"""What the command line says when something fails: one line, and frames of the user's code."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpa_mlir.errors import AlpaError

_OURS = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platlib", "purelib")}
)


@dataclass(frozen=True)
class Failure:
    """An error as `text` for people, and as `fields` of JSON: kind, what, where, fix."""

    text: str
    fields: Mapping[str, Any]


def failure_of(error: Exception) -> Failure:
    """What to say about an error.

    An error on purpose is one line. Any other that went through code of the user's is that code's:
    its frames are shown, without those of libraries. What is left is a fault of alpa_mlir, with
    the whole traceback.
    """
    frames = _user_frames(error)
    if isinstance(error, AlpaError):
        fields: dict[str, Any] = {
            "kind": type(error).__name__,
            "what": error.what,
            "where": error.where,
            "fix": error.fix,
        }
        return Failure(f"alpa-mlir: error: {error}", fields)
    what = f"{type(error).__name__}: {error}".strip()
    if not frames:
        fix = "report this with the traceback"
        text = "".join(traceback.format_exception(error))
        fields = {"kind": "InternalError", "what": what, "where": "alpa_mlir", "fix": fix}
        return Failure(f"{text}alpa-mlir: error: {what}; fix: {fix}", fields | {"traceback": text})
    last = frames[-1]
    where = f"{last.filename}:{last.lineno}"
    shown = "".join(traceback.format_list(frames))
    fields = {
        "kind": "UserCodeError",
        "what": what,
        "where": where,
        "fix": "",
        "frames": [
            {"file": f.filename, "line": f.lineno, "function": f.name, "code": f.line}
            for f in frames
        ],
    }
    return Failure(f"{shown}alpa-mlir: error: {where}: {what}", fields)


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that are in no library."""

    def is_user(name: str) -> bool:
        if name.startswith("<"):
            return False
        path = Path(name).resolve()
        return not any(path.is_relative_to(folder) for folder in (_OURS, *_LIBRARIES))

    found = traceback.extract_tb(error.__traceback__)
    # What comes before the first frame of the package started the command.
    begin = next((i for i, f in enumerate(found) if _OURS in Path(f.filename).parents), 0)
    return [frame for frame in found[begin:] if is_user(frame.filename)]
