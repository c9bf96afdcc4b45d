"""Named errors of the project.

Every error says three things in one line: what is wrong (with the found and the
expected value), where (a leaf, a file and field, an op's location), and what to do.

Example:
    >>> str(MicroBatchError("batch of 10 rows", where="x", fix="use 1, 2 or 5 micro-batches"))
    'x: batch of 10 rows; fix: use 1, 2 or 5 micro-batches'
"""

from __future__ import annotations

from typing import ClassVar

from alpa_runtime.errors import (
    AlpaError,
    ArgumentMismatchError,
    ArgumentTypeError,
    BackendError,
    CheckpointError,
    DamagedCheckpointError,
    DeletedArrayError,
    DevicesError,
    InfeasiblePlanError,
    PlacementError,
    PlanFormatError,
    PlanMismatchError,
    TraceError,
    TransportError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerStalledError,
    is_out_of_memory,
    worker_error,
)

__all__ = [
    "AlpaError",
    "ArgumentMismatchError",
    "ArgumentTypeError",
    "BackendError",
    "CheckpointError",
    "ClusterFileError",
    "DamagedCheckpointError",
    "DeletedArrayError",
    "DevicesError",
    "EntryPointError",
    "ExportError",
    "InfeasiblePlanError",
    "MethodError",
    "MicroBatchError",
    "ModuleSyntaxError",
    "PassError",
    "PlacementError",
    "PlanFormatError",
    "PlanMismatchError",
    "PrecisionError",
    "ProblemFormatError",
    "SolverError",
    "TraceError",
    "TransportError",
    "UnsupportedOpError",
    "WorkerError",
    "WorkerLostError",
    "WorkerMemoryError",
    "WorkerStalledError",
    "is_out_of_memory",
    "worker_error",
]


class ClusterFileError(AlpaError):
    """A cluster file or preset cannot be used: missing, negative or unknown field."""

    code: ClassVar[str] = "cluster-file"


class ExportError(AlpaError):
    """A plan cannot be said in the form of another program; names what it decides."""

    code: ClassVar[str] = "export"


class ModuleSyntaxError(AlpaError):
    """A module's text is not valid MLIR of the supported dialects."""

    code: ClassVar[str] = "module-syntax"


class UnsupportedOpError(AlpaError):
    """The program holds an op that the compiler has no rule for; the op is named."""

    code: ClassVar[str] = "unsupported-op"


class MicroBatchError(AlpaError):
    """So many micro-batches do not divide the batch, or would give other results than the whole
    batch."""

    code: ClassVar[str] = "micro-batches"


class EntryPointError(AlpaError):
    """The command line cannot find a step: no such file, module, function or parameter."""

    code: ClassVar[str] = "entry-point"


class MethodError(AlpaError):
    """The wanted method (meshes, layer ranges, schedule) does not fit the cluster or the step."""

    code: ClassVar[str] = "method"


class PassError(AlpaError):
    """A compiler pass failed for a reason that none of the named errors covers."""

    code: ClassVar[str] = "pass"


class PrecisionError(AlpaError):
    """A step has no form in lower precision."""

    code: ClassVar[str] = "precision"


class ProblemFormatError(AlpaError):
    """An intra-op problem file is malformed or has a number out of range; names the line."""

    code: ClassVar[str] = "problem-format"


class SolverError(AlpaError):
    """A solver is not installed, has no licence for the problem's size, or failed."""

    code: ClassVar[str] = "solver"


#: The class of each code of the compiler (dialects/Common/ErrorCode.h).
ERROR_CLASSES: dict[str, type[AlpaError]] = {
    kind.code: kind
    for kind in (
        ClusterFileError,
        InfeasiblePlanError,
        MethodError,
        MicroBatchError,
        ModuleSyntaxError,
        PassError,
        PrecisionError,
        ProblemFormatError,
        SolverError,
        UnsupportedOpError,
    )
}
