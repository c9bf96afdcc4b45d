"""Compiling a plan's programs ahead of time, for devices that need not be here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Any

from alpa_runtime.backends.gpus import GPUS
from alpa_runtime.backends.interface import Job
from alpa_runtime.errors import PATH, BackendError, InfeasiblePlanError, check_type
from alpa_runtime.execution.compilation import (
    CompiledPeak,
    check_peaks,
    compiled_peaks,
    part_of,
    stage_jobs,
)
from alpa_runtime.execution.executor import action_jobs, donations
from alpa_runtime.execution.program_merge import MergedStep, merge_step, sums_of
from alpa_runtime.execution.whole_step import whole_step
from alpa_runtime.parallel_step import Progress, progress_bar
from alpa_runtime.plan import Plan
from alpa_runtime.plan.plan import (
    Binary,
    CompiledMemory,
    device_types,
    host_groups,
    key_of,
    write_binaries,
)
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.text import bytes_text

TARGETS = ("cpu", *GPUS)
COMPILERS = ("xla", "iree")


@dataclass(frozen=True)
class CompiledAhead:
    """What was compiled and stored with the plan.

    Attributes:
        binaries: one for each program and target.
        peaks: the most that a device of each mesh needs in a step, by the compiler's count.
        limits: bytes that a device of each mesh has; None where the plan does not say.
    """

    binaries: tuple[Binary, ...]
    peaks: tuple[CompiledPeak, ...]
    limits: tuple[int | None, ...]

    def as_text(self) -> str:
        """A line for each program, and one for each mesh."""
        width = max(len(item.label) for item in self.binaries)
        lines = [
            f"{item.label:{width}}  {item.target} by {item.compiler}: "
            f"{bytes_text(len(item.program))}, needs {bytes_text(item.memory_bytes)} a device"
            for item in self.binaries
        ]
        for peak, limit in zip(self.peaks, self.limits, strict=True):
            of = "" if limit is None else f" of {bytes_text(limit)}"
            lines.append(
                f"mesh {peak.mesh}: {bytes_text(peak.bytes)}{of} a device, in {peak.label}"
            )
        return "\n".join(lines)


def compile_ahead(
    folder: str | Path,
    target: str | None = None,
    *,
    backend: str = "xla",
    donate_state: bool | None = None,
    progress: bool | Progress = False,
) -> CompiledAhead:
    """Compile the programs of a saved plan and store them in its folder.

    GPUs need not be here: XLA compiles for their description, with JAX's CUDA plugin, and IREE
    for their architecture. `load` takes what suits the devices of its process. Programs that the
    folder holds for other targets, or by the other compiler, stay there.

    Args:
        folder: what `Plan.save` wrote.
        target: one of `TARGETS`; by default each mesh's device type in the plan's cluster. `"cpu"`
            is the processor of this host.
        backend: `"xla"`, or `"iree"` for stages (on several devices with `export="collectives"`).
        donate_state: whether a call will use up its state; by default as when the plan was made.
        progress: True for a progress bar, or a function of (done, total, label).

    Raises:
        PlanFormatError: the folder holds no plan of this version.
        PlanMismatchError: the parts of the plan contradict each other.
        BackendError: the target is unknown, a compiler is not installed or fails.
        InfeasiblePlanError: a mesh's devices have too little memory; nothing is stored then.

    Example:
        >>> print(alpa_mlir.compile_ahead("my_plan", "h100").as_text())    # doctest: +SKIP
        stage 0 forward  h100 by xla: 57 KiB, needs 224 KiB a device
    """
    if backend not in COMPILERS:
        raise BackendError(f"backend {backend!r}", fix=f"use one of {', '.join(COMPILERS)}")
    check_type("compile_ahead", "folder", folder, PATH)
    folder = Path(folder)
    plan = Plan.load(folder)
    targets = [_target_of(plan, mesh, target) for mesh in plan.meshes]
    step = merge_step(plan)
    if donate_state is None:
        donate_state = plan.call is None or plan.call.donate_state
    stages = stage_jobs(plan, donations(plan, step, donate_state), sums_of(step))
    limits = [_memory_of(plan, mesh, name) for mesh, name in zip(plan.meshes, targets, strict=True)]
    shown = progress_bar("compiling ahead") if progress is True else progress or None

    def compiled(
        step: MergedStep, stages: Mapping[tuple[int, str], Job]
    ) -> tuple[list[Binary], list[CompiledPeak]]:
        jobs: dict[Job, None] = dict.fromkeys(stages.values())
        if backend == "xla":
            jobs |= dict.fromkeys(action_jobs(plan, step).values())
        made = _compile(plan, list(jobs), targets, backend, shown)
        binaries = dict(zip(jobs, made, strict=True))
        needed = {key: binaries[job].memory_bytes for key, job in stages.items()}
        peaks = compiled_peaks(plan, step, needed, donate_state)
        for peak, limit, name in zip(peaks, limits, targets, strict=True):
            if limit is not None:
                check_peaks(plan, [peak], {peak.mesh: limit}, f"{name} by {backend}")
        return made, peaks

    # As `bind_step` has it: in one program where that can be, and fits.
    joined = whole_step(plan, step, stages, donate_state) if backend == "xla" else None
    found: tuple[list[Binary], list[CompiledPeak]] | None = None
    if joined is not None:
        with contextlib.suppress(InfeasiblePlanError):
            found = compiled(*joined)
    made, peaks = found or compiled(step, stages)
    new = {(item.key, item.compiler, item.target): item for item in made}
    replaced = {(item.compiler, item.target) for item in made}
    kept = [item for item in plan.binaries if (item.compiler, item.target) not in replaced]
    memory = [
        *(item for item in plan.compiled_memory if (item.compiler, item.target) not in replaced),
        *(
            CompiledMemory(peak.mesh, backend, name, peak.bytes, peak.label)
            for peak, name in zip(peaks, targets, strict=True)
        ),
    ]
    write_binaries(folder, [*kept, *new.values()], memory)
    return CompiledAhead(tuple(new.values()), tuple(peaks), tuple(limits))


def _target_of(plan: Plan, mesh: MeshInfo, target: str | None) -> str:
    if target is None:
        types = device_types(plan.cluster)
        names = sorted({types[d] if d < len(types) else "a device unknown" for d in mesh.devices})
        target = " and ".join(names)
    if target not in TARGETS:
        raise BackendError(
            f"no compiler knows {target!r}",
            where=f"mesh {mesh.as_text()}",
            fix=f"give one of the targets {', '.join(TARGETS)}",
        )
    return target


def _memory_of(plan: Plan, mesh: MeshInfo, target: str) -> int | None:
    """Of the mesh's devices, if the plan was made for them; else by the target's data sheet."""
    types = device_types(plan.cluster)
    table = plan.cluster.get("device_types", {})
    own = {types[d] for d in mesh.devices if d < len(types)}
    if own == {target}:
        return int(table[target]["memory_bytes"])
    return GPUS[target].memory_bytes if target in GPUS else None


def _compile(
    plan: Plan, jobs: Sequence[Job], targets: Sequence[str], backend: str, progress: Progress | None
) -> list[Binary]:
    """A binary for each job; jobs that differ by their devices' numbers only share it."""
    compile_one = _with_iree(plan) if backend == "iree" else _with_xla(plan)
    groups: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        mesh = plan.meshes[job.mesh]
        place = (mesh.shape, mesh.axes, _layout(plan, mesh), _ranks(mesh), targets[job.mesh])
        groups.setdefault((job.text, job.per_device, place), []).append(i)
    result: list[Binary | None] = [None] * len(jobs)
    order = sorted(groups.values(), key=lambda members: -len(jobs[members[0]].text))
    pool = ThreadPoolExecutor(max_workers=cpu_count() or 1)
    try:
        pending: dict[Future[Binary], list[int]] = {}
        for members in order:
            job = jobs[members[0]]
            pending[pool.submit(compile_one, job, targets[job.mesh])] = members
        for done, future in enumerate(as_completed(pending), 1):
            for i in pending[future]:
                result[i] = future.result()
            if progress is not None:
                progress(done, len(groups), jobs[pending[future][0]].label)
    finally:
        pool.shutdown(cancel_futures=True)
    return [item for item in result if item is not None]


def _with_xla(plan: Plan) -> Callable[[Job, str], Binary]:
    from alpa_runtime.backends.xla import (
        compile_described,
        compile_text,
        described_devices,
        described_parts,
        plugin_version,
        program_bytes,
        shipped_parts,
    )
    from alpa_runtime.devices import make_meshes

    def compile_one(job: Job, target: str) -> Binary:
        mesh = plan.meshes[job.mesh]
        if target == "cpu":
            here: Any = make_meshes(plan)[job.mesh]
            parts = shipped_parts(job.text, here, per_device=job.per_device)
            if parts is None:
                raise BackendError(
                    "its program is good for this process only",
                    where=job.label,
                    fix="compile it where it runs; a processor that the system does not describe, "
                    "and Python callbacks, cannot be compiled ahead",
                )
            handle = compile_text(job.text, here, per_device=job.per_device)
        else:
            gpu = GPUS[target]
            hosts, per_host = _layout(plan, mesh)
            devices = described_devices(gpu, hosts, per_host)
            order = [devices[rank] for rank in _ranks(mesh)]
            parts = described_parts(
                job.text, mesh.shape, gpu.arch, plugin_version(), job.per_device
            )
            handle = compile_described(job.text, order, per_device=job.per_device, where=job.label)
        return Binary(
            job.label, "xla", target, key_of(parts), program_bytes(handle), handle.serialize()
        )

    return compile_one


def _with_iree(plan: Plan) -> Callable[[Job, str], Binary]:
    from alpa_runtime.backends import iree as iree
    from alpa_runtime.backends.xla import host_cpu, num_bytes

    version = iree.iree_version()

    def compile_one(job: Job, target: str) -> Binary:
        mesh = plan.meshes[job.mesh]
        if len(mesh.devices) > 1 and (target == "cpu" or not job.per_device):
            raise BackendError(
                f"IREE compiles stages for one device, this one has {len(mesh.devices)}",
                where=job.label,
                fix='use backend="xla"'
                + ("" if target == "cpu" else ', or plan with export="collectives"'),
            )
        text, _ = iree.plain_text(job.text)
        host = host_cpu()
        arch = "host" if target == "cpu" else GPUS[target].iree_arch
        parts = iree.iree_parts(text, arch, version)
        if target == "cpu":
            if host is None:
                raise BackendError(
                    "the system does not describe its processor",
                    where=job.label,
                    fix="compile it where it runs",
                )
            parts |= {"host": host}
        binary = iree.compile_binary(text, arch, job.label)
        tensors = [part_of(t, mesh) for t in (*job.inputs, *job.outputs)]
        needed = sum(map(num_bytes, tensors))
        needed += binary.transient_bytes + binary.constant_bytes
        return Binary(job.label, "iree", target, key_of(parts), needed, binary.to_bytes())

    return compile_one


def _ranks(mesh: MeshInfo) -> tuple[int, ...]:
    """Of each device of the mesh among those devices, by their numbers."""
    order = {device: i for i, device in enumerate(sorted(mesh.devices))}
    return tuple(order[device] for device in mesh.devices)


def _layout(plan: Plan, mesh: MeshInfo) -> tuple[int, int]:
    """Hosts that a mesh spans, and its devices on each; one host where they are unequal."""
    first, hosts = 0, list[int]()
    for group in host_groups(plan.cluster):
        for _ in range(int(group.get("count", 1))):
            end = first + int(group["devices"])
            hosts.append(sum(first <= device < end for device in mesh.devices))
            first = end
    used = [n for n in hosts if n]
    if len(set(used)) == 1 and sum(used) == len(mesh.devices):
        return len(used), used[0]
    return 1, len(mesh.devices)
