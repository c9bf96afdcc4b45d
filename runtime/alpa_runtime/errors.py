"""Named errors of whatever runs a plan; `alpa_mlir.errors` adds those of planning.

Every error says three things in one line: what is wrong (with the found and the
expected value), where (a leaf, a file and field, an op's location), and what to do.
Who has to decide something goes by the class, or by its `code`, never by the text.

Example:
    >>> str(PlanFormatError("version 9", where="plan.json", fix="make the plan again"))
    'plan.json: version 9; fix: make the plan again'
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from alpa_runtime.foreign_errors import says_out_of_memory


class AlpaError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: one cause, lower case, with found and expected values.
        where: file, field, tree path or source location; empty when there is none.
        fix: what the reader can do about it; empty when the cause says it already.

    Attributes:
        code: the kind of error as a word that stays the same, such as `"infeasible"`; every class
            has its own. The compiler's diagnostics and the JSON of the command line have it too.
        out_of_memory: it is one for want of memory on a device or its host.

    Example:
        >>> InfeasiblePlanError("no plan fits into memory").code
        'infeasible'
    """

    code: ClassVar[str] = "error"
    out_of_memory: bool = False

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}; fix: {fix}" if fix else text)


class InfeasiblePlanError(AlpaError):
    """No plan satisfies the constraints, most often the memory of a device."""

    code: ClassVar[str] = "infeasible"


class TraceError(AlpaError):
    """The user's function cannot be traced into a step with state and batch."""

    code: ClassVar[str] = "trace"


class ArgumentMismatchError(AlpaError):
    """A step was called with a tree, shape or dtype other than the one it was built for."""

    code: ClassVar[str] = "argument-mismatch"


class ArgumentTypeError(AlpaError, TypeError):
    """A function was given something of another type than it takes; names the argument."""

    code: ClassVar[str] = "argument-type"


class DeletedArrayError(AlpaError, RuntimeError):
    """An array was read that a step has used up, or that was deleted."""

    code: ClassVar[str] = "deleted-array"


class PlanFormatError(AlpaError):
    """A plan folder is incomplete, of another version, or has a malformed field."""

    code: ClassVar[str] = "plan-format"


class PlanMismatchError(AlpaError):
    """The parts of a plan contradict each other; found when the plan is loaded."""

    code: ClassVar[str] = "plan-mismatch"


class DevicesError(AlpaError):
    """The process has fewer devices than the plan needs, or they cannot be made."""

    code: ClassVar[str] = "devices"


class BackendError(AlpaError):
    """A compiler of stages is not installed, or cannot compile or run a stage; names both."""

    code: ClassVar[str] = "backend"


class PlacementError(AlpaError):
    """The workers of a placement do not hold the devices of the plan, each once."""

    code: ClassVar[str] = "placement"


class WorkerError(AlpaError):
    """A worker failed, or is gone; names it, the step and the cause."""

    code: ClassVar[str] = "worker"


class WorkerLostError(WorkerError):
    """A worker died, froze or cannot be reached; its group is of no use any more.

    Args:
        rank: which worker.
        out_of_memory: it ended for want of memory.
    """

    code: ClassVar[str] = "worker-lost"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        rank: int = -1,
        out_of_memory: bool = False,
    ) -> None:
        self.rank = rank
        self.out_of_memory = out_of_memory
        super().__init__(what, where=where, fix=fix)


class WorkerStalledError(WorkerLostError):
    """No worker of a group makes progress in a step; names what each of them waits for."""

    code: ClassVar[str] = "worker-stalled"


class WorkerMemoryError(WorkerError):
    """A worker found no memory, on its device or its host, for what it was asked to do."""

    code: ClassVar[str] = "worker-memory"
    out_of_memory: bool = True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, of XLA, of Python, or of a worker that had one, is about memory.

    Example:
        >>> is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes"))
        True
    """
    if isinstance(error, AlpaError):
        return error.out_of_memory
    return isinstance(error, MemoryError) or says_out_of_memory(error)


def worker_error(error: BaseException, where: str) -> WorkerError:
    """An error that is not one of ours, as what a worker says of it in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if is_out_of_memory(error):
        return WorkerMemoryError(f"out of memory: {text}", where=where)
    return WorkerError(text, where=where)


class TransportError(AlpaError):
    """A message cannot be sent or received: a peer is gone, or it sent another array than expected.

    Args:
        peer: rank of the other end, if the error is about one.
        out_of_memory: there was no memory for it.
    """

    code: ClassVar[str] = "transport"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        peer: int | None = None,
        out_of_memory: bool = False,
    ) -> None:
        self.peer = peer
        self.out_of_memory = out_of_memory
        super().__init__(what, where=where, fix=fix)

    def at(self, where: str = "") -> TransportError:
        """The same error, for another message that it keeps from its way."""
        return TransportError(
            self.what, where=where, peer=self.peer, out_of_memory=self.out_of_memory
        )


class CheckpointError(AlpaError):
    """A checkpoint is damaged, of another model or version, or cannot be written.

    Whatever was there before is still there.
    """

    code: ClassVar[str] = "checkpoint"


class DamagedCheckpointError(CheckpointError):
    """A part of a checkpoint is missing, or is not what was written; names the first one."""

    code: ClassVar[str] = "damaged-checkpoint"


# Arguments of another type than a public function takes, named where it is called.
#
# Functions ask for what would otherwise end in an error that names something else, or come out only
# after much work. Other wrong values they find themselves.


@dataclass(frozen=True)
class Kind:
    """What an argument may be: as errors say it, and whether a value is one."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    is_one = isinstance(value, int) and value in (0, 1)
    return is_one or type(value).__name__ in ("bool", "bool_")  # NumPy's


def _is_row(value: Any) -> bool:
    is_row = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    return is_row and not isinstance(value, str | bytes | type)


# Numbers and flags of NumPy and JAX are as good as Python's, and rows of any kind as lists.
WHOLE = Kind("a whole number", _is_whole)
NUMBER = Kind("a number", lambda value: hasattr(value, "__float__") or _is_whole(value))
FLAG = Kind("True or False", _is_flag)
TEXT = Kind("a string", lambda value: isinstance(value, str))
PATH = Kind("a string or a path", lambda value: isinstance(value, str | os.PathLike))
FUNCTION = Kind("a function", callable)
ROW = Kind("a list", _is_row)
ROWS = Kind("a list of lists", lambda value: _is_row(value) and all(map(_is_row, value)))


def check_type(where: str, name: str, value: Any, *kinds: Kind | type | None) -> None:
    """Refuse an argument that is of none of these kinds.

    Args:
        where: the function, as users call it.
        name: of the argument.
        kinds: a class stands for its instances.

    Raises:
        ArgumentTypeError: names the argument, what it is, and what is wanted.

    Example:
        >>> check_type("half", "number", "3", NUMBER, None)
        Traceback (most recent call last):
        alpa_runtime.errors.ArgumentTypeError: half: number='3' is a str; fix: give a number or None
    """
    words: list[str] = []
    for kind in kinds:
        if isinstance(kind, Kind):
            if kind.fits(value):
                return
            words.append(kind.words)
        elif value is None if kind is None else isinstance(value, kind):
            return
        else:
            words.append("None" if kind is None else _with_article(kind.__name__))
    fix = f"give {' or '.join(words)}"
    if isinstance(value, type):
        found = f"{name} is the class {value.__name__} itself"
        fix = f"call it: {value.__name__}(..)"
    elif value is None:
        found = f"{name} is None"
    else:
        found = f"{name}{_shown(value)} is {_with_article(type(value).__name__)}"
    raise ArgumentTypeError(found, where=where, fix=fix)


def _shown(value: Any) -> str:
    """A short value itself; nothing that would fetch or print much."""
    items: list[Any] = [*value] if type(value) in (list, tuple) else [value]
    if len(items) > 4 or not all(isinstance(x, str | bytes | int | float) for x in items):
        return ""
    text = repr(value)
    return f"={text}" if len(text) <= 40 else ""


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
