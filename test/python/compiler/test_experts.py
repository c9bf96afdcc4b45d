"""Experts without a capacity: sorted tokens, products of runs of them, and the way back."""

from __future__ import annotations

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel, Zero3Parallel
from alpa_mlir.trace import tracing
from alpa_runtime.execution.compilation import stage_jobs
from alpa_runtime.execution.executor import donations
from alpa_runtime.execution.program_merge import merge_step, sums_of
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

LAYERS, EXPERTS, CHOSEN, WIDTH, INNER = 2, 8, 2, 16, 32
METHODS = {
    "one mesh": ShardParallel(num_micro_batches=1),
    "collectives": ShardParallel(num_micro_batches=2, export="collectives"),
    "three axes": ShardParallel(num_micro_batches=1, num_mesh_axes=3),
    "micro-batches": ShardParallel(num_micro_batches=4),
    "zero-3": Zero3Parallel(num_micro_batches=1),
    "two stages": PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=2),
}


def parameters():
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def weights(*shape):
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    return [
        {
            "router": weights(WIDTH, EXPERTS),
            "gate": weights(EXPERTS, WIDTH, INNER),
            "up": weights(EXPERTS, WIDTH, INNER),
            "down": weights(EXPERTS, INNER, WIDTH),
            "shared": weights(WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]


def batch(tokens=4):
    """16 sequences. From 1024 tokens on, devices multiply the rows of a group in loops."""
    first, second = jax.random.split(jax.random.key(1))
    shape = (16, tokens, WIDTH)
    return {"x": jax.random.normal(first, shape), "y": jax.random.normal(second, shape)}


def experts(layer, rows, sizes):
    sizes = sizes.astype(jnp.int32)  # Kernels ask for this width, whatever counts have.
    gate = jax.lax.ragged_dot(rows, layer["gate"], sizes)
    return jax.lax.ragged_dot(
        jax.nn.silu(gate) * jax.lax.ragged_dot(rows, layer["up"], sizes), layer["down"], sizes
    )


def order_and_sizes(chosen):
    flat = chosen.reshape(-1)
    return jnp.argsort(flat), jnp.bincount(flat, length=EXPERTS)


def weighted(rows, share):
    return jnp.einsum("tkd,tk->td", rows.reshape(*share.shape, -1), share)


def by_take(layer, x, share, chosen):
    """Tokens by number, and back by a second sort, as MaxText and Levanter have it."""
    order, sizes = order_and_sizes(chosen)
    rows = experts(layer, jnp.take(x, order // CHOSEN, axis=0), sizes)
    return weighted(jnp.take(rows, jnp.argsort(order), axis=0), share)


def by_repeats(layer, x, share, chosen):
    """Repeated tokens, and back by the inverse permutation that a scatter makes."""
    order, _ = order_and_sizes(chosen)
    sizes = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32).sum((0, 1))
    rows = experts(layer, jnp.repeat(x, CHOSEN, axis=0)[order], sizes)
    count = len(order)
    inverse = jnp.zeros(count, jnp.int32).at[order].set(jnp.arange(count, dtype=jnp.int32))
    return weighted(rows[inverse], share)


def by_adding(layer, x, share, chosen):
    """Results are added up where their tokens are."""
    order, sizes = order_and_sizes(chosen)
    token = order // CHOSEN
    rows = experts(layer, x[token], sizes) * share.reshape(-1)[order][:, None]
    return jnp.zeros_like(x).at[token].add(rows)


def by_setting(layer, x, share, chosen):
    """Rows go back to their places by a scatter, whose derivative does not know that it has as
    many places as rows."""
    order, sizes = order_and_sizes(chosen)
    rows = experts(layer, x[order // CHOSEN], sizes)
    return weighted(jnp.zeros_like(rows).at[order].set(rows), share)


def by_payload(layer, x, share, chosen):
    """One sort of experts with all that goes along."""
    flat = chosen.reshape(-1)
    token = jnp.arange(flat.size) // CHOSEN
    key, token, share = jax.lax.sort((flat, token, share.reshape(-1)), num_keys=1)
    sizes = (key[:, None] == jnp.arange(EXPERTS)).sum(0, dtype=jnp.int32)
    rows = experts(layer, x[token], sizes) * share[:, None]
    return jax.ops.segment_sum(rows, token, num_segments=len(x))


FORMS = {form.__name__: form for form in (by_take, by_repeats, by_adding, by_setting, by_payload)}


def step_of_layers(layer_of, remat, scan=False):
    """One layer behind another, and the SGD update; `remat` is a policy of it, or whether."""
    if remat:
        policy = remat if callable(remat) else None
        layer_of = jax.checkpoint(layer_of, policy=policy, prevent_cse=not scan)

    def step(params, batch):
        def loss(params):
            x = batch["x"]
            if scan:
                x, _ = jax.lax.scan(lambda x, layer: (layer_of(layer, x), None), x, params)
            else:
                for layer in params:
                    x = layer_of(layer, x)
            return jnp.mean((x - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def step_of(form, remat=False, scan=False):
    def layer_of(layer, x):
        rows = x.reshape(-1, WIDTH)
        top, chosen = jax.lax.top_k(rows @ layer["router"], CHOSEN)
        made = form(layer, rows, jax.nn.softmax(top), chosen) + jnp.tanh(rows @ layer["shared"])
        return x + made.reshape(x.shape)

    return step_of_layers(layer_of, remat, scan)


ROUNDS = 4


def rounds_of(form, remat=False):
    """The same in rounds, each with the gradients of a part of the batch."""
    loss_of = step_of(form, remat)

    def step(params, batch):
        parts = jax.tree.map(lambda x: x.reshape(ROUNDS, -1, *x.shape[1:]), batch)

        def one(sums, part):
            moved, value = loss_of(params, part)
            steps = jax.tree.map(lambda p, q: p - q, params, moved)
            return (jax.tree.map(jnp.add, sums[0], steps), sums[1] + value), None

        start = (jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))
        (steps, value), _ = jax.lax.scan(one, start, parts)
        return jax.tree.map(lambda p, s: p - s / ROUNDS, params, steps), value / ROUNDS

    return step


def imported(step, *args):
    text = tracing.trace(step, *args).text
    passes = "alpa-import,alpa-unroll-layers,alpa-undo-sorts"
    return alpa_mlir.compiler.Module(text, "step").run(passes).as_text()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("remat", [False, True])
def test_no_sort_is_left(form, remat):
    text = imported(step_of(FORMS[form], remat), parameters(), batch())
    assert "stablehlo.sort" not in text
    assert "stablehlo.gather" not in text
    assert "ragged_dot" not in text
    # Three products of each layer, and three gradients of their rows but for the first two.
    assert text.count("alpa.grouped_dot") >= 6 * LAYERS - 2
    assert text.count("alpa.grouped_sum") == 3 * LAYERS


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    ("form", "method"),
    [
        *(("by_take", method) for method in METHODS),
        *((form, "micro-batches") for form in FORMS if form != "by_take"),
    ],
)
def test_equals_jit(form, method):
    step, state = step_of(FORMS[form]), parameters()
    want = jax.jit(step)(state, batch())
    got = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


def by_one(layer, x, share, chosen):
    """The best expert alone, whose number and counts are as wide as integers are by default."""
    best = jnp.argmax(x @ layer["router"], axis=-1)
    order = jnp.argsort(best)
    rows = experts(layer, x[order], jnp.bincount(best, length=EXPERTS))
    return rows[jnp.argsort(order)] * share[:, :1]


WIDE = FORMS | {"by_one": by_one}


@pytest.mark.parametrize("form", WIDE)
def test_wide_integers_are_undone(form):
    with jax.enable_x64(True):
        step = step_of(WIDE[form])
        text = imported(step, parameters(), batch())
    assert "f64" in text
    assert "stablehlo.sort" not in text
    assert "ragged_dot" not in text


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("form", "method"),
    [
        *(("by_adding", method) for method in ("one mesh", "micro-batches", "two stages")),
        *((form, "micro-batches") for form in ("by_take", "by_payload", "by_one")),
    ],
)
def test_wide_integers_equal_jit(form, method):
    with jax.enable_x64(True):
        step, state = step_of(WIDE[form]), parameters()
        want = jax.jit(step)(state, batch())
        got = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)(state, batch())
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", METHODS)
def test_loops_equal_jit(method):
    step, state, args = step_of(by_take), parameters(), batch(1024)
    want = jax.jit(step)(state, args)
    compiled = alpa_mlir.compile(step, state, args, method=METHODS[method], cache=False)
    assert "stablehlo.while" in "".join(compiled.plan.modules.values())
    got = compiled(state, args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_reach_their_own_rows(bad):
    """As docs/kernels.md has it, beside products with all experts."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 64, 48)).astype(np.float32)
    rows = rng.normal(size=(512, 64)).astype(np.float32)
    sizes = np.array([100, 0, 200, 0, 12, 100, 50, 50], np.int32)

    def step(weights, rows, sizes):
        def loss(weights):
            out = jax.lax.ragged_dot(rows, weights, sizes)
            return jnp.mean(out**2), out

        (_, out), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        return weights - 0.1 * gradients, out

    method = ShardParallel(num_micro_batches=1)
    planned = alpa_mlir.parallelize(step, method=method, batch_argnums=(1,))
    for group, size in ((2, 200), (1, 0)):
        given = weights.copy()
        given[group, 3, 5] = bad
        new, out = planned(given, rows, sizes)
        first = sizes[:group].sum()
        hit = np.zeros(out.shape, bool)
        hit[first : first + size, 5] = True
        np.testing.assert_array_equal(~np.isfinite(out), hit)
        wanted_new, wanted = jax.jit(step)(weights, rows, sizes)
        np.testing.assert_allclose(out[~hit], wanted[~hit], rtol=1e-4, atol=1e-4)
        others = np.arange(8) != group
        np.testing.assert_allclose(new[others], wanted_new[others], rtol=1e-4, atol=1e-4)
        assert not np.isfinite(jax.jit(step)(given, rows, sizes)[1][:, 5]).any()


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("method", ["micro-batches", "two stages"])
def test_kept_products(scan, method):
    """The backward pass sorts again for rows of products that the forward pass has kept."""

    def kept(layer, x, share, chosen):
        order, sizes = order_and_sizes(chosen)
        rows = experts(layer, jnp.take(x, order // CHOSEN, axis=0), sizes)
        rows = checkpoint_name(rows, "rows")
        return weighted(jnp.take(rows, jnp.argsort(order), axis=0), share)

    policy = jax.checkpoint_policies.save_only_these_names("rows")
    step, state = step_of(kept, policy, scan), parameters()
    if scan:
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state)
    assert "stablehlo.sort" not in imported(step, state, batch())
    want = jax.jit(step)(state, batch())
    got = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("export", ["shardy", "collectives"])
@pytest.mark.parametrize(("count", "tokens"), [(1, 4), (2, 4), (2, 1024)])
def test_experts_times_tensor_times_data(export, count, tokens):
    """Each on an axis of two devices, as pinned: experts, their features, and examples."""
    step, state, args = step_of(by_take), parameters(), batch(tokens)
    into, out = P("expert", None, "tensor"), P("expert", "tensor", None)
    layer = {"router": P(), "gate": into, "up": into, "down": out, "shared": P()}
    method = ShardParallel(
        method="manual",
        export=export,
        num_micro_batches=count,
        mesh_shape=(2, 2, 2),
        mesh_axes=("data", "expert", "tensor"),
        in_shardings=([layer] * LAYERS, P("data")),
    )
    want = jax.jit(step)(state, args)
    compiled = alpa_mlir.parallelize(step, method=method, cache=False)
    got = compiled(state, args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "remat"),
    [
        pytest.param(form, remat, marks=() if remat == (i % 2 == 1) else pytest.mark.slow)
        for i, form in enumerate(FORMS)
        for remat in (False, True)
    ],
)
def test_rounds_become_micro_batches(form, remat):
    """Rounds are mapped: each sorts its own tokens, and no sort is left either."""
    step, state = rounds_of(FORMS[form], remat), parameters()
    text = imported(step, state, batch())
    assert "stablehlo.sort" not in text
    assert "ragged_dot" not in text
    want = jax.jit(step)(state, batch())
    method = METHODS["two stages" if remat else "micro-batches"]
    got = alpa_mlir.parallelize(step, method=method, cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_rounds_equal_jit(method):
    step, state = rounds_of(by_take), parameters()
    want = jax.jit(step)(state, batch())
    got = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["one mesh", "micro-batches", "collectives"])
def test_rounds_of_other_sizes(method):
    """Runs of rows that count no keys: the rows stay as the program sorts them."""

    def runs(layer, x, share, chosen):
        order, _ = order_and_sizes(chosen)
        sizes = jnp.full(EXPERTS, 3, jnp.int32) + chosen[:EXPERTS, 0] % 2  # Some rows are in none.
        rows = experts(layer, jnp.take(x, order // CHOSEN, axis=0), sizes)
        return weighted(jnp.take(rows, jnp.argsort(order), axis=0), share)

    step, state = rounds_of(runs), parameters()
    assert "stablehlo.sort" in imported(step, state, batch())
    want = jax.jit(step)(state, batch())
    got = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_shards_sort_their_own(count):
    """A shard_map over examples: each shard sorts its own, with the same weights."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))

    def sharded(layer, x, share, chosen):
        def body(layer, x, share, chosen):
            return by_take(layer, x, share, chosen)

        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(), P("data"), P("data"), P("data")),
            out_specs=P("data"),
        )(layer, x, share, chosen)

    step, state = step_of(sharded), parameters()
    assert "stablehlo.sort" not in imported(step, state, batch())
    want = jax.jit(step)(state, batch())
    method = ShardParallel(num_micro_batches=count)
    got = alpa_mlir.parallelize(step, method=method, cache=False)(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("export", ["shardy", "collectives"])
def test_gpus_sort_on_each_device(form, export):
    """Also for GPUs: the rows of a device are sorted, and multiplied in loops."""
    method = ShardParallel(method="data-parallel", num_micro_batches=4, export=export)
    parallel = alpa_mlir.parallelize(
        step_of(FORMS[form]), cluster="dgx-h100:2", method=method, cache=False
    )
    shapes = jax.eval_shape(lambda: (parameters(), batch(1024)))
    plan = parallel.plan(*shapes).plan
    merged = merge_step(plan)
    jobs = stage_jobs(plan, donations(plan, merged, True), sums_of(merged))
    text = "".join(job.text for job in jobs.values())
    assert "stablehlo.sort" in text
    assert "stablehlo.while" in text
    assert "ragged_dot" not in text
    for job in jobs.values():
        with mlir.make_ir_context():
            ir.Module.parse(job.text)


def gates_by_row(layer, x):
    """All experts for all tokens, with gates written to the places that rows name."""
    places = (jnp.arange(x.shape[0])[:, None, None], jnp.arange(x.shape[1])[:, None])
    top, chosen = jax.lax.top_k(x @ layer["router"], CHOSEN)
    gates = (
        jnp.zeros((*x.shape[:2], layer["router"].shape[-1]))
        .at[*places, chosen]
        .set(jax.nn.softmax(top))
    )
    best = gates[*places, chosen].sum(-1, keepdims=True)
    inner = jax.nn.silu(jnp.einsum("bsd,ndf->bsnf", x, layer["gate"]))
    outer = jnp.einsum("bsnf,nfd->bsnd", inner, layer["down"])
    return best * (x + jnp.einsum("bsnd,bsn->bsd", outer, gates))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("method", ["one mesh", "collectives", "micro-batches", "two stages"])
def test_gates_of_rows_equal_jit(scan, method):
    step, state = step_of_layers(gates_by_row, remat=True, scan=scan), parameters()
    if scan:
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state)
    want = jax.jit(step)(state, batch())
    compiled = alpa_mlir.parallelize(step, method=METHODS[method], cache=False)
    got = compiled(state, batch())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_gates_of_rows_are_split(scan):
    """The rows that indices number, also from outside of a loop, are a dimension of the batch."""
    step = step_of_layers(gates_by_row, remat=True, scan=scan)
    state = [jax.tree.map(lambda leaf: jnp.tile(leaf, (4,) * leaf.ndim), x) for x in parameters()]
    if scan:
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *state)
    examples = jax.tree.map(lambda leaf: jnp.tile(leaf, (4, 4, 4)), batch())
    method = ShardParallel(num_micro_batches=1)
    parallel = alpa_mlir.parallelize(step, cluster="dgx-h100", method=method, cache=False)
    plan = parallel.plan(*jax.eval_shape(lambda: (state, examples))).plan
    rows = plan.explanation(0)["ops"]
    moved = [x for x in rows if x["op"] in ("stablehlo.gather", "stablehlo.scatter")]
    assert moved
    assert not any(row.get("whole") for row in moved), moved


def test_products_are_priced_by_groups():
    """As loops compute them: more groups have more runs, each with weights of its own to copy."""

    def seconds(count, **options):
        rows, width = 8192, 1024
        state = {
            "router": jax.ShapeDtypeStruct((width, count), jnp.float32),
            "experts": jax.ShapeDtypeStruct((count, width, width), jnp.float32),
        }

        def step(state, x):
            def loss(state):
                expert = jnp.argmax(x @ state["router"], -1)
                order = jnp.argsort(expert)
                sizes = jnp.bincount(expert, length=count).astype(jnp.int32)
                out = jax.lax.ragged_dot(x[order], state["experts"], sizes)
                return jnp.mean(jnp.zeros_like(out).at[order].set(out) ** 2)

            value, grads = jax.value_and_grad(loss)(state)
            return jax.tree.map(lambda w, g: w - g, state, grads), value

        method = ShardParallel(num_micro_batches=1, **options)
        parallel = alpa_mlir.parallelize(step, cluster="dgx-a100", method=method, cache=False)
        plan = parallel.plan(state, jax.ShapeDtypeStruct((rows, width), jnp.float32)).plan
        flops = plan.stages[0].predicted["forward_flops"]
        return plan.explanation(0)["compute_seconds"], flops

    few, few_flops = seconds(8, method="data-parallel")
    many, many_flops = seconds(64, method="data-parallel")
    assert 1.5 * few < many < 8 * few  # Eight times the weights, of as many rows.
    assert many_flops < 1.1 * few_flops
