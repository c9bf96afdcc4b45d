"""Memory of a step as compiled: what its programs hold, and what the compiler needs to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import Mesh

from alpa_runtime.backends.interface import Program
from alpa_runtime.backends.xla_runtime import mesh_devices, num_bytes
from alpa_runtime.errors import InfeasiblePlanError
from alpa_runtime.execution.actions import (
    Accumulate,
    Copy,
    Exchange,
    LinearStep,
    Place,
    Reshard,
    Run,
    Send,
    Zero,
    makes_of,
)
from alpa_runtime.execution.compilation import part_of
from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import bytes_text


@dataclass(frozen=True)
class CompiledPeak:
    """When a device of a mesh needs the most.

    Attributes:
        held_bytes: of values that the step holds then, the program's arguments among them.
        program_bytes: what the running program adds: results and temporaries.
        label: the program.
    """

    mesh: int
    held_bytes: int
    program_bytes: int
    label: str

    @property
    def bytes(self) -> int:
        return self.held_bytes + self.program_bytes


def compiled_peaks(
    plan: Plan, step: LinearStep, programs: Mapping[tuple[int, str], int]
) -> list[CompiledPeak]:
    """The peak of each mesh, in the order of meshes.

    Args:
        programs: bytes of each (stage, function): arguments, results and temporaries together, as
            `Program.memory_bytes` gives them.
    """
    sizes = [num_bytes(part_of(value.tensor, plan.meshes[value.mesh])) for value in step.values]
    held = [0] * len(plan.meshes)
    peaks = [CompiledPeak(mesh, 0, 0, "nothing") for mesh in range(len(plan.meshes))]

    def add(value: int) -> None:
        held[step.values[value].mesh] += sizes[value]

    def note(mesh: int, added: int, label: str) -> None:
        if held[mesh] + added > peaks[mesh].bytes:
            peaks[mesh] = CompiledPeak(mesh, held[mesh], added, label)

    state = [
        action
        for action in step.actions
        if isinstance(action, Place) and plan.inputs[action.arg].kind == "state"
    ]
    for place in state:
        add(place.value)
    for action in step.actions:
        made = makes_of(action)
        match action:
            case Place():
                if plan.inputs[action.arg].kind != "state":
                    add(action.value)
                continue
            case Run():
                mesh = plan.stages[action.stage].mesh
                arguments = sum(sizes[v] for v in set(action.inputs))
                added = max(0, programs[action.stage, action.function] - arguments)
                note(mesh, added, f"stage {action.stage} {action.function}")
            case Accumulate():
                added = sum(sizes[v] for v, left, _ in action.sums if left not in action.last)
                note(action.mesh, added, "sums of micro-batches")
            case Send():
                pass
            case Zero():
                mesh = step.values[made[0]].mesh
                note(mesh, sum(sizes[v] for v in made), "sums of micro-batches")
            case Reshard() | Copy() | Exchange():
                for value in made:
                    note(step.values[value].mesh, sizes[value], "values between stages")
        for value in made:
            add(value)
        for value in action.last:
            held[step.values[value].mesh] -= sizes[value]
    return peaks


def device_limits(meshes: Mapping[int, Mesh]) -> dict[int, int]:
    """Bytes that the weakest own device of each mesh gives to programs, where that is known: the
    CPU does not say."""
    limits: dict[int, int] = {}
    for number, mesh in meshes.items():
        known: list[int] = []
        for device in mesh_devices(mesh):
            if device.process_index == device.client.process_index():
                statistics: dict[str, int] = device.memory_stats() or {}
                known += [n for n in [statistics.get("bytes_limit")] if n]
        if known:
            limits[number] = min(known)
    return limits


def check_peaks(
    plan: Plan, peaks: Sequence[CompiledPeak], limits: Mapping[int, int], target: str
) -> None:
    """Refuse a plan of which a mesh's devices have too little memory.

    Args:
        limits: bytes of a device of each mesh, where that is known.
        target: what the programs were compiled for.

    Raises:
        InfeasiblePlanError: names the program, the bytes and the device's.
    """
    for peak in peaks:
        limit = limits.get(peak.mesh)
        if limit is not None and peak.bytes > limit:
            raise InfeasiblePlanError(
                f"{peak.label} compiled for {target} needs {bytes_text(peak.bytes)} on a device of "
                f"{bytes_text(limit)}: {bytes_text(peak.held_bytes)} that the step holds then, "
                f"{bytes_text(peak.program_bytes)} of results and temporaries",
                where=f"plan of {plan.name}, mesh {peak.mesh}",
                fix="plan with more micro-batches or a smaller memory_fraction",
            )


def check_memory(
    plan: Plan,
    step: LinearStep,
    programs: Mapping[tuple[int, str], Program],
    meshes: Mapping[int, Mesh],
) -> None:
    """Refuse a plan that does not fit into the memory of the devices of its meshes.

    Raises:
        InfeasiblePlanError: see `check_peaks`.
    """
    limits = device_limits(meshes)
    if limits:
        needed = {key: program.memory_bytes() for key, program in programs.items()}
        devices = [d for mesh in meshes.values() for d in mesh_devices(mesh)]
        kinds = ", ".join(sorted({device.device_kind for device in devices}))
        check_peaks(plan, compiled_peaks(plan, step, needed), limits, kinds)
