"""A step's own loops of gradient accumulation are planned as micro-batches."""

from __future__ import annotations

import itertools
import operator
import warnings
from dataclasses import replace
from functools import partial

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel, ShardParallel
from alpa_mlir.errors import MethodError, PlanMismatchError
from alpa_mlir.trace.accumulation import _counted_rounds, _StaysError
from alpa_runtime.calling_convention import CallingConvention
from test_equality import CLUSTER, relative_difference

ROUNDS, ROWS, WIDTH, LAYERS = 4, 16, 16, 4
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def loss_of(params, x, y, weights=None, key=None, remat=False):
    """Mean square error of a scanned model, of weighted examples, with dropout."""

    def layer(h, w):
        return h + jnp.tanh(h @ w["up"]) @ w["down"], None

    h, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, params["layers"])
    if key is not None:
        h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h, 0)
    error = jnp.mean((h @ params["out"] - y) ** 2, -1)
    return jnp.mean(error) if weights is None else jnp.sum(error * weights)


def make_state():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "layers": {
            "up": 0.3 * jax.random.normal(keys[0], (LAYERS, WIDTH, 2 * WIDTH)),
            "down": 0.3 * jax.random.normal(keys[1], (LAYERS, 2 * WIDTH, WIDTH)),
        },
        "out": 0.3 * jax.random.normal(keys[2], (WIDTH, WIDTH)),
    }
    return params, OPTIMIZER.init(params)


def make_batch():
    keys = jax.random.split(jax.random.key(1), 3)
    return {
        "x": jax.random.normal(keys[0], (ROWS, WIDTH)),
        "y": jax.random.normal(keys[1], (ROWS, WIDTH)),
        "weights": jax.random.uniform(keys[2], (ROWS,)),
    }


def updated(state, gradients):
    params, opt = state
    changes, opt = OPTIMIZER.update(gradients, opt, params)
    return optax.apply_updates(params, changes), opt


def cut(batch):
    return jax.tree.map(lambda x: x.reshape(ROUNDS, ROWS // ROUNDS, *x.shape[1:]), batch)


def zeros_of(params):
    return jax.tree.map(jnp.zeros_like, params)


def added(a, b):
    return jax.tree.map(jnp.add, a, b)


def mean(tree):
    return jax.tree.map(lambda x: x / ROUNDS, tree)


def scanned(state, batch, remat=False, reverse=False, unroll=1):
    def one(total, part):
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"], remat=remat)
        return added(total, gradients), loss

    gradients, losses = jax.lax.scan(
        one, zeros_of(state[0]), cut(batch), reverse=reverse, unroll=unroll
    )
    return updated(state, mean(gradients)), {"loss": losses.mean(), "losses": losses}


def sliced(state, batch):
    """A `fori_loop` that slices the batch and counts."""
    rows = ROWS // ROUNDS

    def one(i, carry):
        gradients, loss, losses = carry
        part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * rows, rows), batch)
        new_loss, new = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        losses = jax.lax.dynamic_update_index_in_dim(losses, new_loss, i, 0)
        return added(gradients, new), loss + new_loss, losses

    start = zeros_of(state[0]), jnp.zeros(()), jnp.zeros((ROUNDS,))
    gradients, loss, losses = jax.lax.fori_loop(0, ROUNDS, one, start)
    return updated(state, mean(gradients)), (loss / ROUNDS, losses)


def indexed(state, batch):
    """Rounds are found by an index, and the accumulators begin with a part of the gradients."""
    parts = cut(batch)

    @jax.jit
    def one(i, carry):
        total, largest = carry
        part = jax.tree.map(lambda x: x[i], parts)
        gradients = jax.grad(loss_of)(state[0], part["x"], part["y"])
        return added(gradients, total), jnp.maximum(largest, optax.tree.norm(gradients))

    decay = jax.tree.map(lambda x: 1e-3 * x, state[0])
    total, largest = jax.lax.fori_loop(0, ROUNDS, one, (decay, jnp.zeros(())))
    return updated(state, total), largest


def weighted(state, batch, key):
    """Gradients of a weighted sum, divided at the end; a key that rounds hand on."""

    def one(carry, part):
        total, loss, weight, key = carry
        key, now = jax.random.split(key)
        new_loss, gradients = jax.value_and_grad(loss_of)(
            state[0], part["x"], part["y"], part["weights"], now
        )
        carry = added(total, gradients), loss + new_loss, weight + part["weights"].sum(), key
        return carry, None

    start = zeros_of(state[0]), 0.0, 0.0, key
    (gradients, loss, weight, _), _ = jax.lax.scan(one, start, cut(batch))
    gradients = jax.tree.map(lambda x: x / weight, gradients)
    return updated(state, gradients), loss / weight


def normalized(state, batch):
    """Each round divides by its own sum of weights; half precision within."""

    def one(total, part):
        def loss_of_part(params):
            half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
            loss = loss_of(half, part["x"], part["y"], part["weights"])
            return loss / part["weights"].sum()

        loss, gradients = jax.value_and_grad(loss_of_part)(state[0])
        return added(total, gradients), loss

    gradients, losses = jax.lax.scan(one, zeros_of(state[0]), cut(batch))
    return updated(state, mean(gradients)), losses


def folded(state, batch, key):
    """A counter makes each round's key."""

    def one(i, total):
        part = jax.tree.map(lambda x: x[i], cut(batch))
        key_of_round = jax.random.fold_in(key, i)
        gradients = jax.grad(loss_of)(state[0], part["x"], part["y"], key=key_of_round)
        return added(total, gradients)

    return updated(state, mean(jax.lax.fori_loop(0, ROUNDS, one, zeros_of(state[0])))), ()


def alternating(state, batch):
    """Rounds of every fourth row, as programs take that keep each device's rows on it; the batch
    is read as a whole, too."""
    shape = ROWS // ROUNDS, ROUNDS
    parts = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]).swapaxes(0, 1), batch)

    def one(total, part):
        def loss_of_part(params):
            loss = loss_of(params, part["x"], part["y"], part["weights"])
            return loss / part["weights"].sum()

        loss, gradients = jax.value_and_grad(loss_of_part)(state[0])
        return added(total, gradients), loss

    gradients, losses = jax.lax.scan(one, zeros_of(state[0]), parts)
    firsts = jnp.cumsum(batch["weights"])
    return updated(state, mean(gradients)), losses, firsts


def derived(state, batch):
    """Rounds of every so many rows of what is made of arguments, in a function that is called
    twice: with the batch, and with what is neither the batch nor made of it."""
    shape = ROWS // ROUNDS, ROUNDS

    @jax.jit
    def accumulated(params, x, y):
        parts = [a.reshape(*shape, *a.shape[1:]).swapaxes(0, 1) for a in (x, y)]

        def one(total, part):
            loss, gradients = jax.value_and_grad(loss_of)(params, *part)
            return added(total, gradients), loss

        return jax.lax.scan(one, zeros_of(params), parts)

    noise = jnp.sin(jnp.arange(ROWS * WIDTH, dtype=jnp.float32)).reshape(ROWS, WIDTH)
    scaled = (batch["x"] / 2 + 1).astype(jnp.bfloat16).astype(jnp.float32)
    first, losses = accumulated(state[0], scaled, batch["y"])
    second, others = accumulated(state[0], scaled * noise, batch["y"] - batch["x"])
    third, last = accumulated(state[0], state[0]["out"], batch["y"])
    return updated(state, mean(added(first, added(second, third)))), losses, others, last


def placed(state, batch):
    """Gradients that are pinned as they are added up, counts at an index, and a round that is a
    checkpoint."""
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((2,), ("data",), axis_types=kinds)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data"))

    def pinned(x):
        return jax.lax.with_sharding_constraint(x, spec)

    @jax.checkpoint
    def one(carry, part):
        total, counts, i = carry
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        total = jax.tree.map(lambda a, b: pinned(pinned(a) + b), total, gradients)
        return (total, counts.at[i % 2].add(part["weights"].sum()), i + 1), loss

    start = zeros_of(state[0]), jnp.zeros((2,)), 0
    (gradients, counts, _), losses = jax.lax.scan(one, start, cut(batch))
    return updated(state, mean(gradients)), losses, counts


def skipping(state, batch):
    """Rounds that are not finite count nothing; each round writes its loss."""
    parts = cut(batch)

    def one(i, carry):
        total, losses = carry
        part = jax.tree.map(lambda x: x[i], parts)
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        ok = jnp.isfinite(jnp.where(i == 2, jnp.nan, loss))
        total = jax.tree.map(lambda a, b: jnp.where(ok, a + b, a), total, gradients)
        return total, losses.at[i].set(loss)

    start = zeros_of(state[0]), jnp.zeros((ROUNDS,))
    gradients, losses = jax.lax.fori_loop(0, ROUNDS, one, start)
    return updated(state, mean(gradients)), losses


def contrasted(state, batch):
    """The examples of a round are compared with each other, which no micro-batch would do."""

    def one(total, part):
        def loss_of_part(params):
            scores = (part["x"] @ params["out"]) @ part["y"].T
            others = jnp.mean(jnp.diag(jax.nn.log_softmax(scores)))
            return loss_of(params, part["x"], part["y"]) - others

        loss, gradients = jax.value_and_grad(loss_of_part)(state[0])
        return added(gradients, total), loss

    gradients, losses = jax.lax.scan(one, zeros_of(state[0]), cut(batch))
    return updated(state, mean(gradients)), losses


def clipped(state, batch):
    """Gradients of single examples, each of a norm of at most one."""

    def one(total, part):
        gradients = jax.grad(loss_of)(state[0], part["x"][None], part["y"][None])
        scale = jnp.minimum(1.0, 1.0 / optax.tree.norm(gradients))
        return jax.tree.map(lambda a, b: a + scale * b, total, gradients), scale

    gradients, scales = jax.lax.scan(one, zeros_of(state[0]), batch)
    return updated(state, gradients), scales


def listed(state, batch):
    """Each round gives out its gradients."""

    def one(part):
        return jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])

    losses, gradients = jax.lax.map(one, cut(batch))
    return updated(state, jax.tree.map(lambda g: g.mean(0), gradients)), losses


def listed_by_example(state, batch):
    """Gradients of single examples, of which the norms decide what counts."""

    def one(part):
        return jax.grad(loss_of)(state[0], part["x"][None], part["y"][None])

    gradients = jax.lax.map(one, batch)
    norms = jax.vmap(optax.tree.norm)(gradients)
    scale = jnp.minimum(1.0, 1.0 / norms)
    summed = jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), gradients)
    return updated(state, summed), norms


def counted(state, batch):
    """A `while_loop` whose condition is a number of rounds; one within, of three runs."""
    parts = cut(batch)

    def one(carry):
        i, total, losses = carry
        part = jax.tree.map(lambda x: x[i], parts)
        scale = jax.lax.while_loop(
            lambda c: c[1] < 3, lambda c: (0.5 * c[0], c[1] + 1), (jnp.max(part["x"]), 0)
        )[0]
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"] * scale, part["y"])
        return i + 1, added(total, gradients), losses.at[i].set(loss)

    start = 0, zeros_of(state[0]), jnp.zeros((ROUNDS,))
    _, gradients, losses = jax.lax.while_loop(lambda c: c[0] < ROUNDS, one, start)
    return updated(state, mean(gradients)), losses


def counting(state, batch, begin, compare, by, part_of):
    """A `while_loop` with another counter than the number of rounds so far."""

    def one(carry):
        i, total, loss = carry
        part = part_of(batch, i)
        found, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        return by(i), added(total, gradients), loss + found

    start = begin, zeros_of(state[0]), 0.0
    i, gradients, loss = jax.lax.while_loop(lambda c: compare(c[0]), one, start)
    return updated(state, mean(gradients)), (i, loss)


def rows_from(batch, i):
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i, ROWS // ROUNDS), batch)


def part_at(batch, i):
    return jax.tree.map(lambda x: x[i], cut(batch))


COUNTS = {
    "while of rows": (0, lambda i: i < ROWS, lambda i: i + 4, rows_from),
    "while to the last": (1, lambda i: i <= 4, lambda i: 1 + i, lambda b, i: part_at(b, i - 1)),
    "while down": (4, lambda i: i > 0, lambda i: i - 1, lambda b, i: part_at(b, i - 1)),
    "while down to zero": (3, lambda i: i >= 0, lambda i: i - 1, part_at),
    "while not there": (0, lambda i: i != -4, lambda i: i - 1, lambda b, i: part_at(b, -i)),
}
STEPS = {
    **{
        name: (partial(counting, begin=a, compare=b, by=c, part_of=d), ["one mesh"])
        for name, (a, b, c, d) in COUNTS.items()
    },
    "map": (listed, ["one mesh", "half of the rounds", "two stages"]),
    "map of examples": (listed_by_example, ["one mesh"]),
    "while": (counted, ["one mesh", "two stages"]),
    "scan": (scanned, ["one mesh", "half of the rounds", "two stages"]),
    "remat": (partial(scanned, remat=True), ["two stages"]),
    "reverse": (partial(scanned, reverse=True), ["one mesh"]),
    "unroll": (partial(scanned, unroll=2), ["one mesh"]),
    "slices": (sliced, ["half of the rounds", "two stages"]),
    "index": (indexed, ["two stages"]),
    "weights": (weighted, ["one mesh", "two stages"]),
    "normalized": (normalized, ["one mesh", "two stages"]),
    "counter": (folded, ["half of the rounds", "two stages"]),
    "alternating": (alternating, ["one mesh", "half of the rounds", "two stages"]),
    "derived": (derived, ["one mesh", "two stages"]),
    "placed": (placed, ["one mesh", "two stages"]),
    "skips": (skipping, ["one mesh", "two stages"]),
    "contrast": (contrasted, ["half of the rounds", "two stages"]),
    "clipped": (clipped, ["one mesh"]),
}

METHODS = {
    "one mesh": ShardParallel(mesh_shape=(2, 2)),
    "half of the rounds": AutoParallel(num_micro_batches=[2]),
    "two stages": PipeshardParallel(submeshes=[(1, 2), (1, 2)]),
}


def arguments_of(step):
    keys = (jax.random.key(7),) if step in (weighted, folded) else ()
    return make_state(), make_batch(), *keys


def compiled(step, arguments, method):
    return alpa_mlir.compile(
        step, *arguments, cluster=CLUSTER, method=method, batch_argnums=1, cache=False
    )


def check(planned, step, arguments, limit=1e-5):
    """Compare results, and changes of the state, with those of `jax.jit`."""

    def changes(result):
        pairs = zip(jax.tree.leaves(result), jax.tree.leaves(arguments[0]), strict=True)
        return [np.asarray(new) - np.asarray(old) for new, old in pairs]

    expected, found = jax.jit(step)(*arguments), planned(*arguments)
    assert relative_difference(found[1:], expected[1:]) < limit
    assert relative_difference(changes(found[0]), changes(expected[0])) < limit


@pytest.mark.sweep(16)
@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name, (_, methods) in STEPS.items() for method in methods],
)
def test_rounds_become_micro_batches(name, method):
    step, _ = STEPS[name]
    arguments = arguments_of(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        planned = compiled(step, arguments, METHODS[method])
    rounds = ROWS if name in ("clipped", "map of examples") else ROUNDS
    assert planned.plan.num_micro_batches == (2 if method == "half of the rounds" else rounds)
    assert planned.plan.schedule != "inference"
    check(planned, step, arguments, 2e-2 if name == "normalized" else 1e-5)


def trained(state, batch):
    """Several steps in a loop."""

    def one(state, part):
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        return updated(state, gradients), loss

    return jax.lax.scan(one, state, cut(batch))


def averaged(state, batch):
    """An average that rounds hand on, of what they compute."""

    def one(carry, part):
        loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
        return (added(carry[0], gradients), 0.9 * carry[1] + 0.1 * loss), None

    (gradients, average), _ = jax.lax.scan(one, (zeros_of(state[0]), 0.0), cut(batch))
    return updated(state, mean(gradients)), average


def deciding(state, batch):
    """A round that computes one thing or another."""

    def one(total, part):
        def long(params):
            return jax.value_and_grad(loss_of)(params, part["x"], part["y"])

        def short(params):
            return 0.0, zeros_of(params)

        loss, gradients = jax.lax.cond(part["weights"].sum() > 2, long, short, state[0])
        return added(total, gradients), loss

    gradients, losses = jax.lax.scan(one, zeros_of(state[0]), cut(batch))
    return updated(state, mean(gradients)), losses


def halved(state, batch):
    """A loop within that runs until a value of the round is small."""

    def one(total, part):
        x, y, most = part["x"], part["y"], jnp.max(jnp.abs(part["x"]))
        scale = jax.lax.while_loop(lambda c: c > 1, lambda c: 0.5 * c, most)
        loss, gradients = jax.value_and_grad(loss_of)(state[0], x * scale, y)
        return added(total, gradients), loss

    gradients, losses = jax.lax.scan(one, zeros_of(state[0]), cut(batch))
    return updated(state, mean(gradients)), losses


def converted(state, batch):
    """Sums in another type than the gradients'."""

    def one(total, part):
        gradients = jax.grad(loss_of)(state[0], part["x"], part["y"])
        return jax.tree.map(lambda t, g: (t + g).astype(jnp.bfloat16), total, gradients), None

    start = jax.tree.map(lambda x: jnp.zeros_like(x, jnp.bfloat16), state[0])
    total = jax.lax.scan(one, start, cut(batch))[0]
    return updated(state, mean(jax.tree.map(lambda t: t.astype(jnp.float32), total))), ()


def until(condition):
    """Rounds until something is reached."""

    def step(state, batch):
        parts, computed = cut(batch), jnp.int32(batch["x"].sum() < -1e6)

        def one(carry):
            i, total, losses = carry
            part = jax.tree.map(lambda x: x[jnp.int32(i)], parts)
            loss, gradients = jax.value_and_grad(loss_of)(state[0], part["x"], part["y"])
            return i + 1, added(total, gradients), losses + loss

        begin = {"loss": 0, "computed": computed, "real": 0.0}[condition]
        start = begin, zeros_of(state[0]), 0.0
        by_loss = condition == "loss"
        _, total, losses = jax.lax.while_loop(
            lambda c: (c[0] < ROUNDS) & (c[2] < 1e6) if by_loss else c[0] < ROUNDS, one, start
        )
        return updated(state, mean(total)), losses

    return jax.jit(step) if condition == "real" else step


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (converted, "converts the sum of those before it, of type bfloat16; fix: add up"),
        (until("loss"), "not one comparison of a counter with a number, .*; fix: use jax.lax.scan"),
        (
            until("computed"),
            "its counter begins with .* is computed, .*; fix: begin with a Python number",
        ),
        (until("real"), "does not go to a number in whole steps .*; fix: use jax.lax.scan"),
        (halved, "decides by its own"),
        (averaged, r"needs float32\[\] .* at \S*test_accumulation.py:\d+:\d+ .* for more than"),
        (deciding, "decides by its own"),
    ],
)
def test_other_loops_stay_and_say_why(step, reason):
    arguments = arguments_of(step)
    with pytest.warns(UserWarning, match=reason):
        planned = compiled(step, arguments, METHODS["one mesh"])
    assert planned.plan.num_micro_batches == 1
    check(planned, step, arguments)


def trained_by_momentum(state, batch):
    """Several steps, in a loop that ends by a value, with a sum of the gradients' norms."""
    parts = cut(batch)

    def one(carry):
        i, params, momentum, norms = carry
        part = jax.tree.map(lambda x: x[i], parts)
        gradients = jax.grad(loss_of)(params, part["x"], part["y"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        return i + 1, params, momentum, norms + optax.tree.norm(gradients)

    start = 0, state[0], zeros_of(state[0]), 0.0
    _, params, _, norms = jax.lax.while_loop(lambda c: (c[0] < ROUNDS) & (c[3] < 1e6), one, start)
    return (params, *state[1:]), norms


@pytest.mark.parametrize("step", [trained, trained_by_momentum])
def test_several_steps_of_training_stay(step):
    arguments = arguments_of(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        planned = compiled(step, arguments, METHODS["one mesh"])
    assert planned.plan.num_micro_batches == 1
    check(planned, step, arguments)


def test_rounds_of_a_counter_are_those_that_run():
    """Of all comparisons, steps and ends; also where a counter passes the end of its type."""
    comparisons = operator.lt, operator.le, operator.gt, operator.ge, operator.ne
    types = {np.int8: (-128, 127), np.uint8: (0, 255)}
    known = 0
    for holds, (dtype, ends) in itertools.product(comparisons, types.items()):
        numbers = [dtype(x) for x in (*ends, 9)]
        for begin, end, by in itertools.product(numbers, numbers, (-3, -1, 1, 4)):
            step, size = (operator.sub if by < 0 else operator.add), dtype(abs(by))

            def after(i, step=step, size=size):
                return step(i, size)

            closed = jax.make_jaxpr(
                lambda: jax.lax.while_loop(lambda i: holds(i, end), after, begin)  # noqa: B023
            )()
            try:
                rounds = _counted_rounds(closed.jaxpr.eqns[-1])
            except _StaysError:
                continue
            known += 1
            i = np.asarray([begin])
            for _ in range(rounds):
                assert holds(i, end).all()
                i = after(i)
            assert not holds(i, end).any()
    assert known > 150


def test_rounds_of_other_rows_say_so():
    """Half of the batch in rounds, a step down instead of gradients, and a sum beside."""

    def step(state, batch):
        def one(carry, i):
            total, _ = carry
            start = ROWS // 2 + 2 * i
            x, y = (jax.lax.dynamic_slice_in_dim(batch[name], start, 2) for name in "xy")
            gradients = jax.grad(loss_of)(state[0], x, y)
            return (jax.tree.map(jnp.subtract, total, gradients), 0.5 * batch["x"].sum()), i

        start = zeros_of(state[0]), 0.0
        (down, total), order = jax.lax.scan(one, start, jnp.arange(ROUNDS))
        return updated(state, jax.tree.map(jnp.negative, down)), total, order

    arguments = arguments_of(step)
    with pytest.warns(UserWarning, match="one pass over the whole batch"):
        planned = compiled(step, arguments, METHODS["one mesh"])
    check(planned, step, arguments)


def test_rounds_that_do_not_divide_the_batch():
    """Three rounds of four rows leave rows out; loops of four and of three are not one plan's."""

    def of_rows(state, rows):
        def one(total, part):
            return added(total, jax.grad(loss_of)(state[0], *part)), None

        return jax.lax.scan(one, zeros_of(state[0]), rows)[0]

    def cut_in(batch, rounds):
        parts = [batch[name][: 12 if rounds == 3 else 16] for name in "xy"]
        return [x.reshape(rounds, 4, WIDTH) for x in parts]

    def three(state, batch):
        return updated(state, of_rows(state, cut_in(batch, 3))), ()

    def both(state, batch):
        totals = [of_rows(state, cut_in(batch, rounds)) for rounds in (4, 3)]
        return updated(state, added(*totals)), ()

    for step, reason in ((three, "3 rounds do not divide"), (both, "no common divisor")):
        arguments = arguments_of(step)
        with pytest.warns(UserWarning, match=reason):
            planned = compiled(step, arguments, METHODS["one mesh"])
        check(planned, step, arguments)


def test_loops_stay_where_rounds_cannot_be_split():
    """Examples are normalized over the batch twice, with products in between."""

    def step(state, batch):
        def normalized(x):
            return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)

        mixed = normalized(jnp.tanh(normalized(batch["x"] @ state[0]["out"]) @ state[0]["out"]))
        mixed = mixed[jnp.argsort(mixed[:, 0])]

        def one(total, part):
            return added(total, jax.grad(loss_of)(state[0], *part)), None

        parts = mixed.reshape(ROUNDS, -1, WIDTH), batch["y"].reshape(ROUNDS, -1, WIDTH)
        total, _ = jax.lax.scan(one, zeros_of(state[0]), parts)
        return updated(state, mean(total)), ()

    arguments = arguments_of(step)
    with pytest.warns(UserWarning, match="stays a loop|one pass over the whole batch"):
        planned = compiled(step, arguments, METHODS["one mesh"])
    check(planned, step, arguments)


def test_numbers_that_do_not_divide_the_rounds():
    arguments = arguments_of(scanned)
    with pytest.raises(MethodError, match=r"8 micro-batches of a step .* 4 rounds"):
        compiled(scanned, arguments, ShardParallel(num_micro_batches=8))
    planned = compiled(scanned, arguments, AutoParallel(num_micro_batches=[2, 8]))
    assert planned.plan.num_micro_batches == 2


def test_rows_are_grouped_wherever_a_plan_is_called(tmp_path):
    """A saved plan, and a loader's batches."""
    arguments = arguments_of(alternating)
    planned = alpa_mlir.parallelize(
        alternating, cluster=CLUSTER, method=METHODS["two stages"], cache=False
    ).plan(*arguments)
    planned.plan.save(tmp_path / "plan")
    loaded = alpa_mlir.load(tmp_path / "plan", donate_state=False)
    check(loaded, alternating, arguments)
    state, batch = arguments
    with alpa_mlir.DataLoader([batch, batch], loaded) as loader:
        for placed in loader:
            check(
                lambda state, _, placed=placed: loaded(state, placed), alternating, (state, batch)
            )


def test_damaged_rounds_are_refused(tmp_path):
    arguments = arguments_of(alternating)
    step = alpa_mlir.parallelize(
        alternating, cluster=CLUSTER, method=METHODS["one mesh"], cache=False
    )
    plan = step.plan(*arguments).plan
    assert sorted(plan.call.interleaved.values()) == [ROUNDS] * 3
    damaged = replace(plan.call, interleaved={len(plan.inputs) - 1: 3})
    with pytest.raises(PlanMismatchError, match="rows alternate between 3 rounds"):
        CallingConvention.from_plan(replace(plan, call=damaged))
