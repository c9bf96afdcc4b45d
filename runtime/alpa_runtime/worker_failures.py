"""What the driver makes of workers that failed: who was it, and what does the caller see?"""

from __future__ import annotations

from alpa_runtime.errors import (
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerStalledError,
    is_out_of_memory,
)
from alpa_runtime.hosts.interface import WorkerGroup
from alpa_runtime.pending_steps import Failure

_SECONDS_TO_ANSWER = 5.0  # To hear from the others what happened when one fails.
_FIX = "load the plan again, and go on from the last checkpoint"
_MEMORY_FIX = (
    "use more micro-batches, rematerialization or more devices, or end what else runs there"
)


def cause_behind(group: WorkerGroup, failure: Failure) -> Failure:
    """What a worker says that failed after it had answered, or that does not answer.

    Args:
        failure: of a worker that lost another one.
    """
    silent: Failure | None = None
    for rank in range(group.size):
        try:
            said = group.ping(rank, _SECONDS_TO_ANSWER)
        except WorkerError as error:
            silent = silent or Failure(rank, failure.number, error)
            continue  # Perhaps it is only slow, and another one knows what happened.
        if said["error"] is not None and not said["lost_another"]:
            return Failure(rank, failure.number, WorkerError(said["error"]))
    return silent or failure


def failed_worker(rank: int, cause: BaseException, number: int | None) -> WorkerError:
    """The error of a worker that failed, perhaps in a step."""
    when = "" if number is None else f" in step {number}"
    kind, fix = WorkerError, _FIX
    if is_out_of_memory(cause):
        kind, fix = WorkerMemoryError, _MEMORY_FIX
    elif isinstance(cause, WorkerStalledError):
        return WorkerStalledError(cause.what, where=f"workers{when}", fix=cause.fix)
    text = str(cause)
    if isinstance(cause, WorkerLostError) and cause.rank >= 0:
        rank, text = cause.rank, cause.what  # Whoever was asked: this one is gone.
    return kind(f"failed{when}: {text}", where=f"worker {rank}", fix=fix)


def unreadable(name: str, cause: BaseException) -> WorkerError:
    """The error of an array that cannot be fetched."""
    kind = WorkerMemoryError if is_out_of_memory(cause) else WorkerError
    return kind(f"cannot be read: {cause}", where=name)
