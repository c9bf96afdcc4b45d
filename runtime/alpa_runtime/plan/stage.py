"""The stages of a plan: their meshes, the functions of their modules, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from alpa_runtime.plan.tensor import Spec, TensorReader, TensorSpec
from alpa_runtime.plan.text import Node, ranges_text

MOST_DEVICES = 1 << 22  # Of a cluster.


@dataclass(frozen=True)
class MeshInfo:
    """A logical mesh: sizes and names of its axes, and device numbers in row-major order."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    devices: tuple[int, ...]

    @classmethod
    def read(cls, node: Node) -> MeshInfo:
        mesh = cls(
            node.get("shape").shape(),
            tuple(axis.string() for axis in node.get("axes").items()),
            tuple(n.integer(maximum=MOST_DEVICES - 1) for n in node.get("devices").items()),
        )
        size = prod(mesh.shape)
        if not size:
            raise node.get("shape").error(f"got {list(mesh.shape)}", "at least one device")
        if len(set(mesh.axes)) != len(mesh.axes):
            raise node.get("axes").error(f"got {list(mesh.axes)}", "different names")
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
    def read(cls, node: Node, tensors: TensorReader) -> FunctionInfo:
        return cls(
            tuple(map(tensors.read, node.get("inputs").items())),
            tuple(map(tensors.read, node.get("outputs").items())),
        )

    def to_json(self) -> dict[str, Any]:
        ports = {"inputs": self.inputs, "outputs": self.outputs}
        return {name: [tensor.to_text() for tensor in port] for name, port in ports.items()}


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
        return cls(node.get("name").string(), node.get("shape").shape(), spec)


_SOLVER_NUMBERS = ("objective_seconds", "lower_bound_seconds", "gap", "nodes", "choices")


def _read_solver(node: Node) -> dict[str, Any]:
    """What the solver says of its choice; for people."""
    node.plain(finite=True)
    for name, field in node.fields():
        if name == "status":
            field.string()
        elif name in _SOLVER_NUMBERS and field.value is not None:
            field.signed()
    return dict(node.mapping())


EXPORTS = ("shardy", "collectives")


@dataclass(frozen=True)
class StageInfo:
    """One stage: its mesh, layer range [lo, hi), module and what the search foresaw.

    `explanation` names the file that says where the stage's time goes (`Plan.explanation`).

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
    explanation: str | None = None

    @classmethod
    def read(cls, node: Node, tensors: TensorReader) -> StageInfo:
        layers = node.get("layers").dims()
        if len(layers) != 2 or layers[0] > layers[1]:
            raise node.get("layers").error(f"got {list(layers)}", "the range [first, end)")
        return cls(
            node.get("mesh").integer(),
            (layers[0], layers[1]),
            node.get("module").name(),
            node.get("export").choice(*EXPORTS) if "export" in node.mapping() else EXPORTS[0],
            MappingProxyType(
                {
                    name: FunctionInfo.read(item, tensors)
                    for name, item in node.get("functions").fields()
                }
            ),
            node.optional("predicted").numbers(),
            MappingProxyType(_read_solver(node.optional("solver"))),
            tuple(WeightInfo.read(item) for item in node.optional("weights").items()),
            node.optional("explanation").optional_string(),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "mesh": self.mesh,
            "layers": self.layers,
            "module": self.module,
            "export": self.export,
            "functions": {name: item.to_json() for name, item in self.functions.items()},
            "predicted": dict(self.predicted),
            "solver": dict(self.solver),
            "explanation": self.explanation,
            "weights": [asdict(weight) for weight in self.weights],
        }
