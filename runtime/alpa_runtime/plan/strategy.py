"""A plan's strategy in the field's words, and its mesh axes by what they do.

All of it is read from the plan itself: what each axis splits in the products of activations and
weights (`axes` of the stages' explanations), how gradients and results of products lie, and which
products the backward runs compute again. Names of methods do not count.

Example:
    >>> strategy_of(plan).text                                         # doctest: +SKIP
    'pipeline 4 x FSDP 8 x tensor 2, sequence parallel, 32 micro-batches, interleaved x2'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from alpa_runtime.plan.interface import CallInfo, Exactness, InputInfo, example_shape
from alpa_runtime.plan.stage import MeshInfo, StageInfo
from alpa_runtime.plan.text import ranges_text, spec_text

Row = Mapping[str, Any]
_Numbers = dict[str, float]


class Plan(Protocol):
    """What is read of an `alpa_runtime.plan.Plan`."""

    @property
    def stages(self) -> tuple[StageInfo, ...]: ...
    @property
    def meshes(self) -> tuple[MeshInfo, ...]: ...
    @property
    def inputs(self) -> tuple[InputInfo, ...]: ...
    @property
    def num_micro_batches(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def exactness(self) -> Exactness: ...
    @property
    def call(self) -> CallInfo | None: ...
    def explanation(self, stage: int) -> Row | None: ...


# Of what an axis may split, so much has to be split that it counts.
_MOST = 0.5
_WORDS = {
    "ZeRO": "data {} (ZeRO-{})",
    "sequence, split weights": "sequence {} with split weights",
    "whole, split weights": "replicated products {} with split weights",
    "whole products": "replicated products {}",
}
# What an axis of each kind is called beside shardings.
_NAMES = {
    "ZeRO": "data",
    "FSDP": "fsdp",
    "sequence, split weights": "sequence",
    "whole, split weights": "replica",
    "whole products": "replica",
}
_SCHEDULES = {
    "1f1b": "1F1B",
    "1f1b-overlap": "1F1B with overlap",
    "gpipe": "GPipe",
    "breadth-first": "breadth-first",
    "dualpipe-v": "DualPipeV",
    "zb-auto": "zero bubble",
    "zb-h1": "zero bubble (ZB-H1)",
    "zb-v": "zero bubble (ZB-V)",
    "v-half": "zero bubble (V-Half)",
    "v-min": "zero bubble (V-Min)",
    "inference": "",
}


# Names of axes, for shardings that people read.

_SPLIT = re.compile(r"\bS(\d+)\b")
_UNREDUCED = re.compile(r"\b(?:unreduced|partial) (\d[\d ]*)")


_MOST_LISTED = 6  # Shardings of one side; a loop has tens.


def _in_short(side: str) -> str:
    """Shardings of an op's operands or results, of which many are counted: `(14 arrays, of which
    [R, S0] 3 times)`."""
    specs = side.removeprefix("(").removesuffix(")").split(", [")
    if len(specs) <= _MOST_LISTED:
        return side
    specs = [specs[0], *(f"[{spec}" for spec in specs[1:])]
    counts = Counter(s for s in specs if _SPLIT.search(s) or _UNREDUCED.search(s))
    listed = ", ".join(f"{s} {n} times" if n > 1 else s for s, n in counts.items())
    text = f"{len(specs)} arrays, " + (f"of which {listed}" if listed else "all of them whole")
    return f"({text})" if side.startswith("(") else text


@dataclass(frozen=True)
class AxisNames:
    """What the axes of a mesh are called in text.

    Attributes:
        axes: as the plan has them, `x`, `y`, `z`.
        shape: their sizes.
        names: by what they do, `data`, `fsdp`, `tensor`, .., with a number behind where several do
            the same; as in the plan where it does not say.
        kinds: the same without numbers.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def plain(cls, axes: tuple[str, ...], shape: tuple[int, ...]) -> AxisNames:
        """As the plan has them."""
        return cls(axes, shape, axes, axes)

    def dimension(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The names of axes that split a dimension. All axes of one kind are the kind."""
        numbers = [self.axes.index(axis) for axis in axes if axis in self.axes]
        if len(numbers) != len(axes):
            return tuple(axes)
        found: list[str] = []
        while numbers:
            kind = self.kinds[numbers[0]]
            alike = [i for i, k in enumerate(self.kinds) if k == kind and self.shape[i] > 1]
            whole = len(alike) > 1 and numbers[: len(alike)] == alike
            found.append(kind if whole else self.names[numbers[0]])
            numbers = numbers[len(alike) if whole else 1 :]
        return tuple(found)

    def spec(self, spec: Sequence[Sequence[str]]) -> str:
        """A sharding, `[fsdp, R]`."""
        return spec_text([self.dimension(axes) for axes in spec])

    def axis(self, number: int) -> str:
        """An axis by its number."""
        return self.names[number] if number < len(self.names) else f"axis {number}"

    def in_text(self, text: str) -> str:
        """Shardings of an explanation, such as `([S0, R], [R, S1]) -> [S0, S1]`."""

        def named(numbers: str) -> tuple[str, ...]:
            known = [int(n) for n in numbers if n.strip()]
            if not all(n < len(self.axes) for n in known):
                return tuple(f"axis {n}" for n in known)
            return self.dimension([self.axes[n] for n in known])

        text = " -> ".join(_in_short(side) for side in text.split(" -> "))
        text = _SPLIT.sub(lambda match: "*".join(named(match[1])), text)
        return _UNREDUCED.sub(lambda match: f"summed over {'*'.join(named(match[1]))}", text)

    def shape_text(self) -> str:
        """`data 4 x tensor 2`; `2x4` where the plan does not say what axes do."""
        if self.names == self.axes:
            return "x".join(map(str, self.shape))
        sizes: dict[str, int] = {}
        for size, name in zip(self.shape, self.names, strict=True):
            if size > 1:
                sizes[name] = size
        return " x ".join(f"{name} {size}" for name, size in sizes.items()) or "one device"


@dataclass(frozen=True)
class Strategy:
    """How a step is parallelized.

    Attributes:
        text: in one line; empty if the plan does not say.
        axes: of each mesh, what its axes are called.
    """

    text: str
    axes: tuple[AxisNames, ...]


def strategy_of(plan: Plan, explanations: Sequence[Row | None] | None = None) -> Strategy:
    """What a plan says of its parallelism.

    First the sizes: of the pipeline, in groups of devices, and of what is done within each stage.
    An axis of a mesh is named after what it splits in most products of activations and weights
    (by their seconds): examples (data), another dimension of activations (sequence), one of the
    weights (tensor), or experts. It is FSDP where most bytes of the weights are split along the
    same axis too, as ZeRO-3 does; ZeRO-1 where most bytes of the optimizer's state are, and ZeRO-2
    where gradients are as well. One that splits no product has the same products on each of its
    devices. Then sequence parallelism beside tensor parallelism, micro-batches, schedule, and what
    is computed again for gradients. What only some stages do is said of these.

    Args:
        explanations: of each stage, if they have been read.
    """
    if explanations is None:
        explanations = [plan.explanation(index) for index in range(len(plan.stages))]
    return Strategy(
        _text(plan, explanations),
        tuple(_axis_names(plan, mesh, explanations) for mesh in range(len(plan.meshes))),
    )


def strategy_text(plan: Plan) -> str:
    """`Strategy.text` of a plan."""
    return strategy_of(plan).text


def _text(plan: Plan, explanations: Sequence[Row | None]) -> str:
    stages = [_stage_axes(plan, index, found) for index, found in enumerate(explanations)]
    if not any(stages):
        return ""
    inside = _by_stages([text or "not known" for text in stages])
    groups, count = len(plan.meshes), len(plan.stages)
    if groups == 1:
        parts = [inside]
    elif set(stages) == {"one device"}:
        parts = [f"pipeline {groups}"]
    else:
        several = len(set(stages)) > 1
        parts = [f"pipeline {groups} x {f'({inside})' if several else inside}"]
    parts += _some_stages(
        "sequence parallel", [_splits_sequence(plan, i, e) for i, e in enumerate(explanations)]
    )
    experts = [_expert_parts(plan, i, e) for i, e in enumerate(explanations)]
    for size in dict.fromkeys(size for size in experts if size > 1):
        parts += _some_stages(f"expert parallel {size}", [found == size for found in experts])
    if plan.num_micro_batches > 1:
        parts.append(f"{plan.num_micro_batches} micro-batches")
    parts += _schedule(plan, groups, count)
    again = [remat_kind(plan, index, found) for index, found in enumerate(explanations)]
    for kind in dict.fromkeys(kind for kind in again if kind):
        parts += _some_stages(f"remat of {kind}", [found == kind for found in again])
    parts += _some_stages(
        "offload to hosts", [bool(s.predicted.get("host_bytes")) for s in plan.stages]
    )
    return ", ".join(parts)


def _schedule(plan: Plan, groups: int, stages: int) -> Iterator[str]:
    barrier = " with a barrier" if plan.exactness.barriers else ""
    times = f" x{stages // groups}" if stages > groups and stages % groups == 0 else ""
    if groups == 1:
        if stages > 1:
            yield f"{stages} stages on the same devices"
        if barrier:
            yield "a barrier"
    elif plan.schedule == "interleaved-1f1b":
        yield f"interleaved{times}{barrier}"
    else:
        name = _SCHEDULES.get(plan.schedule, plan.schedule)
        if name or times or barrier:
            yield f"{name}{times}{barrier}".strip()


def _by_stages(texts: Sequence[str]) -> str:
    """`FSDP 8 in stages 0-2, tensor 8 in stage 3`; the text alone if all stages have it."""
    groups: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        groups.setdefault(text, []).append(index)
    if len(groups) == 1:
        return texts[0]
    return ", ".join(f"{text} in {_stages_text(found)}" for text, found in groups.items())


def _some_stages(text: str, holds: Sequence[bool]) -> list[str]:
    found = [index for index, value in enumerate(holds) if value]
    if not found:
        return []
    return [text if len(found) == len(holds) else f"{text} in {_stages_text(found)}"]


def _stages_text(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(ranges_text(tuple(run)) for run in runs)
    return f"stage{'s' * (len(numbers) > 1)} {text}"


def _stage_axes(plan: Plan, index: int, found: Row | None) -> str:
    """`FSDP 8 x tensor 2`; a kind that several axes have has their product."""
    stage = plan.stages[index]
    mesh = plan.meshes[stage.mesh]
    known = _axes(plan, stage.mesh, [found])
    if known is None:
        return _loops(plan, index, found)
    axes, totals = known
    kinds = [_axis_kind(axis, totals) for axis in axes]
    sizes: dict[tuple[str, str], int] = {}
    for size, kind, axis in zip(mesh.shape, kinds, axes, strict=True):
        if size > 1:
            key = kind, _mixture(axis, totals) if kind == "mixed" else ""
            sizes[key] = sizes.get(key, 1) * size
    if not sizes:
        return "one device"
    sharded = [axis for axis, kind in zip(mesh.axes, kinds, strict=True) if kind == "ZeRO"]
    zero = 2 if _splits_gradients(plan, index, sharded) else 1
    return " x ".join(
        _WORDS.get(kind, f"{kind} {{}}").format(n, zero) + mixture
        for (kind, mixture), n in sizes.items()
    )


def _mixture(axis: Mapping[str, float], totals: Mapping[str, float]) -> str:
    """What an axis splits in which part of the products, and whether state is split along it:
    ` (data in 43 % of products, replicated in 57 %, split optimizer state)`."""
    parts = {name: axis[name] / totals["product_seconds"] for name in _SPLITS}
    parts["replicated"] = 1 - sum(parts.values())
    shown = [f"{name} in {100 * part:.0f} %" for name, part in parts.items() if part > _LITTLE]
    shown[0] += " of products"
    if _is_split("weight_bytes", axis, totals):
        shown.append("split weights")
    elif _is_split("optimizer_bytes", axis, totals):
        shown.append("split optimizer state")
    return f" ({', '.join(shown)})"


def _loops(plan: Plan, index: int, found: Row | None) -> str:
    """Of a stage all of whose products of weights are in loops: how the batch and weights come into
    it. Empty where the plan does not say, or there are no loops."""
    stage = plan.stages[index]
    sizes = dict(zip(plan.meshes[stage.mesh].axes, plan.meshes[stage.mesh].shape, strict=True))
    ops: Sequence[Row] = () if found is None else found["ops"]
    if not any(row["op"] == "stablehlo.while" for row in ops):
        return ""

    def parts(dims: Sequence[Sequence[str]]) -> int:
        return prod(sizes.get(axis, 1) for dim in dims for axis in dim)

    said: list[str] = []
    given = {(item.shape, item.dtype) for item in plan.inputs if item.kind == "batch"}
    forward = stage.functions.get("forward")
    read = [] if forward is None else [t for t in forward.inputs if (t.shape, t.dtype) in given]
    rows = {parts(tensor.spec[:1]) for tensor in read if tensor.shape}
    if len(rows) == 1:
        said.append(_by("batch comes in", rows.pop()))
    whole = sum(prod(weight.shape) for weight in stage.weights)
    held = sum(prod(weight.shape) / parts(weight.spec) for weight in stage.weights)
    if held:
        said.append(_by("weights", whole / held))
    devices = f"loops on {prod(sizes.values())} devices"
    return f"{devices} ({', '.join(said)})" if said else devices


def _by(what: str, parts: float) -> str:
    return f"{what} {f'split by {parts:.3g}' if parts > 1 + _LITTLE else 'whole'}"


def _splits_gradients(plan: Plan, index: int, axes: Sequence[str]) -> bool:
    """Whether backward runs leave most bytes of the weights' gradients split along some of these
    axes; sums that wait for the update are whole till then."""
    functions = plan.stages[index].functions
    weights = {weight.shape for weight in plan.stages[index].weights if weight.shape}
    tensors = [
        tensor
        for name in ("backward", "backward_weight")
        if name in functions
        for tensor in functions[name].outputs
        if tensor.shape in weights
    ]
    sizes = [prod(tensor.shape) for tensor in tensors]
    split = [any(set(dim) & set(axes) for dim in tensor.spec) for tensor in tensors]
    return sum(n for n, has in zip(sizes, split, strict=True) if has) > _MOST * sum(sizes) > 0


def axis_kinds(plan: Plan, index: int) -> list[str] | None:
    """What each axis of a stage's mesh splits: `"data"`, `"ZeRO"`, `"FSDP"`, `"tensor"`,
    `"expert"`, `"sequence"`, .., as `strategy_text` says it; None if the plan does not say."""
    return _kinds(plan, plan.stages[index].mesh, [plan.explanation(index)])


def _kinds(plan: Plan, mesh: int, explanations: Sequence[Row | None]) -> list[str] | None:
    """Of a mesh, from what stages on it say, all together."""
    known = _axes(plan, mesh, explanations)
    return None if known is None else [_axis_kind(axis, known[1]) for axis in known[0]]


def _axes(
    plan: Plan, mesh: int, explanations: Sequence[Row | None]
) -> tuple[list[_Numbers], _Numbers] | None:
    """What axes of a mesh split, and of how much."""
    shape = plan.meshes[mesh].shape
    totals: _Numbers = {"product_seconds": 0.0, "weight_bytes": 0.0, "optimizer_bytes": 0.0}
    axes: list[_Numbers] = [{} for _ in shape]
    for found in explanations:
        if found is None or len(found.get("axes", ())) != len(shape):
            return None
        for name in totals:
            totals[name] += found.get(name, 0.0)
        for axis, row in zip(axes, found["axes"], strict=True):
            for name, value in row.items():
                axis[name] = axis.get(name, 0.0) + value
        totals["product_seconds"] += _count_products(plan, found, axes)
    if max(shape) > 1 and not totals["product_seconds"]:
        return None  # Without products of weights, or with all of them in loops.
    if _examples(plan) == 1:  # What is split first of one example are its tokens.
        for axis in axes:
            axis["data"], axis["sequence"] = 0.0, axis["data"] + axis["sequence"]
    return axes, totals


def _examples(plan: Plan) -> int:
    """Of a micro-batch; 0 if the step has no batch."""
    of_rounds = plan.call is not None and plan.call.batch_of_rounds
    shapes = [item.shape for item in plan.inputs if item.kind == "batch" and item.shape]
    return max((example_shape(shape, of_rounds)[0] for shape in shapes), default=0)


def _count_products(plan: Plan, found: Row, axes: Sequence[_Numbers]) -> float:
    """Correct what axes split by what products of a stage say, and give the seconds of products
    that `product_seconds` leaves out, those of rows with the weights of their experts.

    Examples may be several dimensions in front, as rounds of gradient accumulation and the rows of
    each are. Weights of several experts, or of several members of an ensemble, split the same
    thing where all of them read one value and where each has its own.
    """
    examples, added = _examples(plan), 0.0
    state = {item.name for item in plan.inputs if item.kind == "state"}
    forward = [row for row in found["ops"] if row["phase"] == "forward" and row["op"] in _PRODUCTS]
    products = [_Product.of(row, found["decisions"], state) for row in forward]
    known = [product for product in products if product is not None]
    stacked = [{p.activation for p in known if p.is_stacked(n)} for n in range(len(axes))]
    for product in known:
        if product.is_grouped:
            added += product.seconds
        for number, axis in enumerate(axes):
            kinds = product.moved(number, examples, stacked[number])
            if kinds is not None:
                before, after = kinds
                seconds = product.seconds
                if before is not None:
                    seconds = min(seconds, axis[before])
                    axis[before] -= seconds
                axis[after] += seconds
    return added


_Split = tuple[tuple[int, ...], tuple[str, ...]]  # A shape, and the axes of each dimension.


@dataclass(frozen=True)
class _Product:
    """A product of an activation and a weight, shapes and axes of dimensions."""

    activation: _Split
    weight: _Split
    result: _Split
    seconds: float
    is_grouped: bool

    @classmethod
    def of(cls, row: Row, decisions: Sequence[Row], state: set[str]) -> _Product | None:
        """None for a product of two activations, and for what the plan does not say."""
        operands, results = _specs(row)
        before, _, after = row.get("types", "").partition(" -> ")
        shapes = [_shape(text) for text in before.strip("()").split(", ")]
        if len(operands) < 2 or len(shapes) != len(operands) or len(results) != 1:
            return None
        reads = _reads(row, decisions)
        weights = [i for i in (0, 1) if i < len(reads) and reads[i] in state]
        if not weights and len(shapes[1]) == 2 < len(shapes[0]):
            weights = [1]  # Made of weights before.
        is_grouped = row["op"] == "alpa.grouped_dot"
        if is_grouped:
            weights = [1]
        if len(weights) != 1:
            return None
        sides = [
            _split(shape, dims)
            for shape, dims in zip(
                (*shapes[:2], _shape(after)), (*operands[:2], results[0]), strict=True
            )
        ]
        if any(len(shape) != len(dims) for shape, dims in sides):
            return None
        weight = weights[0]
        return cls(sides[1 - weight], sides[weight], sides[2], row["compute_seconds"], is_grouped)

    def is_stacked(self, axis: int) -> bool:
        """Whether an axis splits a stack of products."""
        sides = self.activation, self.weight, self.result
        return all(_dimension(side, axis) is not None for side in sides)

    def moved(
        self, axis: int, examples: int, stacked: set[_Split]
    ) -> tuple[str | None, str] | None:
        """What an axis was thought to split, None for nothing, and what it does.

        Args:
            stacked: activations of products that the axis splits a stack of.
        """
        ofs = [_dimension(side, axis) for side in (self.activation, self.weight, self.result)]
        of_activation, of_weight, of_result = ofs
        if self.is_grouped:
            if of_weight is not None:
                return None, "tensor" if of_weight else "expert"
            return None if of_activation is None else (None, "data")
        if of_weight is None and of_activation and of_result is not None:
            shape = self.activation[0]
            is_example = prod(shape[: of_activation + 1]) <= examples
            is_example &= examples in (prod(shape[:end]) for end in range(1, len(shape)))
            return ("sequence", "data") if is_example and prod(shape[:of_activation]) > 1 else None
        is_stack = of_weight == 0 and len(self.weight[0]) > 2 and of_activation is None
        if is_stack and of_result is not None and self.result in stacked:
            return "tensor", "expert"
        return None


def _shape(text: str) -> tuple[int, ...]:
    """`4x8xf32`."""
    return tuple(int(size) for size in text.split("x")[:-1] if size.isdigit())


def _split(shape: tuple[int, ...], dims: Sequence[str]) -> _Split:
    return shape, tuple(dim[1:] if dim.startswith("S") else "" for dim in dims)


def _dimension(side: _Split, axis: int) -> int | None:
    """Which dimension an axis splits."""
    found = [i for i, axes in enumerate(side[1]) if str(axis) in axes]
    return found[0] if found else None


_SPLITS = ("data", "sequence", "tensor", "expert")


def _is_split(name: str, axis: Mapping[str, float], totals: Mapping[str, float]) -> bool:
    return totals[name] > 0 and axis[name] > _MOST * totals[name]


def _axis_kind(axis: Mapping[str, float], totals: Mapping[str, float]) -> str:
    def is_split(name: str) -> bool:
        return _is_split(name, axis, totals)

    seconds = {name: axis[name] for name in _SPLITS}
    kind = max(seconds, key=lambda name: seconds[name])
    if not seconds[kind]:
        return "whole, split weights" if is_split("weight_bytes") else "whole products"
    if seconds[kind] < _MOST * totals["product_seconds"]:
        return "mixed"
    if kind == "sequence" and is_split("weight_bytes"):
        return "sequence, split weights"
    if kind != "data":
        return kind
    if is_split("weight_bytes"):
        return "FSDP"
    return "ZeRO" if is_split("optimizer_bytes") else "data"


def _axis_names(plan: Plan, mesh: int, explanations: Sequence[Row | None]) -> AxisNames:
    """The names of a mesh's axes, from what all stages on it do with them."""
    info = plan.meshes[mesh]
    found = [explanations[i] for i, stage in enumerate(plan.stages) if stage.mesh == mesh]
    kinds = _kinds(plan, mesh, found) if found else None
    if kinds is None:
        return AxisNames.plain(info.axes, info.shape)
    named = [_NAMES.get(kind, kind) for kind in kinds]
    used = Counter(name for name, size in zip(named, info.shape, strict=True) if size > 1)
    numbers = Counter[str]()
    names: list[str] = []
    for name, size, axis in zip(named, info.shape, info.axes, strict=True):
        if size == 1:
            names.append(axis)
        elif used[name] == 1:
            names.append(name)
        else:
            names.append(f"{name}{numbers[name]}")
            numbers[name] += 1
    shown = [
        name if size > 1 else axis
        for name, size, axis in zip(named, info.shape, info.axes, strict=True)
    ]
    return AxisNames(info.axes, info.shape, tuple(names), tuple(shown))


# What the ops of a stage say.

_PRODUCTS = (
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "chlo.ragged_dot",
    "alpa.grouped_dot",
    "alpa.grouped_sum",
)
_ATTENTION = re.compile(r"fmha|attention", re.IGNORECASE)
_RANKS = re.compile(r"\[([^\]]*)\]")


def is_product(row: Row) -> bool:
    """Whether an op multiplies matrices: a dot, a convolution, or a kernel of attention."""
    return row["op"] in _PRODUCTS or is_attention(row)


def is_attention(row: Row) -> bool:
    """Whether an op is a call of a kernel of attention."""
    return bool(row.get("target")) and _ATTENTION.search(row["target"]) is not None


def _specs(row: Row) -> tuple[list[list[str]], list[list[str]]]:
    """Of operands and results, each dimension's text."""
    before, _, after = row["specs"].partition(" -> ")
    sides = [
        [[dim.strip() for dim in dims.split(",")] if dims else [] for dims in _RANKS.findall(side)]
        for side in (before, after)
    ]
    return sides[0], sides[1]


def product_shapes(explanations: Sequence[Row | None]) -> list[tuple[int, ...]]:
    """Of the results of products in forward runs."""
    return [
        _shape(row["types"].rpartition(" -> ")[2])
        for found in explanations
        for row in (found or {}).get("ops", ())
        if row["phase"] == "forward" and row["op"] in _PRODUCTS and "types" in row
    ]


def _splits_sequence(plan: Plan, index: int, found: Row | None) -> bool:
    """Whether sums of products over a tensor axis are scattered over positions: norms and residuals
    between them are split too, as Megatron's sequence parallelism has it."""
    kinds = _kinds(plan, plan.stages[index].mesh, [found])
    if kinds is None or found is None:
        return False
    shape = plan.meshes[plan.stages[index].mesh].shape
    axes = [str(i) for i, kind in enumerate(kinds) if kind == "tensor" and shape[i] > 1]
    summed = scattered = 0.0

    def splits(dims: Sequence[str]) -> list[bool]:
        return [dim.startswith("S") and any(axis in dim for axis in axes) for dim in dims]

    for row in found["ops"] if axes else ():
        if row["phase"] != "forward" or row["op"] not in _PRODUCTS:
            continue
        operands, results = _specs(row)
        if len(operands) < 2 or len(operands[1]) != 2 or not results or len(operands[0]) < 2:
            continue
        activation, weight, result = (
            splits(dims) for dims in (operands[0], operands[1], results[0])
        )
        if activation[-1] and any(weight) and not result[-1]:
            summed += row["compute_seconds"]
            scattered += row["compute_seconds"] * any(result[len(result) > 2 : -1])
    return scattered > _MOST * summed > 0


def _expert_parts(plan: Plan, index: int, found: Row | None) -> int:
    """Over how many parts of a stage's devices experts lie, along axes that split something else in
    most products."""
    mesh = plan.stages[index].mesh
    kinds = _kinds(plan, mesh, [found])
    if kinds is None or found is None:
        return 1
    least = _LITTLE * found.get("product_seconds", 0.0)
    rows = zip(plan.meshes[mesh].shape, kinds, found["axes"], strict=True)
    return prod(n for n, kind, row in rows if kind != "expert" and row["expert"] > least)


# Of a stage's products. What a recomputed layer ends with is not needed again.
_LITTLE, _MOST_OF_LAYERS = 0.02, 0.6


def remat_kind(plan: Plan, index: int, found: Row | None) -> str:
    """What backward runs of a stage compute again, in words; empty for nothing that is known.

    Products are counted. A step whose layers are functions of their own names no op of a recomputed
    one as such; products beyond the two that gradients of one take are computed again as well.
    """
    ops: Sequence[Row] = () if found is None else found["ops"]
    forward = [row for row in ops if row["phase"] == "forward"]
    backward = [row for row in ops if row["phase"] == "backward"]
    dots = [row for row in forward if is_product(row) and not is_attention(row)]
    kernels = {row["target"] for row in forward if is_attention(row)}
    again = [row for row in backward if is_recomputed(row)]
    named = [row for row in again if is_product(row) and not is_attention(row)]
    excess = len(named) + round(len(dots) * unnamed_recomputation(ops))
    recomputes_kernels = any(row.get("target") in kernels for row in backward if "target" in row)
    if excess <= _LITTLE * len(dots):
        if recomputes_kernels:
            return "attention"
        layers = plan.stages[index].predicted.get("rematerialized_layers", 0)
        is_marked = layers or any("rematted_computation" in row["where"] for row in again)
        return "elementwise ops" if is_marked else ""
    if excess >= _MOST_OF_LAYERS * len(dots):
        return "whole layers"
    decisions: Sequence[Row] = () if found is None else found["decisions"]
    scores = {
        row.get("types")
        for row in dots
        if not _reads_weight(row, decisions) and _multiplies_examples(row)
    }
    if len(named) == excess and {row.get("types") for row in named} <= scores:
        return "attention"
    return f"{excess / len(dots):.0%} of products" + " and attention" * recomputes_kernels


def unnamed_recomputation(ops: Sequence[Row]) -> float:
    """Of a stage's products in forward runs, the part that backward runs compute again without
    saying so in a name: products beyond the two that gradients of one take."""
    dots = [row for row in ops if is_product(row) and not is_attention(row)]
    forward = sum(row["phase"] == "forward" for row in dots)
    named = sum(map(is_recomputed, dots))
    backward = sum(row["phase"] == "backward" for row in dots) - named
    return max(0, backward - 2 * forward) / forward if forward else 0.0


def _reads_weight(row: Row, decisions: Sequence[Row]) -> bool:
    return row.get("decision", len(decisions)) >= len(decisions) or any(_reads(row, decisions))


def _multiplies_examples(row: Row) -> bool:
    """Whether both sides of a product have more dimensions than weights do."""
    operands, _ = _specs(row)
    return all(len(dims) > 2 for dims in operands)


def _reads(row: Row, decisions: Sequence[Row]) -> Sequence[str]:
    """For each operand of an op the argument that it is, or nothing."""
    number: int = row.get("decision", len(decisions))
    return decisions[number].get("reads", ()) if number < len(decisions) else ()


def is_recomputed(row: Row) -> bool:
    """Whether an op's name says that a backward run computes again what a forward run did."""
    where = row["where"]
    return row["phase"] == "backward" and (
        "rematted_computation" in where or ("jvp(" in where and "transpose(" not in where)
    )
