"""The signature of a traced step: what its inputs and outputs are, as data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["state", "batch"]


@dataclass(frozen=True)
class Input:
    """One flattened input of the step.

    Attributes:
        name: tree path, such as `state.params['h0']['kernel']`.
        shape: of the whole array. Typed PRNG keys appear as their data.
        dtype: NumPy's name.
        kind: `"batch"` may be split into micro-batches along dimension 0, `"state"` may not.
        carried_by: index of the output that is this state's value for the next step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    carried_by: int | None = None


@dataclass(frozen=True)
class Output:
    """One flattened output of the step.

    Attributes:
        name: tree path, such as `result[1]['loss']`.
        shape: of the whole array.
        dtype: NumPy's name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a traced step, in flattening order.

    Attributes:
        name: name of the traced function.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        carried = [i.carried_by for i in self.inputs if i.carried_by is not None]
        if len(set(carried)) != len(carried):
            raise ValueError("two inputs are carried by the same output")
        for item in self.inputs:
            if item.carried_by is None:
                continue
            output = self.outputs[item.carried_by]
            if item.kind != "state":
                raise ValueError(f"{item.name}: only state is carried")
            if (item.shape, item.dtype) != (output.shape, output.dtype):
                raise ValueError(f"{item.name} and {output.name} differ in shape or dtype")

    @property
    def batch_size(self) -> int:
        """Examples of a step: rows of its batch inputs; 1 if there are none."""
        return next((x.shape[0] for x in self.inputs if x.kind == "batch"), 1)

    def to_json(self) -> str:
        """JSON text of the form that docs/architecture.md describes."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Signature:
        """The inverse of `to_json`."""
        data: dict[str, Any] = json.loads(text)

        def made(cls: Callable[..., Any], items: list[dict[str, Any]]) -> tuple[Any, ...]:
            for item in items:
                item["shape"] = tuple(item["shape"])
            return tuple(cls(**item) for item in items)

        data.update(inputs=made(Input, data["inputs"]), outputs=made(Output, data["outputs"]))
        return Signature(**data)
