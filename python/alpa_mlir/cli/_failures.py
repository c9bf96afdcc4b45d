"""What the command line says when something fails: one line, and frames of the user's code."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_runtime

from alpa_mlir.errors import AlpaError

_OURS = (Path(__file__).resolve().parents[1], Path(alpa_runtime.__file__).resolve().parent)
_LIBRARIES = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platlib", "purelib")}
)


@dataclass(frozen=True)
class Failure:
    """An error as `text` for people, and as `fields` of JSON: kind, code, what, where, fix."""

    text: str
    fields: Mapping[str, Any]


def failure_of(error: Exception) -> Failure:
    """What to say about an error.

    An error on purpose is one line, and so is a file that cannot be read or written. Any other
    that went through code of the user's is that code's: its frames are shown, without those of
    libraries. What is left is a fault of alpa_mlir, with the whole traceback.
    """
    frames = _user_frames(error)
    if isinstance(error, AlpaError):
        # What the user's code raised on the way, where we put it into words.
        frames = _user_frames(error.__cause__)
        fields = error_fields(type(error).__name__, error.code, error.what, error.where, error.fix)
        return _failure(str(error), fields, frames)
    what = f"{type(error).__name__}: {error}".strip()
    if frames:
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
        return _failure(
            f"{where}: {what}", error_fields("UserCodeError", "user-code", what, where), frames
        )
    if isinstance(error, OSError) and error.filename is not None:
        what, where = str(error.strerror).lower(), str(error.filename)
        return _failure(f"{where}: {what}", error_fields("OSError", "os", what, where), [])
    fix = "report this with the traceback"
    shown = "".join(traceback.format_exception(error))
    fields = error_fields("InternalError", "internal", what, "alpa_mlir", fix) | {
        "traceback": shown
    }
    return Failure(f"{shown}alpa-mlir: error: {what}; fix: {fix}", fields)


def error_fields(kind: str, code: str, what: str, where: str, fix: str = "") -> dict[str, Any]:
    """The JSON object of an error: its class, its code, and the three parts of its line."""
    return {"kind": kind, "code": code, "what": what, "where": where, "fix": fix}


def _failure(
    line: str, fields: dict[str, Any], frames: Sequence[traceback.FrameSummary]
) -> Failure:
    shown = "".join(traceback.format_list(list(frames)))
    if frames:
        fields["frames"] = [
            {"file": f.filename, "line": f.lineno, "function": f.name, "code": f.line}
            for f in frames
        ]
    return Failure(f"{shown}alpa-mlir: error: {line}", fields)


def interrupted() -> Failure:
    """What to say about Ctrl-C."""
    fields = error_fields("Interrupted", "interrupted", "interrupted", "alpa-mlir")
    return Failure("alpa-mlir: interrupted", fields)


def _user_frames(error: BaseException | None) -> list[traceback.FrameSummary]:
    """The frames that are in no library."""

    def is_user(name: str) -> bool:
        if name.startswith("<"):
            return False
        path = Path(name).resolve()
        return not any(path.is_relative_to(folder) for folder in (*_OURS, *_LIBRARIES))

    def is_ours(name: str) -> bool:
        return any(folder in Path(name).parents for folder in _OURS)

    if error is None:
        return []
    found = traceback.extract_tb(error.__traceback__)
    # What comes before the first frame of the package started the command.
    begin = next((i for i, f in enumerate(found) if is_ours(f.filename)), 0)
    return [frame for frame in found[begin:] if is_user(frame.filename)]
