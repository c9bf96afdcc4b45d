"""Methods with several stages on a mesh, or with a schedule of one's own."""

from __future__ import annotations

import functools

import alpa_mlir
import jax
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.compiler import schedule_table
from alpa_mlir.errors import MethodError
from alpa_mlir.methods.schedule import Schedule
from published_models import Transformer
from test_equality import CLUSTER, relative_difference, run


@functools.cache
def model_and_reference():
    model = zoo.make_gpt(zoo.GPTConfig(layers=4, optimizer="sgd", learning_rate=0.1))
    return model, run(jax.jit(model.step), *model.init())


def plan_and_run(method):
    """The plan, after its steps were compared with those of a single device."""
    model, expected = model_and_reference()
    state, batch = model.init()
    step = alpa_mlir.compile(model.step, state, batch, cluster=CLUSTER, method=method)
    assert relative_difference(run(step, state, batch), expected) < 1e-4
    return step.plan


def gpipe_backwards(problem):
    """All forward runs, then all backward runs, the last micro-batch first."""
    count = problem.num_micro_batches
    return [
        [("F", stage, m) for stage in own for m in range(count)]
        + [("B", stage, m) for stage in own[::-1] for m in reversed(range(count))]
        for own in map(problem.stages_of, range(problem.num_meshes))
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "method",
    [
        PipeshardParallel(
            submeshes=[(1, 1), (1, 1)],
            schedule="interleaved-1f1b",
            layers=4,
            layer_ranges=[(0, 1), (1, 2), (2, 3), (3, 4)],
            num_micro_batches=4,
        ),
        AutoParallel(schedule="interleaved-1f1b", layers=4, num_micro_batches=4),
        AutoParallel(schedule="breadth-first", layers=4, num_micro_batches=4),
        PipeshardParallel(
            submeshes=[(1, 2), (1, 2)],
            schedule="zb-v",
            layers=6,
            layer_ranges=[(0, 1), (1, 4), (4, 5), (5, 6)],
            num_micro_batches=8,
        ),
        AutoParallel(schedule="zb-v", layers=4, num_micro_batches=4),
        AutoParallel(schedule="v-half", pipeline="uniform", layers=4, num_micro_batches=2),
        AutoParallel(schedule="v-min", layers=4, num_micro_batches=1),
        PipeshardParallel(submeshes=[(1, 2)] * 3, schedule="dualpipe-v", num_micro_batches=8),
    ],
    ids=lambda method: f"{method.schedule}-{type(method).__name__}",
)
def test_several_stages_on_a_mesh(method):
    plan = plan_and_run(method)
    assert plan.schedule == method.schedule
    count = len(plan.meshes)
    again = range(count)[::-1] if schedule_table()[method.schedule].in_v else range(count)
    assert [stage.mesh for stage in plan.stages] == [*range(count), *again]
    if not isinstance(method, AutoParallel):
        assert count == len(method.submeshes)


def test_the_default_finds_several_stages_on_a_mesh():
    """A deep pipeline of few micro-batches."""
    model = Transformer(
        family="gpt",
        hidden=8192,
        layers=24,
        heads=64,
        kv_heads=64,
        ffn=32768,
        vocab=51200,
        seq=1024,
        dtype="float16",
        remat="none",
    )
    step, state, batch = model.training_step(256)

    def plan(schedule):
        method = AutoParallel(num_micro_batches=16, schedule=schedule)
        planned = alpa_mlir.parallelize(step, cluster="dgx-a100:4", method=method, cache=False)
        return planned.plan(state, batch).plan

    def seconds(schedule):
        return plan(schedule).predicted["step_seconds"]

    found = plan("auto")
    assert found.schedule in ("zb-v", "dualpipe-v")
    assert len(found.stages) == 2 * len(found.meshes) > 2
    assert found.predicted["step_seconds"] < min(
        0.99 * seconds("1f1b"), seconds("interleaved-1f1b"), 1.01 * seconds("zb-h1")
    )
    foreseen = alpa_mlir.simulate(found).step_seconds
    assert foreseen == pytest.approx(found.predicted["step_seconds"], rel=0.03)
    assert [tried.peak_bytes for tried in found.tried] == [found.peak_bytes]
    assert max(stage.predicted["peak_bytes"] for stage in found.stages) < found.peak_bytes


@pytest.mark.parametrize("count", [2, 4])
def test_with_room_zb_auto_is_no_slower_than_zb_h1(count):
    """It tries that order as well, also where more waits for weight parts than activations."""
    model, _ = model_and_reference()

    def seconds(schedule):
        method = AutoParallel(
            pipeline="inter-only", layers=8, num_micro_batches=count, schedule=schedule
        )
        planned = alpa_mlir.parallelize(model.step, cluster=CLUSTER, method=method, cache=False)
        return planned.plan(*model.init()).plan.predicted["step_seconds"]

    assert seconds("zb-auto") <= seconds("zb-h1")


def test_of_one_stage_all_schedules_are_alike():
    one = [(1, 2)]
    whole, split = (
        plan_and_run(PipeshardParallel(submeshes=one, schedule=name, num_micro_batches=2))
        for name in ("1f1b", "zb-h1")
    )
    assert whole.predicted["step_seconds"] == split.predicted["step_seconds"]
    assert set(split.stages[0].functions) == set(whole.stages[0].functions)


@pytest.mark.slow
def test_the_default_orders_a_plan_anew():
    """Weight parts fill what so few micro-batches wait."""
    whole, found = (
        plan_and_run(
            AutoParallel(pipeline="inter-only", layers=8, num_micro_batches=4, schedule=name)
        )
        for name in ("1f1b", "auto")
    )
    assert len(whole.stages) > 2
    assert found.schedule == "zb-auto"
    assert found.predicted["step_seconds"] < 0.99 * whole.predicted["step_seconds"]


def test_schedule_of_ones_own():
    mine = Schedule("gpipe-backwards", gpipe_backwards, like="gpipe")
    plan = plan_and_run(
        PipeshardParallel(submeshes=[(1, 1), (1, 1)], schedule=mine, num_micro_batches=4)
    )
    assert plan.schedule == "custom"
    order = [op.micro_batch for op in plan.programs[1].instructions if is_backward(op)]
    assert order == [3, 2, 1, 0]


def is_backward(op):
    return getattr(op, "function", "") == "backward"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoParallel(schedule="zb-h3"), "schedule 'zb-h3'; fix: use one of auto, 1f1b"),
        (
            lambda: AutoParallel(schedule="1f1b", virtual_stages=2),
            "2 virtual_stages with schedule '1f1b'; fix: use one of .*interleaved-1f1b",
        ),
        (
            lambda: AutoParallel(schedule="interleaved-1f1b", virtual_stages=-1),
            "virtual_stages -1; fix: use a whole number",
        ),
        (
            lambda: ShardParallel(schedule="interleaved-1f1b", virtual_stages=2),
            "2 virtual_stages without a pipeline",
        ),
        (
            lambda: PipeshardParallel(
                submeshes=[(1, 1), (1, 1)],
                schedule="interleaved-1f1b",
                layer_ranges=[(0, 1), (1, 2)],
            ),
            "2 layer_ranges for 2 submeshes with 2 stages each; fix: give 4, one for each stage",
        ),
        (
            lambda: PipeshardParallel(submeshes=[(1, 2), (1, 1)], schedule="interleaved-1f1b"),
            "unequal submeshes with 2 stages on each",
        ),
    ],
)
def test_bad_methods(make, message):
    with pytest.raises(MethodError, match=message):
        make()


def test_fewer_layers_than_stages():
    model, _ = model_and_reference()
    method = PipeshardParallel(
        submeshes=[(1, 1), (1, 1)], schedule="interleaved-1f1b", virtual_stages=3, layers=4
    )
    said = "6 stages need as many layers, got 4; .* layers=4 is given; fix: .* or give layers=6"
    with pytest.raises(MethodError, match=said):
        alpa_mlir.compile(model.step, *model.init(), cluster=CLUSTER, method=method)


def chain(state, x):
    for weight in state.values():
        x = jax.numpy.tanh(x @ weight)
    return jax.numpy.mean(x**2)


def of_the_whole_batch(state, x):
    return jax.numpy.sum((jax.numpy.mean(x @ state["w0"], 0) @ state["w1"]) ** 2)


def marked(state, x):
    for number, weight in enumerate(state.values()):
        x = jax.numpy.tanh(x @ weight)
        x = alpa_mlir.layer_boundary(x) if number == 1 else x
    return jax.numpy.mean(x**2)


@pytest.mark.parametrize(
    ("loss", "weights", "stages", "options", "why", "helps"),
    [
        (chain, 1, 2, {}, "there is 1; fix", "give layers=2, which cuts between other operations"),
        (jax.checkpoint(chain), 4, 2, {}, "4 products are in one jax.checkpoint", "by itself"),
        (jax.checkpoint(chain), 4, 2, {"layers": 3}, "4 products are in one", "by itself"),
        (
            of_the_whole_batch,
            2,
            2,
            {"num_micro_batches": 4},
            "with 4 micro-batches, what needs the whole batch runs behind them",
            "use one micro-batch",
        ),
        (marked, 4, 3, {}, "got 2; .*, and layer_boundary marks so many", "give layers=3"),
    ],
)
def test_why_there_are_few_layers(loss, weights, stages, options, why, helps):
    """What is said to help does."""

    def step(state, x):
        value, gradient = jax.value_and_grad(loss)(state, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradient), value

    def plan(**options):
        method = PipeshardParallel(submeshes=[(1, 1)] * stages, **options)
        found = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False)
        return found.plan(state, jax.ShapeDtypeStruct((64, 64), "float32")).plan

    state = {f"w{i}": jax.ShapeDtypeStruct((64, 64), "float32") for i in range(weights)}
    with pytest.raises(MethodError, match=rf"{stages} stages need.*{why}") as caught:
        plan(**options)
    assert helps in caught.value.fix
    if f"layers={stages}" in caught.value.fix:
        assert len(plan(**options | {"layers": stages}).stages) == stages
    if "one micro-batch" in caught.value.fix:
        assert len(plan(num_micro_batches=1).stages) == stages


def unequal_hosts(kinds=("d", "d")):
    """Four devices and two."""
    device = {"memory_bytes": 10**9, "memory_bandwidth": 1e10, "peak_flops": {"float32": 2e10}}
    slower = {**device, "peak_flops": {"float32": 1e10}}
    return {
        "name": "unequal",
        "device_types": {"d": device} | ({"slow": slower} if "slow" in kinds else {}),
        "hosts": [
            {"devices": devices, "device_type": kind}
            for devices, kind in zip((4, 2), kinds, strict=True)
        ],
        "links": {
            "intra_host": {"bandwidth": 1e9, "latency": 2e-5},
            "inter_host": {"bandwidth": 1e9, "latency": 2e-5},
        },
    }


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "breadth-first", "zb-v"])
def test_several_stages_on_meshes_of_unequal_hosts(schedule):
    """Parts of the hosts are equal meshes; those of other devices are not."""

    def planned(cluster):
        method = AutoParallel(
            schedule=schedule, layers=6, num_micro_batches=8, method="data-parallel"
        )
        weights = [0.1 * jax.random.normal(jax.random.key(i), (128, 128)) for i in range(6)]
        x = jax.random.normal(jax.random.key(9), (8, 128))

        def step(weights, x):
            def loss(weights):
                y = x
                for weight in weights:
                    y = jax.numpy.tanh(y @ weight)
                return jax.numpy.mean(y**2)

            value, gradient = jax.value_and_grad(loss)(weights)
            return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradient), value

        found = alpa_mlir.parallelize(step, cluster=cluster, method=method).plan(weights, x)
        expected = jax.jit(step)(weights, x)
        assert relative_difference(found.load()(weights, x), expected) < 1e-5
        return found.plan

    plan = planned(unequal_hosts())
    assert len(plan.stages) == 2 * len(plan.meshes)
    assert len({mesh.shape for mesh in plan.meshes}) == 1
    devices = sorted(device for mesh in plan.meshes for device in mesh.devices)
    assert min(devices) < 4 <= max(devices)
    others = planned(unequal_hosts(("d", "slow")))
    hosts = {device < 4 for mesh in others.meshes for device in mesh.devices}
    assert len(hosts) == 1
