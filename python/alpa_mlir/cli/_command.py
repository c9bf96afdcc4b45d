"""What every subcommand has: its answer, types of options, progress, and one line where something
fails.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import alpa_runtime

from alpa_mlir.errors import AlpaError

Result = TypeVar("Result")
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Answer:
    """What a subcommand found.

    Attributes:
        text: for people.
        fields: the same for machines; JSON.
        status: the exit status.
    """

    text: str
    fields: Mapping[str, Any]
    status: int = 0


def add_virtual_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--virtual-devices", type=count, metavar="N", help="N virtual devices of the CPU instead"
    )


def use_devices(options: argparse.Namespace) -> None:
    """Make the virtual devices that were asked for."""
    if options.virtual_devices is not None:
        from alpa_runtime.devices import use_virtual_devices

        use_virtual_devices(options.virtual_devices)


def progress(options: argparse.Namespace, title: str, unit: str = "program") -> Progress | None:
    """A bar on standard error, unless none is wanted."""
    if options.quiet:
        return None
    from alpa_runtime.parallel_step import progress_bar

    return progress_bar(title, unit)


@contextmanager
def importing(options: argparse.Namespace) -> Generator[None, None, None]:
    """Say on a terminal that the block imports JAX, which takes seconds before any bar is there."""
    text = "importing JAX"
    if options.quiet or not sys.stderr.isatty():
        yield
        return
    print(text, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * len(text), end="\r", file=sys.stderr, flush=True)


def interruptible(work: Callable[[], Result]) -> Result:
    """Do long work of the compiler so that Ctrl-C ends it at once.

    Python looks at signals between its own instructions only, and the compiler may search for
    minutes. So it searches in a thread, which is left behind where the command is interrupted.
    """
    done: Future[Result] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = threading.Thread(target=do, name="alpa-mlir planning", daemon=True)
    thread.start()
    try:
        return done.result()
    except BaseException:
        if not done.done():
            # The end of the process must neither wait for the thread nor take the ground from it.
            atexit.register(_exit_now)
        raise


def _exit_now() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="write over what is there already")


#: Options of all subcommands that name what is read.
_INPUTS = (
    *("source", "plan", "plans", "others", "first", "second"),
    *("start", "keep_stages", "cluster", "record"),
)


def refuse_existing(options: argparse.Namespace, *outputs: str) -> None:
    """Before any work: files and folders that options name and that are there already stay as they
    are without --force, and what the command reads stays with it as well."""
    paths: list[Path] = [path for name in outputs if (path := getattr(options, name)) is not None]
    for i, path in enumerate(paths):
        if any(path.absolute() == other.absolute() for other in paths[:i]):
            options.error(f"{path} is named twice, to write two things; name another")
        if not path.exists():
            continue
        for read in _inputs(options):
            if path.samefile(read):
                options.error(f"{path} is what is read; name another")
            if path.resolve().parent.samefile(read) and _is_of_plan(path.resolve()):
                options.error(f"{path} is part of the plan that is read; name another")
        if not options.force:
            options.error(f"{path} exists; name another, or give --force")


def _inputs(options: argparse.Namespace) -> list[Path]:
    words: list[str] = []
    for name in _INPUTS:
        given: list[Any] | str | Path | None = getattr(options, name, None)
        several = given if isinstance(given, list) else [given]
        words += [str(word) for word in several if word is not None]
    # A step is named `file.py:function`, and a cluster may be a preset.
    places = [word.rpartition(":")[0] if ".py:" in word else word for word in words]
    return [path for path in map(Path, places) if path.exists()]


def _is_of_plan(path: Path) -> bool:
    from alpa_runtime.plan.plan import FILES

    return any(path.match(form) for form in FILES)


def refuse_existing_plan(options: argparse.Namespace) -> None:
    """The same of the folder that a plan is to be written to."""
    _refuse_folder(
        options, "output", "no plan to write over", lambda names: not names or "plan.json" in names
    )


def refuse_existing_pictures(options: argparse.Namespace) -> None:
    """The same of the folder that pictures are to be written to."""
    _refuse_folder(
        options,
        "plots",
        "more than pictures",
        lambda names: all(name.endswith((".svg", ".png")) for name in names),
    )


def _refuse_folder(
    options: argparse.Namespace, output: str, what: str, may_go: Callable[[Sequence[str]], bool]
) -> None:
    """Refuse what is there already, unless it is a folder whose files `may_go` by their names."""
    refuse_existing(options, output)
    folder: Path | None = getattr(options, output)
    if folder is None or not folder.exists():
        return
    if not folder.is_dir():
        options.error(f"{folder} is no folder; name another")
    if not may_go([path.name for path in folder.iterdir()]):
        options.error(f"{folder} holds {what}; name another folder")


@contextmanager
def reserved(folder: Path | None) -> Generator[None, None, None]:
    """Make a folder before the long work whose result it is for; none stays if that fails. One
    that is there already is left as it is."""
    if folder is None or folder.is_dir():
        yield
        return
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # Only if it is empty.
        raise


def file_in_folder(text: str) -> Path:
    """A file whose folder exists."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.absolute().parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


@contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """SIGTERM ends what runs within as Ctrl-C does, so that workers and programs are ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def fraction(text: str) -> float:
    """A number above 0, of at most 1."""
    if positive(text) > 1:
        raise argparse.ArgumentTypeError(f"{text} is above 1")
    return float(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def count_from_0(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is not {least} or more")
    return value


def number(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def numbers(text: str) -> list[int]:
    """Whole numbers and ranges of them, such as `0,3-5`; a range has both its ends."""
    result: list[int] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        result += range(number(first), number(last) + 1) if dash else [number(first)]
    return result


# What the command line says when something fails: one line, and frames of the user's code.

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


def did_you_mean(
    words: Sequence[str], known: Collection[str], shown: Callable[[str], object] = str
) -> str:
    """`did you mean --cluster?`, of the known word that each wrong one is most like; empty if they
    are like none."""
    near = [difflib.get_close_matches(word, known, 1) for word in words]
    found = [str(shown(match[0])) for match in near if match]
    return f"did you mean {' '.join(found)}?" if found else ""


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
