"""Which compiler a plan's programs get."""

from __future__ import annotations

from collections.abc import Sequence

from alpa_mlir.cache_folder import CacheLike
from alpa_mlir.errors import BackendError
from alpa_mlir.runtime.backends.compiled_cache import compiled_cache
from alpa_mlir.runtime.backends.xla import XlaBackend
from alpa_mlir.runtime.program import Backend, Job, Meshes, Program

BACKENDS = ("auto", "xla", "iree")


def make_backend(name: str = "auto", cache: CacheLike = True) -> Backend:
    """The compiler of that name.

    Args:
        name: one of `BACKENDS`: `"iree"` compiles stages with IREE, and the small programs
            between them with XLA; `"auto"` is XLA.
        cache: whether compiled programs are kept on disk, or the folder to keep them in.

    Raises:
        BackendError: there is none of that name, or its package is not installed.
    """
    if name not in BACKENDS:
        raise BackendError(f"backend {name!r}", fix=f"use one of {', '.join(BACKENDS)}")
    kept = compiled_cache(cache)
    xla = XlaBackend(kept)
    if name != "iree":
        return xla
    from alpa_mlir.runtime.backends.iree import IreeBackend

    return _Split(IreeBackend(kept), xla)


class _Split:
    """One compiler for stages and another for what lies between them."""

    name = "split"

    def __init__(self, stages: Backend, others: Backend) -> None:
        self._stages = stages
        self._others = others
        self.name = stages.name

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """See `Backend`; jobs of one text are all stages or none is."""
        chosen = self._stages if jobs[0].of_stage else self._others
        return chosen.build(jobs, meshes)
