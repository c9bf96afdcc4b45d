"""What errors of other programs mean: the only module that reads their messages.

XLA, JAX, tensorstore, Ray and IREE's compiler raise a few Python classes for everything and say
in the text what happened. What is read of it was tried with the versions that
python/requirements-*.lock pin. Errors of our own have classes and codes (`errors`), and nobody
reads their text.
"""

from __future__ import annotations

import re
from enum import Enum

# XLA begins with a status of Abseil, but not where a computation cannot be dispatched.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")
_USED_UP = ("deleted", "donated")
_NO_ROOM = ("No space left", "RESOURCE_EXHAUSTED", "quota")
# What tensorstore says of files that are not as they were written.
_DAMAGED = re.compile("DATA_LOSS|NOT_FOUND|FAILED_PRECONDITION|OUT_OF_RANGE|INVALID_ARGUMENT")
# Of calls with XLA's typed interface, and without.
_MISSING_KERNEL = re.compile(
    r"No FFI handler registered for (\S+) on|No registered implementation for .*call to (\S+) for"
)


def says_out_of_memory(error: BaseException) -> bool:
    """Whether XLA found no memory, on a device or on the host.

    Example:
        >>> says_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 B"))
        True
    """
    return any(words in str(error) for words in _OUT_OF_MEMORY)


def says_donated(error: BaseException) -> bool:
    """Whether JAX refuses an array because a program took its buffer."""
    return "donated" in str(error)


def says_read(error: BaseException) -> bool:
    """Whether XLA refuses to give away the buffer of an array, since somebody reads it."""
    return "external reference" in str(error)


def says_used_up(error: BaseException) -> bool:
    """Whether JAX refuses an array because it was deleted, or a program took its buffer."""
    return any(word in str(error) for word in _USED_UP)


def says_attention_of_gpus(error: BaseException) -> bool:
    """Whether JAX lowers no fused attention for this platform, since only GPUs have it."""
    return "dot_product_attention" in str(error)


def missing_kernel(error: BaseException) -> str | None:
    """The custom call that XLA cannot compile, since the platform has no kernel for it.

    Example:
        >>> text = 'No registered implementation for untyped custom call to __cudnn$fmha for Host'
        >>> missing_kernel(RuntimeError(text))
        '__cudnn$fmha'
    """
    found = _MISSING_KERNEL.search(str(error))
    return found[1] or found[2] if found else None


def first_line(error: BaseException) -> str:
    """What JAX or XLA say first; the lines behind it are for who debugs them."""
    return next(iter(str(error).strip().splitlines()), "")


class StoreFailure(Enum):
    """What kept tensorstore from its work."""

    NO_ROOM = "no room"
    DAMAGED = "damaged"  # Files are not as they were written.
    UNREADABLE = "unreadable"
    OTHER = "other"


def store_failure(error: BaseException) -> tuple[StoreFailure, str]:
    """What an error of tensorstore is about, and what it says of it, in one line.

    Example:
        >>> store_failure(ValueError('NOT_FOUND: Error reading "a/c/0" [source locations=..]'))
        (<StoreFailure.DAMAGED: 'damaged'>, 'NOT_FOUND: Error reading "a/c/0"')
    """
    text = first_line(error).split(" [")[0]
    if any(words in text for words in _NO_ROOM):
        return StoreFailure.NO_ROOM, text
    if "writing" not in text and _DAMAGED.match(text):
        return StoreFailure.DAMAGED, text
    return (StoreFailure.UNREADABLE if "reading" in text else StoreFailure.OTHER), text


class ActorEnd(Enum):
    """How an actor of Ray ended."""

    NODE_OUT_OF_MEMORY = "node out of memory"
    PROCESS_DIED = "process died"
    CONNECTION_ENDED = "connection ended"
    OTHER = "other"


def actor_end(error: BaseException) -> tuple[ActorEnd, str]:
    """How an actor ended, of the many lines that Ray says, and the part of them that tells more:
    the node's memory, or all in one line."""
    text = " ".join(str(error).split())
    if "running low on memory" in text:
        found = re.search(r"\S+ used / \S+ limit", text)
        return ActorEnd.NODE_OUT_OF_MEMORY, found[0] if found else ""
    if "Worker exit type: SYSTEM_ERROR" in text:
        return ActorEnd.PROCESS_DIED, ""
    if "is temporarily unavailable" in text:
        return ActorEnd.CONNECTION_ENDED, ""
    return ActorEnd.OTHER, text


def first_iree_error(error: BaseException) -> str:
    """The first error that IREE's compiler names, among its command line and notes."""
    lines = str(error).splitlines()
    found = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return (found or lines or ["no reason given"])[0][:300]
