"""Which workers need what of a plan's inputs, and which make its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy
import numpy as np

from alpa_runtime.distributed_arrays import DistributedArray
from alpa_runtime.execution.actions import LinearStep, Place
from alpa_runtime.execution.arguments import result_shape
from alpa_runtime.execution.host_shards import covering, shifted
from alpa_runtime.execution.messages import Held, Parts
from alpa_runtime.execution.reshard_checks import held_boxes
from alpa_runtime.placement import Placement
from alpa_runtime.plan import Plan
from alpa_runtime.plan.reshard import Box
from alpa_runtime.plan.tensor import TensorSpec

_jnp: Any = jax.numpy


@dataclass(frozen=True)
class InputInWorkers:
    """What workers need of an input.

    Attributes:
        boxes: for each rank, parts of the whole array.
        mesh: the one that all of it goes to; None if that are several.
        tensor: as it is held there.
    """

    boxes: Mapping[int, Sequence[Box]]
    mesh: int | None
    tensor: TensorSpec | None


@dataclass(frozen=True)
class OutputInWorkers:
    """Where a result is made, and its form at the size that the caller sees."""

    mesh: int
    tensor: TensorSpec
    dtype: Any
    ranks: tuple[int, ...]


@dataclass
class CallToWorkers:
    """What a call gives to the workers, as it is put together."""

    inputs: list[dict[int, Held | Parts]]
    drop: list[tuple[int, tuple[int, ...]]] = field(
        default_factory=list[tuple[int, tuple[int, ...]]]
    )
    used_up: dict[int, DistributedArray] = field(default_factory=dict[int, DistributedArray])
    sent: list[DistributedArray] = field(default_factory=list[DistributedArray])


def inputs_in_workers(plan: Plan, placement: Placement, step: LinearStep) -> list[InputInWorkers]:
    """What workers need of each input of the plan."""
    return [_input(plan, placement, step, index) for index in range(len(plan.inputs))]


def _input(plan: Plan, placement: Placement, step: LinearStep, index: int) -> InputInWorkers:
    places = [a for a in step.actions if isinstance(a, Place) and a.arg == index]
    boxes: dict[int, list[Box]] = {}
    for place in places:
        value = step.values[place.value]
        rows = (place.micro_batch or 0) * (value.tensor.shape[0] if value.tensor.shape else 0)
        for device, box in held_boxes(value.tensor, plan.meshes[value.mesh]).items():
            boxes.setdefault(placement.owners[device], []).append(shifted(box, rows))
    values = {(step.values[a.value].mesh, step.values[a.value].tensor) for a in places}
    meshes = {mesh for mesh, _ in values}
    return InputInWorkers(
        {rank: covering(wanted) for rank, wanted in sorted(boxes.items())},
        meshes.pop() if len(meshes) == 1 else None,
        next(iter(values))[1] if len(values) == 1 else None,
    )


def outputs_in_workers(plan: Plan, placement: Placement, step: LinearStep) -> list[OutputInWorkers]:
    """Where each result of the plan is made."""
    return [_output(plan, placement, step, index) for index in range(len(plan.outputs))]


def _output(plan: Plan, placement: Placement, step: LinearStep, index: int) -> OutputInWorkers:
    value = step.values[step.results[index][0]]
    tensor = TensorSpec(result_shape(plan, index), value.tensor.dtype, value.tensor.spec)
    dtype = np.dtype(_jnp.dtype(tensor.dtype))
    return OutputInWorkers(value.mesh, tensor, dtype, placement.ranks_of(plan, value.mesh))
