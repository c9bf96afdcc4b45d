"""The only door to the C++ compiler: text in, text and plans out, named errors."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from alpa_runtime.plan import Plan

from alpa_mlir.errors import (
    ERROR_CLASSES,
    AlpaError,
    ClusterFileError,
    PassError,
    UnsupportedOpError,
)

_T = TypeVar("_T")


@cache
def _native() -> Any:
    try:
        return importlib.import_module("alpa_mlir._native")
    except ImportError as error:
        raise PassError(
            f"the compiler's native module cannot be loaded: {error}",
            where="alpa_mlir._native",
            fix="run `make build`, or `pip install .`",
        ) from None


def native_path() -> Path:
    """The file of the native module."""
    return Path(str(_native().__file__))


class _CompilerError(Protocol):
    """The native module's exception; python/bindings/Bindings.h says what the fields hold."""

    code: str
    where: str
    file: str
    line: int
    column: int
    what: str
    fix: str
    notes: list[str]


def _named(error: _CompilerError, where: str = "") -> AlpaError:
    """The error's class by its code; notes are parts of the line. Of a cluster file all errors are
    said, a line each."""
    made = ERROR_CLASSES[error.code]
    what = error.what.strip() if made is ClusterFileError else _first_line(error.what)
    lines = [what, *(f"(note: {_first_line(note)})" for note in error.notes)]
    return made(" ".join(lines), where=error.where or where, fix=error.fix)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def _call(function: Callable[..., _T], *args: Any, where: str = "") -> _T:
    """Call the compiler.

    Args:
        where: of errors that do not say it themselves.
    """
    try:
        return function(*args)
    except _native().CompilerError as error:
        raise _named(error, where) from None


def compiler_version() -> str:
    """Version of the compiler, as plans carry it."""
    return str(_native().VERSION)


def check_cluster(name_or_path: str, yaml: str = "") -> str:
    """The canonical text of a cluster preset or file, or of `yaml`.

    Raises:
        ClusterFileError: unknown preset, unreadable file, missing or bad field.
    """
    return _call(_native().check_cluster, name_or_path, yaml)


@cache
def _planner(cluster: str) -> Any:
    return _call(_native().TransferPlanner, cluster)


@cache
def transfer_strategies() -> dict[str, str]:
    """How transfers between meshes may be planned, and what each way does; `docs/resharding.md`.

    Example:
        >>> "broadcast" in transfer_strategies()
        True
    """
    return dict(_native().transfer_strategies())


def plan_reshard(
    cluster: str,
    dtype: str,
    shape: Sequence[int],
    source_mesh: tuple[Sequence[int], Sequence[int]],
    source_spec: Sequence[Sequence[int]],
    target_mesh: tuple[Sequence[int], Sequence[int]],
    target_spec: Sequence[Sequence[int]],
    strategy: str = "auto",
) -> dict[str, Any]:
    """The steps that bring a tensor from one mesh to another, as plan.json has them.

    Args:
        cluster: JSON text of the description, a preset, or a file.
        dtype: NumPy's name.
        source_mesh, target_mesh: shape, and the cluster's device numbers in row-major order.
        source_spec, target_spec: for each dimension the mesh axes that split it, major first.
        strategy: one of `transfer_strategies()`, or `"auto"` for the one with the fewest bytes
            from host to host and then the least seconds.

    Returns:
        `strategy`; `seconds`, foreseen for the transfer by itself; `slow_bytes`, from host to
        host; `steps`, lines as in `docs/plan.md`.

    Raises:
        ClusterFileError: unknown preset, or a bad description.
        PassError: a spec does not fit the tensor or its mesh, a dimension is not divisible by
            its pieces, a device is not in the cluster, or there is no such strategy.

    Example:
        >>> mesh = ((1,), (0,)), ((1,), (4,))
        >>> plan_reshard("cpu-test", "float32", (8,), mesh[0], [()], mesh[1], [()])["steps"]
        ['tile 0 on 0 [0:8]', 'send 1 = 0 to 4']
    """
    bits = re.search(r"\d+", dtype)
    if bits is None and dtype != "bool":
        raise PassError(f"unknown dtype {dtype!r}", where="plan_reshard", fix="use NumPy's names")
    size = -(-int(bits[0]) // 8) if bits else 1
    ends = [
        ([*map(int, mesh[0])], [*map(int, mesh[1])], [[*map(int, axes)] for axes in spec])
        for mesh, spec in ((source_mesh, source_spec), (target_mesh, target_spec))
    ]
    (source, target) = ((end[:2], end[2]) for end in ends)
    return _call(_planner(cluster).plan, size, [*map(int, shape)], *source, *target, strategy)


def cluster_presets() -> list[str]:
    """Names of the built-in clusters."""
    return list(_native().cluster_presets())


@cache
def sharding_methods() -> dict[str, str]:
    """What `method` of a search method may be, and what each fixes; `docs/methods.md`.

    Example:
        >>> "zero-2" in sharding_methods()
        True
    """
    return dict(_native().sharding_methods())


@cache
def pipeline_methods() -> dict[str, str]:
    """What `pipeline` of `AutoParallel` may be, and what each fixes; `docs/methods.md`.

    Example:
        >>> "equal-layer" in pipeline_methods()
        True
    """
    return dict(_native().pipeline_methods())


@dataclass(frozen=True)
class ScheduleInfo:
    """A row of the compiler's table of schedules.

    Attributes:
        summary: what it does.
        splits_backward: it runs a stage's input and weight gradients apart.
        takes_several_stages: on one mesh.
        forward_only: it has no backward runs.
        stages_per_mesh: if no one says how many.
        in_v: stages lie on the meshes in a V, else in rounds.
    """

    summary: str
    splits_backward: bool
    takes_several_stages: bool
    forward_only: bool
    stages_per_mesh: int
    in_v: bool


@cache
def schedule_table() -> dict[str, ScheduleInfo]:
    """All schedules of the compiler by name, `custom` among them; `docs/schedules.md`.

    Example:
        >>> schedule_table()["zb-h1"].splits_backward
        True
    """
    return {name: ScheduleInfo(*row) for name, *row in _native().schedules()}


@cache
def schedules() -> dict[str, str]:
    """What `schedule` of a method may be by name, and what each does.

    Example:
        >>> "gpipe" in schedules()
        True
    """
    return {name: row.summary for name, row in schedule_table().items() if name != "custom"}


def schedule_steps(name: str, problem: dict[str, Any]) -> list[list[tuple[str, int, int]]]:
    """Steps of each mesh; the door of `schedule.generate_steps`.

    Raises:
        MethodError: the schedule is unknown or does not take the problem.
    """
    return _call(_native().schedule_steps, name, problem)


def schedule_kept(name: str, problem: dict[str, Any]) -> list[int]:
    """Activations that each mesh keeps at most; the door of `schedule.most_kept`.

    Raises:
        MethodError: the schedule is unknown.
    """
    return _call(_native().schedule_kept, name, problem)


def schedule_spans(name: str, problem: dict[str, Any]) -> list[tuple[float, float]]:
    """First begin and last end of each mesh's runs; the door of `schedule.spans`.

    Raises:
        MethodError: the schedule is unknown or does not take the problem.
    """
    return _call(_native().schedule_spans, name, problem)


def _unknown_op(error: _CompilerError, text: str, name: str) -> UnsupportedOpError | None:
    """MLIR's parser says where an op stands that no dialect has; say which one it is."""
    lines = text.splitlines()
    # An op may have the place where the user's program makes it.
    in_text = error.file == name and 0 < error.line <= len(lines)
    if error.code != UnsupportedOpError.code or not in_text:
        return None
    line, column = lines[error.line - 1], error.column - 1
    # The generic form is reported after the op's quoted name or at its results, the pretty form
    # at its name.
    found = re.search(r'"([\w$.-]+)"$', line[:column])
    at_name = re.compile(r'(?<![.!])(?:%[^="]*= *)?"?([\w$.-]+)')  # Not within a type's.
    found = found or at_name.match(line, column)
    if found is None:
        return None
    what = f"unknown op '{found[1]}'"
    fix = "use ops of StableHLO, CHLO, Shardy and func; `alpa-opt --help` lists the dialects"
    if len(error.notes) > 1:  # Why StableHLO's op is not supported, before those that are.
        what, _, fix = error.notes[0].partition("; ")
    return UnsupportedOpError(what, where=error.where, fix=fix)


class Module:
    """A module inside the compiler.

    Example:
        >>> module = Module(text).run("alpa-import,alpa-cluster-layers")  # doctest: +SKIP
        >>> print(module.as_text())                                       # doctest: +SKIP
    """

    def __init__(self, text: str, name: str = "<module>", *, threads: int = 0) -> None:
        """Parse a module.

        Args:
            threads: that passes run on; 0 for one a core. They do not change what passes make.

        Raises:
            ModuleSyntaxError: the text is malformed.
            UnsupportedOpError: it holds an op that the dialects do not define.
        """
        try:
            self._handle = _native().parse_module(text, name, threads)
        except _native().CompilerError as error:
            raise _unknown_op(error, text, name) or _named(error) from None

    def clone(self) -> Module:
        """A copy to run other passes on; it must not be used while this one is at work."""
        copy = object.__new__(Module)
        copy._handle = self._handle.clone()
        return copy

    def annotate(self, signature_json: str) -> Module:
        """Set what the tracer knows about the arguments and results of `@main`."""
        _call(self._handle.annotate, signature_json)
        return self

    def run(self, pipeline: str) -> Module:
        """Run passes, written as for `alpa-opt --pass-pipeline`, on this module.

        Raises:
            UnsupportedOpError, InfeasiblePlanError, MethodError, PassError: by the cause.
        """
        _call(self._handle.run_pipeline, pipeline)
        return self

    def predicted(self) -> dict[str, float]:
        """What a search foresaw: `step_seconds` and others, the number of `stages`, of
        `rematerialized_stages` among them, and `peak_bytes`, the most memory that a device
        needs."""
        return dict(self._handle.predicted())

    def predicted_stages(self) -> list[dict[str, float]]:
        """The number of `layers` and `devices` of each stage, and what a search foresaw of it:
        `forward_seconds` of a micro-batch, `peak_bytes` and others, where that time goes
        (`compute_seconds` of a step and others, docs/explain.md), and the kernels of a run of each
        phase (`forward_kernels`)."""
        return [dict(stage) for stage in self._handle.predicted_stages()]

    def stage_devices(self) -> list[tuple[int, ...]]:
        """The devices of each stage."""
        return [tuple(devices) for devices in self._handle.stage_devices()]

    def chosen_schedule(self) -> str:
        """The schedule that a search chose."""
        return self._handle.chosen_schedule()

    def padded(self) -> list[str]:
        """Sizes of dimensions that were made longer: `["50257 to 50304"]`."""
        return list(self._handle.padded())

    def as_text(self, *, generic: bool = False, debug_info: bool = False) -> str:
        """The module in MLIR's textual form."""
        return self._handle.to_text(generic, debug_info)

    def export_plan(self) -> Plan:
        """The plan of a module that has gone through every pass."""
        text, modules = _call(self._handle.export_plan)
        return Plan.from_json(text, modules, check_programs=False)


class Problem:
    """An intra-op optimization problem inside the compiler."""

    def __init__(self, text: str, name: str = "<problem>") -> None:
        """Parse a problem in the JSON form of the IOPDDL contest.

        Raises:
            ProblemFormatError: malformed text, or a size or number out of range; says the line.
        """
        self.name = name
        self._handle = _call(_native().parse_problem, text, where=name)

    def solve(
        self,
        method: str,
        *,
        time_limit_seconds: float,
        spent_seconds: float,
        gap: float,
        threads: int,
        seed: int,
        library: str,
    ) -> dict[str, Any]:
        """The answer of a solver as named values; costs as decimal digits.

        Raises:
            SolverError: the solver is missing or failed.
        """
        return _call(
            _native().solve_problem,
            self._handle,
            method,
            time_limit_seconds,
            spent_seconds,
            gap,
            threads,
            seed,
            library,
            where=self.name,
        )

    def as_ilp(self) -> Any:
        """The problem as an integer linear program (compiler/Solver/Backends/Ilp.h)."""
        return _call(_native().Ilp, self._handle, where=self.name)


def solver_methods() -> dict[str, str]:
    """Names of the solvers and what they are; the default comes first."""
    return dict(_native().solver_methods())
