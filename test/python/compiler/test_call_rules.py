"""Calls with sharding rules: split over devices and micro-batches, equal to the whole step."""

from __future__ import annotations

import itertools
import re

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel
from alpa_mlir.errors import ArgumentTypeError, MethodError, TraceError
from test_equality import CLUSTER, relative_difference

BATCH, SIZE = 16, 8
METHODS = {
    "one micro-batch": ShardParallel(num_micro_batches=1, mesh_shape=(2, 4)),
    "two": ShardParallel(num_micro_batches=2, mesh_shape=(2, 4)),
    "data parallel": ShardParallel(num_micro_batches=2, method="data-parallel"),
    "two stages": PipeshardParallel(num_micro_batches=2, submeshes=[(1, 4), (1, 4)], layers=2),
}
FACTORIZATION = "lapack_spotrf_ffi"  # A kernel that every jaxlib for CPUs has.


def positive(x):
    """A symmetric matrix of each example, far from singular."""
    return x @ x.mT / SIZE + 2 * jnp.eye(SIZE)


@jax.custom_vjp
def kernel(x):
    """Lower factors of matrices, by a call without a rule, and a gradient that is not theirs."""
    made, _ = jax.ffi.ffi_call(
        FACTORIZATION,
        (
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct(x.shape[:-2], jnp.int32),
        ),
    )(x, uplo=np.uint8(ord("L")))
    return made


def _forward(x):
    return kernel(x), x


def _backward(x, gradient):
    return (gradient * jnp.tanh(x),)


kernel.defvjp(_forward, _backward)


def grouped(x):
    """Rows of the whole batch in groups, one of them empty, the last rows in none."""
    rows = x.reshape(-1, SIZE)
    weights = jnp.stack([jnp.eye(SIZE), jnp.ones((SIZE, SIZE)), -jnp.eye(SIZE)])
    return jax.lax.ragged_dot(rows, weights, jnp.array([51, 0, 70], jnp.int32)).reshape(x.shape)


LAYERS = {
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "solve": lambda x: jnp.linalg.solve(positive(x), x),
    "qr": lambda x: jnp.linalg.qr(positive(x))[1],
    "eigh": lambda x: jnp.linalg.eigvalsh(positive(x))[..., None] * x,
    "svd": lambda x: jnp.linalg.svd(positive(x), compute_uv=False)[..., None] * x,
    "kernel": lambda x: kernel(positive(x)),
    "grouped": grouped,
    "largest": lambda x: x * jax.lax.approx_max_k(x, 3)[0].sum(-1, keepdims=True),
    "least": lambda x: (
        x * jax.lax.approx_min_k(x, 3, reduction_dimension=1)[0].sum(1, keepdims=True)
    ),
}


def make_step(layer):
    """Two layers with a call in each, and their SGD update."""

    def step(state, batch):
        def loss(state):
            x = batch
            for weight in state:
                x = jnp.tanh(layer(x @ weight)) + x
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    state = [0.5 * jax.random.normal(key, (SIZE, SIZE)) for key in keys[:2]]
    return step, state, jax.random.normal(keys[2], (BATCH, SIZE, SIZE))


def calls(plan, target):
    """Shapes of the first operands of all calls of a target."""
    text = "\n".join(plan.modules.values())
    found = re.findall(rf"custom_call @{target}\(.*: \(tensor<([0-9x]+)xf32>", text)
    return [tuple(map(int, shape.split("x"))) for shape in found]


@pytest.fixture
def with_rule():
    def give(rule, **options):
        alpa_mlir.sharding_rule(FACTORIZATION, rule, **options)

    yield give
    alpa_mlir.sharding_rule(FACTORIZATION, None)


def is_fast(layer, method):
    """All methods of one layer, and two of each other one in turns."""
    turn = list(LAYERS).index(layer) + list(METHODS).index(method)
    return layer == "kernel" or turn % 2 == 0


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("layer", "method"),
    [
        pytest.param(*row, marks=() if is_fast(*row) else pytest.mark.slow)
        for row in itertools.product(LAYERS, METHODS)
    ],
)
def test_parts_of_calls_make_the_whole(layer, method, with_rule):
    if layer == "kernel":
        with_rule("... m n -> ... m n, ...", need_replication=("m", "n"), cost=1e9)
    step, state, batch = make_step(LAYERS[layer])
    expected = jax.jit(step)(state, batch)
    parallel = alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=METHODS[method])
    assert relative_difference(parallel(state, batch), expected) < 1e-5
    if method == "data parallel":  # A micro-batch of 8 examples, on 8 devices.
        assert {shape[0] for shape in calls(parallel.plan, r"lapack_\w+")} <= {1}


def test_calls_with_a_cost_are_split_over_all_devices(with_rule):
    step, state, batch = make_step(LAYERS["kernel"])
    method = ShardParallel(num_micro_batches=2)

    def planned():
        return alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(state, batch).plan

    with pytest.raises(alpa_mlir.MicroBatchError, match="custom_call"):
        planned()
    with_rule("... m n -> ... m n, ...", need_replication=("m", "n"), cost=1e9)
    cheap = planned()
    assert calls(cheap, FACTORIZATION) == [(BATCH // 2 // 8, SIZE, SIZE)] * 2
    with_rule(
        "... m n -> ... m n, ...",
        need_replication=("m", "n"),
        cost=lambda operands, results: 1e9 * operands[0][0] * len(results),
    )
    dear = planned()
    assert calls(dear, FACTORIZATION) == calls(cheap, FACTORIZATION)
    # 32 times the work of both calls, of which each device does an eighth.
    before, after = (plan.predicted["step_seconds"] for plan in (cheap, dear))
    work = 1e9 * 2 / 8 / CLUSTER["device_types"]["small"]["peak_flops"]["float32"]
    assert after - before >= 31 * work


def test_factorizations_cost_their_arithmetic():
    def step(state, batch):
        return state + jnp.linalg.cholesky(batch).sum()

    size = 256
    batch = jax.ShapeDtypeStruct((BATCH, size, size), jnp.float32)
    method = ShardParallel(num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method)
    plan = parallel.plan(jax.ShapeDtypeStruct((), jnp.float32), batch).plan
    (row,) = [x for x in plan.explanation(0)["ops"] if x.get("target") == FACTORIZATION]
    share = BATCH / 8 * size**3 / 3 / CLUSTER["device_types"]["small"]["peak_flops"]["float32"]
    assert row["compute_seconds"] == pytest.approx(share, rel=1e-3)


def test_what_runs_whole_is_named(with_rule):
    step, state, batch = make_step(LAYERS["kernel"])
    method = ShardParallel(num_micro_batches=1)

    def explained():
        plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(state, batch).plan
        rows = plan.explanation(0)["ops"]
        return alpa_mlir.explain(plan), [row for row in rows if row.get("target") == FACTORIZATION]

    text, rows = explained()
    assert len(rows) == 2
    assert all(row["whole"] and row["compute_seconds"] > 0 for row in rows)
    _, listed = text.split(
        "ops that every device runs whole, since no choice of the method splits them"
    )
    place = rf"stablehlo.custom_call @{FACTORIZATION} at test_call_rules.py:\d+, 2 times\n"
    assert re.search(place + rf".*alpa_mlir.sharding_rule\('{FACTORIZATION}', '.. -> ..'", listed)
    with_rule("b m n -> b m n, b", need_replication=("m", "n"), cost=1e9)
    text, rows = explained()
    assert len(rows) == 2
    assert not any(row.get("whole") for row in rows)
    assert f"sharding_rule('{FACTORIZATION}'" not in text


def test_small_ops_that_run_whole_are_counted():
    """A learning rate costs next to nothing beside the products."""

    def step(state, batch):
        rate = 0.1 / jnp.sqrt(1.0 + state["count"])
        grads = jax.grad(lambda w: jnp.mean(jnp.tanh(batch @ w) ** 2))(state["w"])
        return {"w": state["w"] - rate * grads, "count": state["count"] + 1}

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    method = ShardParallel(num_micro_batches=1)
    state = {"w": shape(4096, 4096), "count": shape()}
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method, cache=False)
    text = alpa_mlir.explain(parallel.plan(state, shape(4096, 4096)).plan)
    _, listed = text.split("ops that every device runs whole, ")
    lines = listed.splitlines()
    assert re.search(r"\d+ ops, together less than 0.1 % of the stage's seconds", lines[1])
    assert "stablehlo" not in lines[1]


def test_what_is_cheapest_whole_is_told_from_what_no_choice_splits():
    """Bias and scale are small, and what a launch takes, a part takes as well."""

    def step(state, batch):
        def loss(state):
            ranks = jnp.argsort(jnp.sum(batch, 1)).astype(jnp.float32)
            return jnp.mean(jnp.tanh(batch @ state["w"] + state["bias"]) ** 2 * ranks[:, None])

        grads = jax.grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    state = {"w": shape(4096, 4096), "bias": shape(4096)}
    method = ShardParallel(num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster="dgx-h100", method=method, cache=False)
    plan = parallel.plan(state, shape(2**16, 4096)).plan
    rows = [row for row in plan.explanation(0)["ops"] if row.get("whole")]
    assert all(0 <= row["whole_seconds"] <= row["compute_seconds"] for row in rows)
    (sort,) = [row for row in rows if row["op"] == "stablehlo.sort"]
    assert not sort.get("may_split")
    update = [row for row in rows if row["op"] == "stablehlo.subtract"]
    assert update
    assert all(row["may_split"] for row in update)
    text = alpa_mlir.explain(plan)
    _, stuck, cheapest = text.split("ops that every device runs whole, ")
    assert "no choice of the method splits them" in stuck.splitlines()[0]
    assert "moves for a split would cost more" in cheapest.splitlines()[0]
    assert "stablehlo.subtract" not in stuck


def test_no_rule_is_asked_for_where_none_may_be():
    shape = jax.ShapeDtypeStruct((BATCH, SIZE), jnp.float32)

    def step(state, batch):
        return state, jax.ffi.ffi_call("mosaic_gpu_v2", shape)(batch)

    method = ShardParallel(num_micro_batches=1)
    plan = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(1.0, shape).plan
    (row,) = [row for row in plan.explanation(0)["ops"] if "target" in row]
    assert row["whole"]
    assert "may_have_rule" not in row
    text = alpa_mlir.explain(plan)
    assert "was compiled for these shapes: no rule splits it" in text
    assert "alpa_mlir.sharding_rule" not in text


def test_a_rule_that_does_not_fit_is_an_error(with_rule):
    step, state, batch = make_step(LAYERS["kernel"])
    with_rule("b m n -> b m n")
    parallel = alpa_mlir.parallelize(step, cluster=CLUSTER, method=ShardParallel())
    with pytest.raises(
        MethodError, match=r"\"b m n -> b m n\": the call has 2 results, the rule 1"
    ):
        parallel.plan(state, batch)
    with_rule("b m n -> b m n, b", cost=lambda operands, results: None)
    with pytest.raises(TraceError, match="cost of a call of 'lapack_spotrf_ffi' is None"):
        parallel.plan(state, batch)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("", "a -> a"), TraceError, "target has no name"),
        (("f", "a, b"), TraceError, "There is no -> in rule"),
        (("f", "b (h d -> b h d"), TraceError, "brackets are not balanced"),
        (("f", "b 3 -> b"), TraceError, "have to start with a letter"),
        (("f", "b k k n -> b n"), TraceError, "factor k is in two dimensions of one array"),
        ((3, "a -> a"), ArgumentTypeError, "target=3"),
        (("f", 3), ArgumentTypeError, "rule=3"),
    ],
)
def test_bad_arguments(given, error, message):
    with pytest.raises(error, match=message):
        alpa_mlir.sharding_rule(*given)
