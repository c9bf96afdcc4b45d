"""What is compiled and what comes of it: the seam between the runtime and its compilers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import jax
from jax.sharding import Mesh

from alpa_runtime.plan.tensor import TensorSpec

Progress = Callable[[int, int, str], None]
# By number; a worker has some of the plan's only. Unquoted, pyright loses the type of a mesh.
Meshes: TypeAlias = "Sequence[Mesh] | Mapping[int, Mesh]"


@dataclass(frozen=True)
class Job:
    """A program to compile: its text, mesh and the tensors it takes and gives.

    With `per_device` the text says what one device does with its parts of these tensors. A
    program that is not `of_stage` is a small one between stages: a sum, zeros, another sharding.
    """

    label: str
    text: str
    mesh: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    per_device: bool = False
    of_stage: bool = True


class Program(Protocol):
    """A compiled program on the devices of a mesh, whoever compiled it."""

    def call(self, args: Sequence[jax.Array]) -> list[jax.Array]:
        """Run on arrays that have exactly the shardings it was compiled for.

        Results may be futures. Inputs whose buffers the text gives away are deleted.
        """
        ...

    def memory_bytes(self) -> int:
        """Arguments, results and temporaries on one device, aliased buffers counted once."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """The same in parts, by XLA's names: `argument_size_in_bytes` and so on.

        Raises:
            BackendError: this compiler tells only the sum.
        """
        ...


class Backend(Protocol):
    """A compiler of programs."""

    @property
    def name(self) -> str: ...

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        """Compile jobs that have one text.

        Args:
            jobs: at least one; their meshes have one shape and one kind of device.
            meshes: those of the jobs, by their `mesh`.

        Returns:
            The program of each job.
        """
        ...


def axis_sizes(mesh: Mesh) -> tuple[int, ...]:
    """Sizes of the mesh's axes."""
    return tuple(int(n) for n in mesh.axis_sizes)
