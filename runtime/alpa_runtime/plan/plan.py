"""The plan: what the compiler decided, as a versioned folder that needs no compiler to run.

A plan is `plan.json` and one StableHLO module per stage; docs/architecture.md gives the
form. Reading checks every field by itself (`PlanFormatError` names the field); whether the
parts fit together is checked when the plan is loaded for running (`PlanMismatchError`).

Example:
    >>> plan = Plan.load("my_plan")            # doctest: +SKIP
    >>> print(plan.as_text())                  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alpa_runtime.argument_types import checks_types
from alpa_runtime.errors import PlanFormatError, PlanMismatchError
from alpa_runtime.plan.binaries import Binary, read_binaries, write_binaries
from alpa_runtime.plan.check import check_references, cluster_difference, signature_difference
from alpa_runtime.plan.diff import PlanDiff, diff_plans
from alpa_runtime.plan.interface import (
    CallInfo,
    Exactness,
    InputInfo,
    OutputInfo,
    join_pieces,
    owner_numbers,
)
from alpa_runtime.plan.json_nodes import Node, pretty
from alpa_runtime.plan.program import ProgramInfo
from alpa_runtime.plan.reshard import ReshardInfo
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.tensor import TensorReader
from alpa_runtime.plan.text import plan_table
from alpa_runtime.plan.tried import Tried

FORMAT = "alpa_mlir.plan"
VERSION = 3


@dataclass(frozen=True)
class Plan:
    """Everything that running a step needs, apart from devices.

    Attributes:
        name: of the user's function.
        cluster: description of the cluster that the plan was made for.
        modules: file name to StableHLO text, one per stage.
        compiler: version of the compiler that made the plan.
        reshards: how tensors get from mesh to mesh; sends and receives name them by number.
        binaries: programs that were compiled ahead of time.
        explanations: file name to JSON text, for people; see `explanation`.
        fingerprint: of the traced step that the plan was made for; None if it was not traced.
        call: how the step is called; None if nobody has said.
        predicted: seconds and bytes of the whole step, as the search foresaw them.
        tried: the numbers of micro-batches that the search looked at, and other candidates; empty
            if nobody has said.
        exactness: whether results are those of the whole batch, and by what means.
    """

    name: str
    cluster: Mapping[str, Any]
    num_micro_batches: int
    schedule: str
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    meshes: tuple[MeshInfo, ...]
    stages: tuple[StageInfo, ...]
    predicted: Mapping[str, float]
    programs: tuple[ProgramInfo, ...]
    modules: Mapping[str, str] = field(repr=False)
    compiler: str = ""
    explanations: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    fingerprint: str | None = None
    call: CallInfo | None = field(default=None, repr=False)
    reshards: tuple[ReshardInfo, ...] = field(default=(), repr=False)
    binaries: tuple[Binary, ...] = field(default=(), repr=False, compare=False)
    tried: tuple[Tried, ...] = field(default=(), repr=False)
    exactness: Exactness = field(default_factory=Exactness, repr=False)

    @classmethod
    def from_json(
        cls,
        text: str,
        files: Mapping[str, str],
        where: str = "plan.json",
        *,
        check_programs: bool = True,
        check_modules: bool = True,
    ) -> Plan:
        """Read a plan from the text of `plan.json` and the files beside it.

        Args:
            files: name to text: the stage modules, and what explains the stages, if wanted.
            check_programs: read the instructions now, not when they are first asked for.
            check_modules: every stage's module must be there; a worker needs its own only.

        Raises:
            PlanFormatError: a field is missing or malformed, or a module is missing.
        """
        try:
            root = Node(json.loads(text), where)
        except (json.JSONDecodeError, RecursionError) as error:
            raise PlanFormatError(
                f"not JSON: {error}", where=where, fix="write the plan again with Plan.save"
            ) from None
        root.get("format").choice(FORMAT)
        version = root.get("version").integer()
        if version != VERSION:
            raise PlanFormatError(
                f"version {version}, expected {VERSION}",
                where=f"{where}: version",
                fix="plan the step again with this version of alpa_mlir",
            )
        tensors = TensorReader()
        plan = cls(
            root.get("name").string(),
            MappingProxyType(dict(root.optional("cluster").mapping())),
            root.get("num_micro_batches").integer(minimum=1),
            root.get("schedule").string(),
            tuple(InputInfo.read(item) for item in root.get("inputs").items()),
            tuple(OutputInfo.read(item) for item in root.get("outputs").items()),
            tuple(MeshInfo.read(item) for item in root.get("meshes").items()),
            tuple(StageInfo.read(item, tensors) for item in root.get("stages").items()),
            root.optional("predicted").numbers(),
            tuple(ProgramInfo.read(item, tensors) for item in root.get("programs").items()),
            MappingProxyType({k: v for k, v in files.items() if k.endswith(".mlir")}),
            root.get("compiler").string(),
            MappingProxyType({k: v for k, v in files.items() if not k.endswith(".mlir")}),
            root.optional("fingerprint").optional_string(),
            CallInfo.read(root.get("call")) if root.mapping().get("call") is not None else None,
            tuple(ReshardInfo.read(item, tensors) for item in root.get("reshards").items()),
            tried=tuple(Tried.read(item) for item in root.optional("tried").items()),
            exactness=Exactness.read(root.optional("micro_batches")),
        )
        check_references(plan, root)
        if check_programs:
            for program in plan.programs:
                len(tuple(program.instructions))
        for index, stage in enumerate(plan.stages):
            if check_modules and stage.module not in plan.modules:
                raise PlanFormatError(
                    f"module file {stage.module!r} is missing",
                    where=f"{where}: stages[{index}].module",
                    fix="copy the whole plan folder",
                )
        return plan

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the text that is kept on disk."""
        return _from_pickle, (self.to_json(), {**self.modules, **self.explanations})

    @classmethod
    @checks_types
    def load(cls, folder: str | Path) -> Plan:
        """Read the plan that `save` wrote to `folder`.

        Raises:
            PlanFormatError: the folder holds no plan, or a malformed one.
        """
        folder = Path(folder)
        path = folder / "plan.json"
        text = _read(path)
        files = [p for form in ("*.mlir", "*.explain.json") for p in sorted(folder.glob(form))]
        plan = cls.from_json(text, {p.name: _read(p) for p in files}, str(path))
        return replace(plan, binaries=read_binaries(folder))

    @checks_types
    def save(self, folder: str | Path) -> Path:
        """Write `plan.json` and the stage modules to `folder`, which is made if needed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (*self.modules.items(), *self.explanations.items()):
            (folder / name).write_text(text)
        (folder / "plan.json").write_text(self.to_json())
        if self.binaries:
            write_binaries(folder, self.binaries)
        return folder

    def to_json(self) -> str:
        """The text of `plan.json`; `from_json` reads it back to an equal plan."""
        fields = {
            "format": FORMAT,
            "version": VERSION,
            "compiler": self.compiler,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "call": None if self.call is None else self.call.to_json(),
            "cluster": dict(self.cluster),
            "num_micro_batches": self.num_micro_batches,
            "micro_batches": asdict(self.exactness),
            "schedule": self.schedule,
            "inputs": [asdict(item) for item in self.inputs],
            "outputs": [asdict(item) for item in self.outputs],
            "meshes": [asdict(mesh) for mesh in self.meshes],
            "stages": [stage.to_json() for stage in self.stages],
            "predicted": dict(self.predicted),
            "tried": [asdict(item) for item in self.tried],
            "reshards": [reshard.to_json() for reshard in self.reshards],
            "programs": [program.to_json() for program in self.programs],
        }
        return pretty(fields) + "\n"

    def explanation(self, stage: int) -> Mapping[str, Any] | None:
        """Where a stage's time goes and what else was close (docs/explain.md).

        None if the plan does not say, or came without that file.

        Raises:
            PlanFormatError: the file is no JSON object.
        """
        name = self.stages[stage].explanation
        if name is None or name not in self.explanations:
            return None
        try:
            return Node(json.loads(self.explanations[name]), name).mapping()
        except (json.JSONDecodeError, RecursionError) as error:
            raise PlanFormatError(f"not JSON: {error}", where=name) from None

    def check(
        self, *, traced: Any = None, cluster: Any = None, compiler: str | None = None
    ) -> None:
        """Refuse a plan that was made for something else.

        Args:
            traced: a step, as `alpa_mlir.trace.tracing.trace` gives it.
            cluster: an `alpa_mlir.Cluster`.
            compiler: version of the compiler that should have made the plan.

        Raises:
            PlanMismatchError: names the first difference.
        """
        where = f"plan of {self.name}"
        fix = "plan the step again"
        if compiler is not None and compiler != self.compiler:
            raise PlanMismatchError(
                f"made by compiler {self.compiler}, this is {compiler}", where=where, fix=fix
            )
        if traced is not None:
            found = signature_difference(self, traced.signature)
            if found is None and self.fingerprint not in (None, traced.fingerprint):
                found = (
                    "the step computes something else than the one that was planned, from and to "
                    "arrays of the same names and shapes"
                )
            if found:
                raise PlanMismatchError(found, where=where, fix=fix)
        if cluster is not None:
            found = cluster_difference(self.cluster, json.loads(cluster.text))
            if found:
                raise PlanMismatchError(found, where=where, fix=fix)

    def diff(self, other: Plan) -> PlanDiff:
        """What another plan decides otherwise: stages, meshes, shardings, schedule, costs.

        Example:
            >>> print(plan.diff(Plan.load("older")).as_text())   # doctest: +SKIP
        """
        return diff_plans(self, other)

    @property
    def arguments(self) -> tuple[InputInfo, ...]:
        """The function's arguments, stacks of layers whole; `carried_by` counts `results`."""
        result_of = owner_numbers(self.outputs)
        return tuple(
            replace(info, carried_by=None if (r := info.carried_by) is None else result_of[r])
            for info in join_pieces(self.inputs)
            if info.is_given
        )

    @property
    def added_inputs(self) -> tuple[InputInfo, ...]:
        """The last inputs, which callers do not give: the micro-batches' numbers, and whole
        arguments of which the micro-batches have parts."""
        return tuple(info for info in self.inputs if not info.is_given)

    @property
    def results(self) -> tuple[OutputInfo, ...]:
        """The function's results, stacks of layers whole."""
        return tuple(join_pieces(self.outputs))

    @property
    def num_devices(self) -> int:
        """How many devices a process must have: the highest device number plus one."""
        return 1 + max(device for mesh in self.meshes for device in mesh.devices)

    def as_text(self, weights: int = 4) -> str:
        """A table of the stages, with the sharding of each stage's `weights` largest weights."""
        return plan_table(self, weights)


def _from_pickle(text: str, files: Mapping[str, str]) -> Plan:
    return Plan.from_json(text, files, "pickled plan", check_programs=False, check_modules=False)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise PlanFormatError(
            f"cannot read the plan: {reason}",
            where=str(path),
            fix="give a folder that Plan.save wrote",
        ) from None
