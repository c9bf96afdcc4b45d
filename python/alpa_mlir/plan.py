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
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from alpa_mlir.errors import PlanFormatError
from alpa_mlir.plan_json import Node, encode
from alpa_mlir.plan_text import plan_table, ranges_text, spec_text

FORMAT = "alpa_mlir.plan"
VERSION = 1

Spec = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor on a mesh: its whole shape, NumPy dtype name and the axes that split it."""

    shape: tuple[int, ...]
    dtype: str
    spec: Spec

    @classmethod
    def read(cls, node: Node) -> TensorSpec:
        shape = node.get("shape").dims()
        spec = tuple(
            tuple(axis.string() for axis in dim.items()) for dim in node.get("spec").items()
        )
        if len(spec) != len(shape):
            raise node.get("spec").error(
                f"{len(spec)} dimensions, but the shape has {len(shape)}", "one list per dimension"
            )
        return cls(shape, node.get("dtype").string(), spec)

    def as_text(self) -> str:
        dims = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype}[{dims}] {spec_text(self.spec)}"


@dataclass(frozen=True)
class InputInfo:
    """An argument of the step; `shape` of a batch argument is that of one micro-batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    carried_by: int | None

    @classmethod
    def read(cls, node: Node) -> InputInfo:
        return cls(
            node.get("name").string(),
            node.get("shape").dims(),
            node.get("dtype").string(),
            node.get("kind").choice("state", "batch"),
            node.get("carried_by").optional_integer(),
        )


@dataclass(frozen=True)
class OutputInfo:
    """A result of the step; `reduction` says how micro-batches become one value."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reduction: str | None

    @classmethod
    def read(cls, node: Node) -> OutputInfo:
        reduction = node.get("reduction")
        return cls(
            node.get("name").string(),
            node.get("shape").dims(),
            node.get("dtype").string(),
            None if reduction.value is None else reduction.choice("mean", "sum", "concat"),
        )


@dataclass(frozen=True)
class MeshInfo:
    """A logical mesh: sizes and names of its axes, and device numbers in row-major order."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    devices: tuple[int, ...]

    @classmethod
    def read(cls, node: Node) -> MeshInfo:
        mesh = cls(
            node.get("shape").dims(),
            tuple(axis.string() for axis in node.get("axes").items()),
            node.get("devices").dims(),
        )
        size = 1
        for extent in mesh.shape:
            size *= extent
        if len(mesh.axes) != len(mesh.shape):
            raise node.get("axes").error(
                f"{len(mesh.axes)} names for {len(mesh.shape)} axes", "one name per axis"
            )
        if size != len(mesh.devices) or len(set(mesh.devices)) != size:
            raise node.get("devices").error(
                f"got {list(mesh.devices)}", f"{size} different device numbers"
            )
        return mesh

    def as_text(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{shape} on devices {ranges_text(self.devices)}"


@dataclass(frozen=True)
class FunctionInfo:
    """Arguments and results of one function of a stage module."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def read(cls, node: Node) -> FunctionInfo:
        return cls(
            tuple(TensorSpec.read(item) for item in node.get("inputs").items()),
            tuple(TensorSpec.read(item) for item in node.get("outputs").items()),
        )


@dataclass(frozen=True)
class WeightInfo:
    """A state argument that a stage owns, for people to read."""

    name: str
    shape: tuple[int, ...]
    spec: Spec

    @classmethod
    def read(cls, node: Node) -> WeightInfo:
        spec = tuple(
            tuple(axis.string() for axis in dim.items()) for dim in node.get("spec").items()
        )
        return cls(node.get("name").string(), node.get("shape").dims(), spec)


EXPORTS = ("shardy", "collectives")


@dataclass(frozen=True)
class StageInfo:
    """One stage: its mesh, layer range [lo, hi), module and what the search foresaw.

    `export` says what the module is: the whole program with Shardy annotations (`"shardy"`), or
    the program of one device with explicit collectives (`"collectives"`).
    """

    mesh: int
    layers: tuple[int, int]
    module: str
    export: str
    functions: Mapping[str, FunctionInfo]
    predicted: Mapping[str, float]
    solver: Mapping[str, Any]
    weights: tuple[WeightInfo, ...]

    @classmethod
    def read(cls, node: Node) -> StageInfo:
        layers = node.get("layers").dims()
        if len(layers) != 2:
            raise node.get("layers").error(f"got {list(layers)}", "the range [first, end)")
        return cls(
            node.get("mesh").integer(),
            (layers[0], layers[1]),
            node.get("module").string(),
            node.get("export").choice(*EXPORTS) if "export" in node.mapping() else EXPORTS[0],
            MappingProxyType(
                {name: FunctionInfo.read(item) for name, item in node.get("functions").fields()}
            ),
            node.optional("predicted").numbers(),
            MappingProxyType(dict(node.optional("solver").mapping())),
            tuple(WeightInfo.read(item) for item in node.optional("weights").items()),
        )


@dataclass(frozen=True)
class InputOp:
    """Place argument `arg` (of one micro-batch, or whole) on the mesh."""

    op: ClassVar[str] = "input"
    slot: int
    arg: int
    micro_batch: int | None
    tensor: TensorSpec


@dataclass(frozen=True)
class RunOp:
    """Run a function of a stage."""

    op: ClassVar[str] = "run"
    stage: int
    function: str
    micro_batch: int | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class SendOp:
    """Send a value to another mesh; `tag` pairs it with one receive."""

    op: ClassVar[str] = "send"
    slot: int
    to: int
    tag: int


@dataclass(frozen=True)
class RecvOp:
    """Receive a value in the sharding that this mesh wants."""

    op: ClassVar[str] = "recv"
    slot: int
    source: int
    tag: int
    tensor: TensorSpec


@dataclass(frozen=True)
class AccumulateOp:
    """`slot = left + right`; left's buffer may be reused."""

    op: ClassVar[str] = "accumulate"
    slot: int
    left: int
    right: int


@dataclass(frozen=True)
class FreeOp:
    """The values are not needed any more."""

    op: ClassVar[str] = "free"
    slots: tuple[int, ...]


@dataclass(frozen=True)
class OutputOp:
    """The value is result `result` of the step (its part of one micro-batch, if given)."""

    op: ClassVar[str] = "output"
    slot: int
    result: int
    micro_batch: int | None


Instruction = InputOp | RunOp | SendOp | RecvOp | AccumulateOp | FreeOp | OutputOp


def _read_instruction(node: Node) -> Instruction:
    op = node.get("op").choice("input", "run", "send", "recv", "accumulate", "free", "output")
    if op == "input":
        return InputOp(
            node.get("slot").integer(),
            node.get("arg").integer(),
            node.optional("micro_batch").optional_integer(),
            TensorSpec.read(node),
        )
    if op == "run":
        return RunOp(
            node.get("stage").integer(),
            node.get("function").string(),
            node.optional("micro_batch").optional_integer(),
            node.get("inputs").dims(),
            node.get("outputs").dims(),
        )
    if op == "send":
        return SendOp(
            node.get("slot").integer(), node.get("to").integer(), node.get("tag").integer()
        )
    if op == "recv":
        return RecvOp(
            node.get("slot").integer(),
            node.get("from").integer(),
            node.get("tag").integer(),
            TensorSpec.read(node),
        )
    if op == "accumulate":
        return AccumulateOp(
            node.get("slot").integer(), node.get("left").integer(), node.get("right").integer()
        )
    if op == "free":
        return FreeOp(node.get("slots").dims())
    return OutputOp(
        node.get("slot").integer(),
        node.get("result").integer(),
        node.optional("micro_batch").optional_integer(),
    )


@dataclass(frozen=True)
class ProgramInfo:
    """The instructions of one mesh, in order; `slots` is the number of buffers' names."""

    mesh: int
    slots: int
    instructions: tuple[Instruction, ...]

    @classmethod
    def read(cls, node: Node) -> ProgramInfo:
        return cls(
            node.get("mesh").integer(),
            node.get("slots").integer(),
            tuple(_read_instruction(item) for item in node.get("instructions").items()),
        )


@dataclass(frozen=True)
class Plan:
    """Everything that running a step needs, apart from devices.

    Attributes:
        name: of the user's function.
        cluster: description of the cluster that the plan was made for.
        modules: file name to StableHLO text, one per stage.
        predicted: seconds and bytes of the whole step, as the search foresaw them.
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

    @classmethod
    def from_json(cls, text: str, modules: Mapping[str, str], where: str = "plan.json") -> Plan:
        """Read a plan from the text of `plan.json` and its stage modules.

        Raises:
            PlanFormatError: a field is missing or malformed, or a module is missing.
        """
        try:
            root = Node(json.loads(text), where)
        except json.JSONDecodeError as error:
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
        plan = cls(
            root.get("name").string(),
            MappingProxyType(dict(root.optional("cluster").mapping())),
            root.get("num_micro_batches").integer(minimum=1),
            root.get("schedule").string(),
            tuple(InputInfo.read(item) for item in root.get("inputs").items()),
            tuple(OutputInfo.read(item) for item in root.get("outputs").items()),
            tuple(MeshInfo.read(item) for item in root.get("meshes").items()),
            tuple(StageInfo.read(item) for item in root.get("stages").items()),
            root.optional("predicted").numbers(),
            tuple(ProgramInfo.read(item) for item in root.get("programs").items()),
            MappingProxyType(dict(modules)),
        )
        for index, stage in enumerate(plan.stages):
            if stage.module not in plan.modules:
                raise PlanFormatError(
                    f"module file {stage.module!r} is missing",
                    where=f"{where}: stages[{index}].module",
                    fix="copy the whole plan folder",
                )
        return plan

    @classmethod
    def load(cls, folder: str | Path) -> Plan:
        """Read the plan that `save` wrote to `folder`.

        Raises:
            PlanFormatError: the folder holds no plan, or a malformed one.
        """
        folder = Path(folder)
        path = folder / "plan.json"
        try:
            text = path.read_text()
        except OSError as error:
            raise PlanFormatError(
                f"cannot read the plan: {error.strerror}",
                where=str(path),
                fix="give a folder that Plan.save wrote",
            ) from None
        return cls.from_json(
            text, {p.name: p.read_text() for p in folder.glob("*.mlir")}, str(path)
        )

    def save(self, folder: str | Path) -> Path:
        """Write `plan.json` and the stage modules to `folder`, which is made if needed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.modules.items():
            (folder / name).write_text(text)
        (folder / "plan.json").write_text(self.to_json())
        return folder

    def to_json(self) -> str:
        """The text of `plan.json`; `from_json` reads it back to an equal plan."""
        return encode(self, FORMAT, VERSION)

    @property
    def num_devices(self) -> int:
        """How many devices a process must have: the highest device number plus one."""
        return 1 + max(device for mesh in self.meshes for device in mesh.devices)

    def as_text(self, weights: int = 4) -> str:
        """A table of the stages, with the sharding of each stage's `weights` largest weights."""
        return plan_table(self, weights)
