"""Compilers of a plan's stages: XLA, and IREE for stages on one device; and which one a plan gets.

Importing the package alone imports no compiler: data sheets of GPUs need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from alpa_runtime.cache import CacheLike, compiled_cache
from alpa_runtime.errors import BackendError

if TYPE_CHECKING:
    from alpa_runtime.backends.interface import Backend, Job, Meshes, Program
    from alpa_runtime.plan.plan import Binary

BACKENDS = ("auto", "xla", "iree")


def make_backend(
    name: str = "auto", cache: CacheLike = True, binaries: Sequence[Binary] = ()
) -> Backend:
    """The compiler of that name.

    Args:
        name: one of `BACKENDS`: `"iree"` compiles stages with IREE, and the small programs
            between them with XLA; `"auto"` takes what was compiled ahead of time for this
            process's devices, and XLA for the rest.
        cache: whether compiled programs are kept on disk, or the folder to keep them in.
        binaries: what was compiled ahead of time.

    Raises:
        BackendError: there is none of that name, or its package is not installed.
    """
    if name not in BACKENDS:
        raise BackendError(f"backend {name!r}", fix=f"use one of {', '.join(BACKENDS)}")
    from alpa_runtime.backends.xla import XlaBackend

    kept = compiled_cache(cache)
    if name == "xla":
        return XlaBackend(kept)
    shipped = {
        compiler: {item.key: item.program for item in binaries if item.compiler == compiler}
        for compiler in ("xla", "iree")
    }
    xla = XlaBackend(kept, shipped["xla"])
    if name == "auto" and not any(b.compiler == "iree" and b.target == "cpu" for b in binaries):
        return xla
    from alpa_runtime.backends.iree import IreeBackend

    try:
        iree = IreeBackend(kept, shipped["iree"])
    except BackendError:
        if name == "auto":  # What ships for IREE is no use without it.
            return xla
        raise
    return _Split(iree, xla, iree.ships if name == "auto" else lambda job: job.of_stage)


class _Split:
    """IREE for some programs and XLA for the others."""

    def __init__(self, iree: Backend, xla: Backend, for_iree: Callable[[Job], bool]) -> None:
        self.name = iree.name
        self._iree, self._xla, self._for_iree = iree, xla, for_iree

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """See `Backend`."""
        chosen = self._iree if self._for_iree(jobs[0]) else self._xla
        return chosen.build(jobs, meshes)
