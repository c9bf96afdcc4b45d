"""What the programs of a step take without a runtime: parts of benchmark/runtime/steps.py.

Both ways compute in this process, on one core. `alone_seconds` calls each function again and again
on the same arrays. `Turns` calls the very programs that a worker has, with the sums of
micro-batches in them and buffers given away, in the worker's order on arrays that come and go as in
its steps; what other workers send is there at once. A program has begun and ended before the next
one begins, so nothing else takes the core meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import jax
import numpy as np
from alpa_mlir.search.autotune import measure_plan
from alpa_mlir.simulator import simulate
from alpa_runtime.backends import make_backend
from alpa_runtime.backends.interface import Backend, Job, Meshes, Program
from alpa_runtime.devices import mesh_on
from alpa_runtime.execution.executor import MAX_IN_FLIGHT, BoundStep, Ends, bind_step
from alpa_runtime.execution.program_merge import Place, remote_parts, worker_step
from alpa_runtime.execution.transfers import PointToPoint
from alpa_runtime.plan import Plan
from alpa_runtime.transport.interface import DONE, Sending
from alpa_runtime.transport.shared_memory import aligned, shaped
from alpa_runtime.worker_group import Placement

_jax: Any = jax
_PHASES = ("forward", "backward", "update")
Seconds = dict[tuple[int, str], float]  # By stage and phase.


def alone_seconds(plan: Plan) -> Seconds:
    """Each phase of each stage by itself."""
    stages = measure_plan(plan).plan.stages
    return {
        (i, phase): stages[i].predicted[f"{phase}_seconds"]
        for i in range(len(stages))
        for phase in _PHASES
    }


def pipeline_seconds(plan: Plan, seconds: Seconds) -> tuple[float, float]:
    """The seconds of a step whose functions take so long, as the simulator has it; and of all its
    functions and transfers one after the other."""
    stages = [
        replace(
            stage,
            predicted={
                **stage.predicted,
                **{f"{phase}_seconds": seconds[i, phase] for phase in _PHASES},
            },
        )
        for i, stage in enumerate(plan.stages)
    ]
    step = simulate(replace(plan, stages=tuple(stages)))
    spans = [span for spans in step.spans for span in spans if span.what != "wait"]
    computing = sum(span.end - span.start for span in spans)
    return step.step_seconds, computing + sum(sent.alone_seconds for sent in step.transfers)


class _NoTransport:
    """An end to which everything has been sent, and that sends nothing."""

    rank = 0

    def address(self) -> str:
        return ""

    def connect(self, addresses: Sequence[str]) -> None:
        pass

    def send(self, to: int, tag: int, data: Any) -> Sending:
        return DONE

    def receive(self, source: int, tag: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        memory = aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        memory[:] = 0
        return shaped(memory, shape, dtype)

    def failed(self) -> frozenset[int]:
        return frozenset()

    def close(self) -> None:
        pass


class _Timed:
    """A program, and the seconds of its calls, each waited for."""

    def __init__(self, program: Program, note: Callable[[float], None]) -> None:
        self._program = program
        self._note = note

    def call(self, args: Sequence[Any]) -> list[Any]:
        for x in args:
            x.block_until_ready()
        begin = time.perf_counter()
        made = self._program.call(args)
        for x in made:
            x.block_until_ready()
        self._note(time.perf_counter() - begin)
        return made

    def memory_bytes(self) -> int:
        return self._program.memory_bytes()

    def memory_stats(self) -> dict[str, int]:
        return self._program.memory_stats()


class _TimedBackend:
    """A backend whose stages' programs note their seconds, by label."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.found: dict[str, list[float]] = defaultdict(list)

    @property
    def name(self) -> str:
        return self._backend.name

    def build(self, jobs: Sequence[Job], meshes: Meshes) -> list[Program]:
        programs = self._backend.build(jobs, meshes)
        return [
            _Timed(program, self.found[job.label].append) if job.of_stage else program
            for job, program in zip(jobs, programs, strict=True)
        ]


class Turns:
    """The shares of workers of one device each, to be run without each other.

    Example:
        >>> Turns(planned.plan).seconds(10)[0, "forward"]    # doctest: +SKIP
        0.0047
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._backend = _TimedBackend(make_backend())
        devices = sorted(d for mesh in plan.meshes for d in mesh.devices)
        placement = Placement(tuple((d,) for d in devices))
        self._shares = [self._bind(placement, rank) for rank in range(placement.size)]
        self._states = [self._zeros(bound, bound.state_places) for bound in self._shares]
        self._batches = [self._zeros(bound, bound.batch_places) for bound in self._shares]

    def _bind(self, placement: Placement, rank: int) -> BoundStep:
        plan, share = self._plan, worker_step(self._plan, placement, rank)
        device: Any = _jax.devices()[0]
        own = dict.fromkeys(placement.workers[rank], device)
        return bind_step(
            plan,
            share,
            {mesh: mesh_on(plan.meshes[mesh], own) for mesh in placement.meshes_of(plan, rank)},
            donate_state=True,
            max_in_flight=MAX_IN_FLIGHT,
            backend=self._backend,
            progress=None,
            ends=Ends(
                remote_parts(plan, share, placement, rank),
                own,
                PointToPoint(_NoTransport(), _raise),
            ),
        )

    def _zeros(self, bound: BoundStep, places: Sequence[Place]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for place in places:
            tensor = bound.step.values[place.value].tensor
            zeros = np.zeros(tensor.shape, _jax.numpy.dtype(tensor.dtype))
            found[place.value] = _jax.device_put(zeros, bound.shardings[place.value])
        return found

    def seconds(self, steps: int) -> Seconds:
        """The mean of each phase over some steps."""
        for found in self._backend.found.values():
            found.clear()
        for number, bound in enumerate(self._shares):
            for _ in range(steps):
                self._step(number, bound)
        total: Seconds = defaultdict(float)
        for i, stage in enumerate(self._plan.stages):
            for name in stage.functions:
                if found := self._backend.found[f"stage {i} {name}"]:
                    total[i, name.partition("_")[0]] += fmean(found)
        return dict(total)

    def _step(self, number: int, bound: BoundStep) -> None:
        batches, states = self._batches[number], self._states[number]
        results = bound(states, lambda place, target: batches[place.value])
        for place in bound.state_places:
            output = self._plan.inputs[place.arg].carried_by
            if output is not None:
                states[place.value] = results[output]


def _raise(error: BaseException) -> None:
    raise error
