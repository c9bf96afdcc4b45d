"""What a report shows, as plain data: frozen dataclasses of numbers, texts and tuples.

Seconds and bytes are numbers in these units; None means that the plan does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Spec = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Header:
    """The figures at the top.

    Attributes:
        strategy: its parallelism, in words; empty if the plan does not say.
        notes: on devices that are idle and dimensions that are padded.
        weights: how many numbers the forward pass reads as state.
        solver: `optimal` if each stage was proven best, else the worst status.
    """

    name: str
    cluster: str
    devices: int
    used_devices: int
    hosts: int | None
    device_types: tuple[tuple[str, int], ...]
    stages: int
    num_micro_batches: int
    schedule: str
    strategy: str
    predicted_seconds: float | None
    simulated_seconds: float | None
    real_seconds: tuple[float, ...]
    bubble_fraction: float | None
    notes: tuple[str, ...]
    weights: int
    state_bytes: float
    solver: str | None
    gap: float | None
    search_seconds: float | None
    compiler: str
    version: str
    plan_version: int
    fingerprint: str | None


@dataclass(frozen=True)
class PlanFigures:
    """Figures of a plan, as `alpa_mlir.simulator.figures.Figures` has them.

    Attributes:
        rate, rate_of: a second's tokens or rows, and which they are.
        peak_tflops, bandwidth: of one of the devices, in the type in which products are computed;
            bandwidth in bytes a second.
        needed_bytes, foreseen_bytes, capacity_bytes: of the device with the least room left; what
            it needs is as compiled, or as foreseen.
        unit_price, unit: what so many tokens or rows cost.
        published_error, published_runs: how far predictions are from published runs of the preset.
    """

    step_seconds: float | None
    rate: float | None
    rate_of: str
    rows: int | None
    tokens: int | None
    mfu: float | None
    hfu: float | None
    model_flops: float | None
    hardware_flops: float | None
    dtype: str | None
    peak_tflops: float | None
    bandwidth: float | None
    needed_bytes: float | None
    foreseen_bytes: float | None
    is_compiled: bool
    capacity_bytes: float | None
    gap: float | None
    is_optimal: bool
    published_error: float | None
    published_runs: int
    unit_price: float | None
    unit: str


@dataclass(frozen=True)
class TimeUse:
    """What a device of a mesh spends a step on: seconds of each of `time_parts`. Without a mesh,
    the mean of all devices."""

    mesh: int | None
    stages: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class RooflinePoint:
    """Of a stage's forward or backward runs on one device: FLOPs for a byte of memory traffic, and
    FLOP/s."""

    stage: int
    phase: str
    intensity: float
    flops_per_second: float


@dataclass(frozen=True)
class MicroBatches:
    """What several micro-batches make of the whole batch.

    Attributes:
        exact: results are those of `jax.jit` on the whole batch.
        sums, joins, scales, repeats: how many source lines are such, as in `Exactness`.
        estimates: source lines of the values that are not the whole batch's.
    """

    exact: bool
    sums: int
    joins: int
    scales: int
    repeats: int
    estimates: tuple[str, ...]


@dataclass(frozen=True)
class HostGroup:
    """`count` hosts of `devices` devices each."""

    count: int
    devices: int
    device_type: str
    memory_bytes: float | None


@dataclass(frozen=True)
class Mesh:
    """`devices` are runs (first, count) in row-major order; `axes` are named by what they do,
    `kinds` without the number that tells apart those that do the same; `links` says of each axis
    what its groups of devices are joined by: `host` or `network`, None if unknown."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    kinds: tuple[str, ...]
    devices: tuple[tuple[int, int], ...]
    links: tuple[str | None, ...]


@dataclass(frozen=True)
class Stage:
    """`layers` are [first, end), `modules` the parts of the model that they are, by its names."""

    mesh: int
    layers: tuple[int, int]
    modules: str
    forward_seconds: float | None
    backward_seconds: float | None
    update_seconds: float | None
    predicted_bytes: float | None
    state_bytes: float | None
    rematerialized_layers: int
    weights: int


@dataclass(frozen=True)
class Tensors:
    """A table by columns, one entry a tensor that the programs keep or hand on.

    Attributes:
        forms: (shape, dtype, sharding, bytes of the whole, bytes on a device), each once.
        names, kinds: of each tensor; kinds are `weight`, `state` (read by updates only),
            `prepared` (made of a weight once a step, for all micro-batches), `batch`,
            `activation` (kept for the backward pass, or for another stage), `gradient`, `result`.
        form, mesh, stages: number of the form, the mesh, and the stages that use it.
    """

    forms: tuple[tuple[tuple[int, ...], str, Spec, float, float], ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    form: tuple[int, ...]
    mesh: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Operand:
    """A tensor of an op; shape and dtype are None where the plan does not say."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None
    spec: Spec
    unreduced: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerOp:
    """An op of the forward pass that the solver decided about; seconds are those of a step, `more`
    says in words what its runner-up costs."""

    op: str
    where: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    seconds: float
    choices: int
    runner_up: str | None
    more_seconds: float | None
    more: str


@dataclass(frozen=True)
class LayerGroup:
    """Layers that do the same in the same way.

    Attributes:
        layers: (stage, layer) of each; the layer is None where the plan does not say.
        modules: the parts of the model that they are, by its own names.
        blocks: (times, ops): the ops of such a layer in order, runs that repeat as one; seconds
            are means of the repeats.
    """

    mesh_shape: tuple[int, ...]
    axes: tuple[str, ...]
    kinds: tuple[str, ...]
    layers: tuple[tuple[int, int | None], ...]
    modules: str
    blocks: tuple[tuple[int, tuple[LayerOp, ...]], ...]


@dataclass(frozen=True)
class Activity:
    """What meshes did when, by columns; a span is (start, end, kind, micro-batch, stage, step).

    Attributes:
        seconds: from the first to the last.
        kinds: names that `kind` counts.
        rows: what tells the rows of one mesh apart, such as the worker.
        meshes: the mesh of each row.
        spans: of each row: kinds, starts, ends, micro-batches (-1 for none), stages (-1), steps.
        transfers: (source mesh, target mesh, start, end, bytes).
        steps: (start, end) of each step.
    """

    seconds: float
    kinds: tuple[str, ...]
    rows: tuple[str, ...]
    meshes: tuple[int, ...]
    spans: tuple[tuple[tuple[int | float, ...], ...], ...]
    transfers: tuple[tuple[int, int, float, float, float], ...]
    steps: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Memory:
    """Bytes on a device of a mesh: from `times[i]` on it is `bytes[i]`."""

    times: tuple[float, ...]
    bytes: tuple[float, ...]
    peak_bytes: float
    predicted_bytes: float | None
    capacity_bytes: float | None


@dataclass(frozen=True)
class Collective:
    """All runs of a collective along an axis of a stage's mesh in a step.

    Bytes are of the full buffers on one device, as the cost model counts them.
    """

    stage: int
    collective: str
    axis: str | None
    size: int | None
    link: str | None
    count: int
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Crossing:
    """What goes from mesh to mesh in a step; `seconds` are those of the transfers if each had
    the links to itself, added up."""

    source: int
    target: int
    strategies: tuple[str, ...]
    count: int
    bytes: float
    seconds: float


@dataclass(frozen=True)
class LinkKind:
    """Links of one kind and direction: how many are used, their bytes, the busiest."""

    kind: str
    bandwidth: float
    count: int
    bytes: float
    busiest: str
    busiest_bytes: float
    utilization: float


@dataclass(frozen=True)
class Decision:
    """Decisions that are alike, names of layers apart.

    Attributes:
        seconds: of a step, all of them together.
        more_seconds: at most so much longer takes the step if one of them falls as the runner-up
            says; of the one where that is least.
        more: the same in words.
    """

    op: str
    where: str
    phase: str
    chosen: str
    runner_up: str
    count: int
    choices: int
    seconds: float
    more_seconds: float
    more: str
    stages: tuple[int, ...]


@dataclass(frozen=True)
class DearOp:
    """Ops that are alike; seconds of a step, all of them together."""

    op: str
    where: str
    phase: str
    specs: str
    count: int
    compute_seconds: float
    communication_seconds: float
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """A plan that the search looked at, besides the one that it took."""

    num_micro_batches: int
    remat: str
    schedule: str
    stages: int
    seconds: float | None
    measured_seconds: float | None
    peak_bytes: float
    exact: bool
    reason: str
    chosen: bool


@dataclass(frozen=True)
class Compared:
    """Another plan beside this one; changes are (what, here, there). `reason` says why there
    is none, or why it cannot be compared."""

    name: str
    strategy: str
    figures: PlanFigures | None
    stages: int
    num_micro_batches: int
    schedule: str
    devices: int
    bubble_fraction: float | None
    reason: str
    changes: tuple[tuple[str, str | None, str | None], ...]
    more_changes: int


@dataclass(frozen=True)
class Certificate:
    """What the solver proved of a stage's shardings; seconds are those of a step."""

    stage: int
    status: str
    objective_seconds: float | None
    lower_bound_seconds: float | None
    gap: float | None
    nodes: int | None
    choices: int | None
    seconds: float | None


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows.

    Attributes:
        missing: by section, what the plan does not say and why a part is empty.
    """

    header: Header
    figures: PlanFigures
    time_parts: tuple[str, ...]
    time: tuple[TimeUse, ...]
    roofline: tuple[RooflinePoint, ...]
    micro_batches: MicroBatches
    hosts: tuple[HostGroup, ...]
    meshes: tuple[Mesh, ...]
    stages: tuple[Stage, ...]
    tensors: Tensors
    layers: tuple[LayerGroup, ...]
    simulated: Activity | None
    real: Activity | None
    memory: tuple[Memory, ...]
    collectives: tuple[Collective, ...]
    crossings: tuple[Crossing, ...]
    links: tuple[LinkKind, ...]
    ops: tuple[DearOp, ...]
    decisions: tuple[Decision, ...]
    candidates: tuple[Candidate, ...]
    compared: tuple[Compared, ...]
    certificates: tuple[Certificate, ...]
    search: tuple[tuple[str, float], ...] = ()
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
