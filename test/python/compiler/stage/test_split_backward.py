"""The two parts of a split backward function compute what the whole function computes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import per_device
import pytest
import zoo
from alpa_mlir import PipeshardParallel
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace
from alpa_runtime.execution.compilation import FunctionText, split_functions
from clusters import slow_links

MESH = (2, 2)
DTYPES = {"f32": np.float32, "i32": np.int32, "ui32": np.uint32, "i1": np.bool_}
LOWER = (
    "alpa-insert-reshards,alpa-optimize-collectives,alpa-verify-sharding,alpa-lower-to-collectives"
)
CLUSTER = slow_links(8)


@dataclass(frozen=True)
class Port:
    """An argument or a result: its value id and its spec."""

    value: int
    spec: str


@dataclass(frozen=True)
class Function:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    text: FunctionText

    def __call__(self, values: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The results of values by id; devices that repeat a result are checked to agree."""
        found = per_device.execute_function(
            self.text.text,
            [port.spec for port in self.inputs],
            [port.spec for port in self.outputs],
            MESH,
            [values[port.value] for port in self.inputs],
        )
        return {port.value: x for port, x in zip(self.outputs, found, strict=True)}


def _ports(text: str) -> tuple[Port, ...]:
    found = re.findall(r"sharding<(\[[^>]*\])>[^}]*?alpa\.value = (\d+)", text)
    return tuple(Port(int(value), spec) for spec, value in found)


def _functions(module: Module, stage: int) -> dict[str, Function]:
    """What a lowered step holds for a stage."""
    text = module.as_text()
    start = text.index(f"  module @stage_{stage} ")
    text = text[start : text.index("\n  }\n", start) + 4]
    found = {}
    for name, function in split_functions(text, {}, f"stage {stage}").items():
        head = next(x for x in text.splitlines() if f"func.func @{name}(" in x)
        arguments, _, results = head.partition(") -> (")
        found[name] = Function(_ports(arguments), _ports(results), function)
    return found


def sliced_step(model: zoo.Model, folder: Path, remat: str = "none") -> Module:
    """The step in two stages on meshes of their own; the last one sends a gradient back."""
    state, batch = model.init()
    traced = trace(model.step, state, batch)
    module = Module(traced.text).annotate(traced.signature.to_json())
    method = PipeshardParallel(
        submeshes=[(1, 4), (1, 4)],
        mesh_shapes=[(1, 4), MESH],
        num_micro_batches=2,
        micro_batch_semantics="relaxed",  # wide_resnet has statistics of its batch.
        remat=remat,
        method="data-parallel" if remat == "all" else "auto",
    )
    cluster = folder / "cluster.yaml"
    CLUSTER.save(cluster)
    module.run(f"{method.import_passes(CLUSTER)},{method.layer_passes(2)}")
    module.run(method.search_passes(CLUSTER, str(cluster), 2))
    return module.run("alpa-defer-sums,alpa-slice-stages")


def _drawn(function: Function) -> dict[int, np.ndarray]:
    """Arguments for a function, by value id."""
    rng = np.random.default_rng(0)
    values = {}
    for port, (part, dtype) in zip(function.inputs, function.text.inputs, strict=True):
        specs = port.spec.strip("[]").split(", ") if part else []
        shape = [
            size * math.prod(MESH[int(axis)] for axis in spec if axis.isdigit())
            for size, spec in zip(part, specs, strict=True)
        ]
        if dtype.startswith("f"):
            values[port.value] = rng.standard_normal(shape).astype(DTYPES[dtype])
        else:
            values[port.value] = rng.integers(0, 2, shape).astype(DTYPES[dtype])
    return values


@pytest.mark.parametrize(
    ("name", "remat"),
    [("gpt", "none"), ("gpt", "all"), ("moe", "none"), ("wide_resnet", "none"), ("vit", "none")],
)
def test_parts_make_the_whole(name: str, remat: str, tmp_path: Path) -> None:
    module = sliced_step(zoo.get(name), tmp_path, remat)
    whole = _functions(module.clone().run(LOWER), 1)["backward"]
    split = module.run("alpa-split-backward{always=true}").run(LOWER)
    assert {"backward"} <= set(_functions(split, 0)), "has nothing to send back"
    parts = _functions(split, 1)
    first, second = parts["backward_input"], parts["backward_weight"]
    handed = {p.value for p in first.outputs} & {p.value for p in second.inputs}
    new = handed - {p.value for p in whole.outputs}
    assert handed
    made = [p.value for p in (*first.outputs, *second.outputs)]
    assert sorted(made) == sorted({p.value for p in whole.outputs} | new)
    # No weight's gradient is made before what the stage before waits for.
    awaited = {p.value for p in _functions(split, 0)["backward"].inputs}
    assert {p.value for p in first.outputs} - new == {p.value for p in whole.outputs} & awaited

    values = _drawn(whole)
    expected = whole(values)
    found = first(values)
    found |= second(values | found)
    for value, want in expected.items():
        np.testing.assert_allclose(
            found[value], want, rtol=1e-4, atol=1e-5 * max(np.abs(want).max(), 1e-3)
        )
