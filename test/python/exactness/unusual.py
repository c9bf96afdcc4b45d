"""Arguments, gradients and loops of kinds that few steps have."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from exactness.harness import Case, style
from exactness.models import (
    CLASSES,
    WIDTH,
    N,
    cross_entropies,
    dense,
    labelled,
    labels,
    layers,
    normal,
    one,
    padded,
    pairs,
    rows,
    sgd,
    trained,
)


def mean_loss(params, b):
    return jnp.mean((dense(params, b["x"]) - b["y"]) ** 2)


@style
def gradients_of_inputs_and_parameters():
    """Adversarial examples: their gradients are returned for each example of a mean loss."""

    def step(params, b):
        def loss(params, x):
            return mean_loss(params, {"x": x, "y": b["y"]})

        value, (grads, of_x) = jax.value_and_grad(loss, (0, 1))(params, b["x"])
        return sgd(params, grads), (value, of_x, jnp.abs(of_x).max())

    return Case(step, (layers(),), one(pairs))


@style(meets="the loss is a square of a sum over examples", one_stage="one layer")
def weights_of_examples():
    """A weight for each row of the batch, and products of one feature with a sum over all."""

    def loss(params, b):
        x = b["x"][:, :1]
        return jnp.sum((x @ jnp.tanh(x).sum(0)) * params["rows"]) ** 2 / N**3

    return Case(trained(loss), ({"rows": normal(3, N)},), one(pairs))


@style(one_stage="one layer")
def least_differences():
    """The least of each example's rounded differences takes a gradient, and a mean of all squares
    has what they are differences of."""

    def loss(params, b):
        moved = b["x"] * (1 + params["scale"])
        least = jnp.sum((moved - b["x"]).min(1) ** 2)
        return jnp.log1p((jnp.log1p(least) * jnp.mean(moved * moved)) ** 2)

    return Case(trained(loss), ({"scale": normal(5, WIDTH)},), one(pairs))


@style(meets="means go back to examples, whose sum is squared", one_stage="one layer")
def means_given_back():
    """Of a mean over the batch each example picks a part; the square of their sum is the loss."""

    def loss(params, b):
        mean = jnp.tanh(b["x"] @ params["w"]).mean(0)
        return jnp.sum(mean[b["pick"]]) ** 2 / N

    def batch(rng):
        return {"x": rows(rng, N, WIDTH), "pick": labels(rng, N, classes=WIDTH)}

    return Case(trained(loss), ({"w": normal(4, WIDTH, WIDTH, scale=0.3)},), one(batch))


@style(one_stage="two gradients one after another")
def adversarial_training():
    """Each example is moved along its gradient, and the loss is that of the moved ones."""

    def step(params, b):
        of_x = jax.grad(lambda x: jnp.sum((dense(params, x) - b["y"]) ** 2))(b["x"])
        moved = b["x"] + 0.1 * of_x / (1 + jnp.abs(of_x))
        value, grads = jax.value_and_grad(mean_loss)(params, {"x": moved, "y": b["y"]})
        return sgd(params, grads), value

    return Case(step, (layers(),), one(pairs))


@style(one_stage="derivatives within the loss")
def physics_informed():
    """Points inside and points at the edge, of two sizes, with means of their own."""

    def step(params, inside, edge):
        def field(params, x):
            return dense(params, x)[0]

        def loss(params):
            second = jax.vmap(lambda x: jnp.trace(jax.hessian(field, 1)(params, x)))(inside)
            at_edge = jax.vmap(field, (None, 0))(params, edge)
            return jnp.mean((second + 1) ** 2) + 3 * jnp.mean(at_edge**2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, 0.05), value

    def batch(rng):
        return rows(rng, 16, 2), rows(rng, 8, 2)

    params = layers((2, 8, 8, 1))
    return Case(step, (params,), batch, options={"batch_argnums": (1, 2)})


@style
def batches_of_two_sizes():
    """Labelled and unlabelled examples, each with a mean of its own."""

    def step(params, known, other):
        def loss(params):
            found = dense(params, other)
            entropy = -jnp.sum(jax.nn.softmax(found) * jax.nn.log_softmax(found), -1)
            losses = cross_entropies(dense(params, known["x"]), known["label"])
            return losses.mean() + 0.3 * entropy.mean(), (len(known["x"]), len(other))

        value, grads = jax.value_and_grad(loss, has_aux=True)(params)
        return sgd(params, grads), value

    def batch(rng):
        return labelled(rng, 8), rows(rng, 16, WIDTH)

    return Case(step, (layers(),), batch, options={"batch_argnums": (1, 2)})


@style
def scalars_among_the_arguments():
    """A learning rate, a step's number and a switch, between state and batch."""

    def step(params, rate, number, on, b):
        value, grads = jax.value_and_grad(mean_loss)(params, b)
        rate = rate * jnp.where(on, 1.0, 0.5) / (1 + number)
        return sgd(params, grads, rate), value

    def batch(rng):
        return np.float32(0.3), np.int32(rng.integers(3)), np.bool_(True), pairs(rng)

    return Case(step, (layers(),), batch, options={"batch_argnums": 4})


@style
def numbers_of_python_as_arguments():
    def step(params, b, rate, smooth):
        def loss(params):
            targets = (1 - smooth) * jax.nn.one_hot(b["label"], CLASSES) + smooth / CLASSES
            log_probs = jax.nn.log_softmax(dense(params, b["x"]))
            return -jnp.mean(jnp.sum(targets * log_probs, -1))

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, rate), value

    def batch(rng):
        return labelled(rng), 0.5, 0.1

    return Case(step, (layers(),), batch, options={"batch_argnums": 1})


@style
def static_arguments():
    def step(params, b, kind, power):
        def loss(params):
            error = dense(params, b["x"]) - b["y"]
            return jnp.mean(jnp.abs(error) ** power if kind == "power" else error)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    def batch(rng):
        return pairs(rng), "power", 2

    return Case(step, (layers(),), batch, options={"batch_argnums": 1, "static_argnums": (2, 3)})


@style
def keyword_only_arguments():
    """Bound by `functools.partial`, or left at their defaults."""

    def step(params, b, *, rate, power=2):
        def loss(params):
            return jnp.mean((dense(params, b["x"]) - b["y"]) ** power)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads, rate), value

    return Case(functools.partial(step, rate=0.5), (layers(),), one(pairs))


@style
def batch_before_the_state():
    def step(b, params):
        value, grads = jax.value_and_grad(mean_loss)(params, b)
        return sgd(params, grads), value

    return Case(step, (layers(),), one(pairs), order=(1, 0), options={"batch_argnums": 0})


@style
def many_batch_arguments():
    def step(params, opt, x, y, weight, rng):
        def loss(params):
            losses = jnp.mean((dense(params, x) - y) ** 2, -1)
            return jnp.sum(losses * weight) / jnp.sum(weight)

        value, grads = jax.value_and_grad(loss)(params)
        opt = jax.tree.map(lambda m, g: 0.9 * m + g, opt, grads)
        rate = 0.3 + 0.1 * jax.random.uniform(rng, dtype=jnp.float32)
        return jax.tree.map(lambda p, m: p - rate * m, params, opt), opt, value

    def batch(rng):
        b = pairs(rng)
        weight = rng.uniform(0.5, 2, N).astype(np.float32)
        return b["x"], b["y"], weight, jax.random.key(int(rng.integers(9)))

    state = (layers(), jax.tree.map(jnp.zeros_like, layers()))
    return Case(step, state, batch, carried=2, options={"batch_argnums": (2, 3, 4)})


@style(one_stage="one layer")
def integers_in_and_out():
    """No floats at all: hashes of rows and their counts."""

    def step(counts, x):
        number = (x * jnp.array([3, 5, 7, 11])).sum(-1) % 13
        counts = counts.at[number].add(1)
        return counts, {"number": number, "max": number.max(), "bits": jnp.bitwise_xor(number, 5)}

    def batch(rng):
        return (rng.integers(0, 100, (N, 4), dtype=np.int32),)

    return Case(step, (jnp.zeros(13, jnp.int32),), batch)


@style
def bytes_of_images():
    def batch(rng):
        x = rng.integers(0, 256, (N, 4, 4, 3), dtype=np.uint8)
        return {"x": x, "label": labelled(rng)["label"]}

    def loss(params, b):
        x = (b["x"].astype(jnp.float32) / 127.5 - 1).reshape(len(b["x"]), -1)
        return cross_entropies(dense(params, x), b["label"]).mean()

    return Case(trained(loss), (layers((48, 8, CLASSES)),), one(batch))


@style(single=True)
def custom_gradients_with_array_literals():
    """A quantizer whose gradient is its own, with levels as an array in the closure."""
    levels = np.array([-0.75, -0.25, 0.25, 0.75], np.float32)

    @jax.custom_vjp
    def quantized(x):
        return jnp.asarray(levels)[jnp.abs(x[..., None] - levels).argmin(-1)]

    def forward(x):
        return quantized(x), x

    def backward(x, g):
        return (g * jnp.where(jnp.abs(x) < 1, 1.0, 0.1),)

    quantized.defvjp(forward, backward)

    def loss(params, b):
        h = quantized(jnp.tanh(b["x"] @ params[0]["w"] + params[0]["b"]))
        return jnp.mean((dense(params[1:], h) - b["y"]) ** 2)

    return Case(trained(loss), (layers(),), one(pairs))


@style
def masks_of_numpy():
    """More Booleans in a closure than MLIR writes one by one."""
    causal = np.tril(np.ones((12, 12), bool))
    kept = np.arange(12 * 12).reshape(12, 12) % 5 > 0

    def loss(params, b):
        h = jnp.tanh(b["x"] @ params[0]["w"] + params[0]["b"])
        scores = jnp.where(causal & kept, h[:, :, None] * h[:, None, :], -1e9)
        h = jnp.einsum("bts,bs->bt", jax.nn.softmax(scores), jnp.where(kept[3], h, 0.5))
        return jnp.mean((dense(params[1:], h) - b["y"]) ** 2)

    return Case(trained(loss), (layers((WIDTH, 12, CLASSES)),), one(pairs))


@style
def vector_quantization():
    """A codebook with its own two losses, and counts of its use."""

    def loss(params, b):
        z = dense(params["encoder"], b["x"])
        apart = jnp.sum((z[:, None] - params["codes"]) ** 2, -1)
        code = apart.argmin(-1)
        chosen = params["codes"][code]
        stop = jax.lax.stop_gradient
        y = dense(params["decoder"], z + stop(chosen - z))
        near = jnp.mean((stop(z) - chosen) ** 2) + 0.25 * jnp.mean((z - stop(chosen)) ** 2)
        return jnp.mean((y - b["x"]) ** 2) + near, jnp.bincount(code, length=6)

    params = {
        "encoder": layers((8, 8, 4)),
        "decoder": layers((4, 8, 8), seed=5),
        "codes": normal(9, 6, 4),
    }
    return Case(trained(loss, has_aux=True), (params,), one(pairs))


@style(one_stage="a loop whose length depends on values")
def implicit_layers():
    """A fixed point of each example by a while loop; the adjoint is one as well."""

    def iterate(f, x):
        return jax.lax.fori_loop(0, 30, lambda _, z: f(z), x)

    @jax.custom_vjp
    def fixed(w, x):
        return iterate(lambda z: jnp.tanh(z @ w + x), jnp.zeros_like(x))

    def forward(w, x):
        z = fixed(w, x)
        return z, (w, x, z)

    def backward(saved, g):
        w, x, z = saved
        _, of_z = jax.vjp(lambda z: jnp.tanh(z @ w + x), z)
        u = iterate(lambda u: g + of_z(u)[0], g)
        _, of_rest = jax.vjp(lambda w, x: jnp.tanh(z @ w + x), w, x)
        return of_rest(u)

    fixed.defvjp(forward, backward)

    def loss(params, b):
        return jnp.mean((fixed(params["w"], b["x"] @ params["in"]) @ params["out"] - b["y"]) ** 2)

    params = {
        "w": normal(0, 8, 8, scale=0.1),
        "in": normal(1, 8, 8, scale=0.35),
        "out": normal(2, 8, 4, scale=0.35),
    }
    return Case(trained(loss), (params,), one(pairs))


@style(couples="the loop runs until all examples have converged", one_stage="a loop of values")
def loops_until_all_converged():
    def step(w, x):
        def more(carry):
            z, old, count = carry
            return (jnp.abs(z - old).max() > 1e-2) & (count < 50)

        def advance(carry):
            z, _, count = carry
            return jnp.tanh(z @ w + x), z, count + 1

        z, _, count = jax.lax.while_loop(more, advance, (x, x + 1, 0))
        return z, count

    return Case(step, (normal(0, 8, 8, scale=0.2),), lambda r: (rows(r, N, 8),), carried=0)


@style(one_stage="one layer", couples="the loop goes on until the last example is done")
def loops_of_each_example():
    """A while loop under vmap: each example stops by itself."""

    def step(w, x):
        def of_one(x):
            def more(carry):
                return (jnp.sum(carry[0] ** 2) > 0.5) & (carry[1] < 20)

            return jax.lax.while_loop(more, lambda c: (jnp.tanh(w @ c[0]), c[1] + 1), (x, 0))

        z, count = jax.vmap(of_one)(x)
        return z, count, count.sum(), count.max()

    return Case(step, (normal(0, 8, 8, scale=0.3),), lambda r: (rows(r, N, 8),), carried=0)


@style
def differential_equation():
    """Runge-Kutta steps in a scan, with gradients through all of them."""

    def loss(params, b):
        def slope(x):
            return jnp.tanh(x @ params["a"]) @ params["b"]

        def advance(x, _):
            half = x + 0.1 * slope(x)
            return x + 0.2 * slope(half), None

        x, _ = jax.lax.scan(advance, b["x"], length=4)
        return jnp.mean((x @ params["out"] - b["y"]) ** 2)

    params = {
        "a": normal(0, 8, 8, scale=0.4),
        "b": normal(1, 8, 8, scale=0.4),
        "out": normal(2, 8, 4, scale=0.4),
    }
    return Case(trained(loss, rate=0.2), (params,), one(pairs))


@style(tolerance=2e-2, single=True)
def bfloat16_parameters():
    def loss(params, b):
        y = dense(params, b["x"].astype(jnp.bfloat16)).astype(jnp.float32)
        return jnp.mean((y - b["y"]) ** 2)

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), layers())
    return Case(trained(loss), (params,), one(pairs))


@style(tolerance=4e-3, single=True)
def float16_with_a_loss_scale():
    def step(params, b):
        def loss(params):
            y = dense(params, b["x"].astype(jnp.float16)).astype(jnp.float32)
            return 64 * jnp.mean((y - b["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, jax.tree.map(lambda g: g / 64, grads)), value / 64

    params = jax.tree.map(lambda p: p.astype(jnp.float16), layers())
    return Case(step, (params,), one(pairs))


@style(tolerance=2e-2, single=True)
def float16_over_tokens():
    """Gradients in half precision would overflow without the factor that counts tokens."""

    def step(state, b):
        def loss(params):
            half = jax.tree.map(lambda p: p.astype(jnp.float16), params)
            y = dense(half, b["x"].astype(jnp.float16)).astype(jnp.float32)
            losses = jnp.sum((y - b["y"]) ** 2, -1)
            return state["scale"] * jnp.sum(losses * b["mask"]) / jnp.sum(b["mask"])

        grads = jax.grad(loss)(state["params"])
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        params = jax.tree.map(
            lambda p, q: jnp.where(finite, q, p), state["params"], sgd(state["params"], grads)
        )
        return {"params": params, "scale": jnp.where(finite, 1, 0.5) * state["scale"]}, finite

    def batch(rng):
        b = pairs(rng)
        return {**b, "mask": np.full(len(b["x"]), 64, np.float32)}

    state = {"params": layers(), "scale": jnp.float32(2.0**12)}
    return Case(step, (state,), one(batch))


@style(meets="the mean of all examples decides")
def branches_by_the_mean():
    def loss(params, b):
        losses = jnp.mean((dense(params, b["x"]) - b["y"]) ** 2, -1)
        return jax.lax.cond(
            losses.mean() > 1,
            lambda x: jnp.mean(x * x),
            lambda x: jnp.mean(jnp.sqrt(x + 1)),
            losses,
        )

    return Case(trained(loss), (layers(),), one(pairs))


@style
def jitted_parts():
    """A jitted gradient in a jitted step, with a jitted update."""
    gradient = jax.jit(jax.value_and_grad(mean_loss))
    update = jax.jit(sgd)

    @jax.jit
    def step(params, b):
        value, grads = gradient(params, b)
        return update(params, grads), value

    return Case(step, (layers(),), one(pairs))


@style
def gradients_by_vjp():
    """The cotangent is made by hand: weights of examples that are divided by their sum."""

    def step(params, b):
        losses, pull = jax.vjp(lambda p: cross_entropies(dense(p, b["x"]), b["label"]), params)
        (grads,) = pull(b["mask"] / b["mask"].sum())
        return sgd(params, grads), losses

    return Case(step, (layers(),), one(padded))


@style
def gradients_of_sums_divided_afterwards():
    """Summed losses in the gradient; the count of tokens divides the gradients."""

    def step(params, b):
        def loss(params):
            losses = cross_entropies(dense(params, b["x"]), b["label"]) * b["mask"]
            return losses.sum(), b["mask"].sum()

        (total, count), grads = jax.value_and_grad(loss, has_aux=True)(params)
        grads = jax.tree.map(lambda g: g / count, grads)
        return sgd(params, grads), {"loss": total / count, "count": count}

    return Case(step, (layers(),), one(padded))


@style
def batches_of_lists_and_none():
    def step(params, batch):
        (x, y), extra = batch["inputs"], batch["extra"]
        assert extra is None
        value, grads = jax.value_and_grad(mean_loss)(params, {"x": x, "y": y})
        return sgd(params, grads), {"loss": value, "none": None, "list": [value, x.mean()]}

    def batch(rng):
        b = pairs(rng)
        return {"inputs": (b["x"], b["y"]), "extra": None}

    return Case(step, (layers(),), one(batch))


@style
def state_that_does_not_change():
    """Leaves that are returned as they came, tied leaves, and constants."""

    def step(state, b):
        value, grads = jax.value_and_grad(mean_loss)(state["params"], b)
        new = {**state, "params": sgd(state["params"], grads)}
        return new, {"loss": value, "name": 3, "rate": jnp.float32(0.5), "old": state["table"][0]}

    state = {"params": layers(), "table": normal(1, 3, 3), "flag": jnp.array(True)}
    return Case(step, (state,), one(pairs))


@style
def branches_on_a_count():
    """Every second step does another update, by cond on the state."""

    def step(params, count, b):
        value, grads = jax.value_and_grad(mean_loss)(params, b)
        new = jax.lax.cond(
            count % 2 == 0,
            lambda: sgd(params, grads),
            lambda: jax.tree.map(lambda p, g: 0.99 * p - 0.1 * g, params, grads),
        )
        return new, count + 1, value

    return Case(step, (layers(), jnp.int32(0)), one(pairs), carried=2)


@style
def branches_of_each_example():
    """A switch under vmap, so a select of three networks."""

    def loss(params, b):
        heads = [lambda h, w=w: h @ w for w in params["heads"]]

        def of_one(x, label, y):
            return jnp.mean((jax.lax.switch(label % 3, heads, jnp.tanh(x @ params["w"])) - y) ** 2)

        return jax.vmap(of_one)(b["x"], b["label"], b["y"]).mean()

    def batch(rng):
        return {**labelled(rng), **pairs(rng)}

    params = {
        "w": normal(0, 8, 8, scale=0.35),
        "heads": [normal(i, 8, 4, scale=0.35) for i in (1, 2, 3)],
    }
    return Case(trained(loss), (params,), one(batch))


@style
def reinforcement_with_returns():
    """Discounted returns over time by a reversed scan, within each example."""

    def batch(rng):
        return {
            "x": rows(rng, 8, 5, WIDTH),
            "action": rng.integers(0, CLASSES, (8, 5), dtype=np.int32),
            "reward": rows(rng, 8, 5),
        }

    def loss(params, b):
        def back(total, reward):
            total = reward + 0.9 * total
            return total, total

        start = jnp.zeros(len(b["reward"]))
        _, returns = jax.lax.scan(back, start, b["reward"].T, reverse=True)
        losses = cross_entropies(dense(params, b["x"]), b["action"])
        return (losses * returns.T).mean(), returns[0].mean()

    return Case(trained(loss, has_aux=True), (layers(),), one(batch))


@style
def actor_and_critic():
    """Two networks, a target network, and a loss of each in one gradient."""

    def batch(rng):
        return {"x": rows(rng, N, 8), "next": rows(rng, N, 8), "reward": rows(rng, N)}

    def step(state, b):
        def loss(params):
            action = jnp.tanh(dense(params["actor"], b["x"]))
            later = jnp.tanh(dense(params["actor"], b["next"]))
            value = dense(params["critic"], jnp.concatenate([b["x"], action], 1))[:, 0]
            target = dense(state["target"], jnp.concatenate([b["next"], later], 1))[:, 0]
            wanted = jax.lax.stop_gradient(b["reward"] + 0.9 * target)
            return jnp.mean((value - wanted) ** 2) - 0.1 * jnp.mean(value)

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = sgd(state["params"], grads, 0.2)
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state["target"], params["critic"])
        return {"params": params, "target": target}, value

    params = {"actor": layers((8, 8, 4)), "critic": layers((12, 8, 1), seed=3)}
    state = {"params": params, "target": layers((12, 8, 1), seed=7)}
    return Case(step, (state,), one(batch))


@style
def linear_recurrence():
    """A scan by doubling, which ends with slices of nothing, and a parameter without elements."""

    def step(params, b):
        def loss(params):
            gates = jax.nn.sigmoid(b["x"] @ params["gates"])
            inputs = b["x"] @ params["inputs"]

            def join(left, right):
                return left[0] * right[0], right[1] + right[0] * left[1]

            _, states = jax.lax.associative_scan(join, (gates, inputs), axis=1)
            return jnp.mean((states @ params["out"] - b["y"]) ** 2) + params["none"].sum()

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    def batch(rng):
        return {"x": rows(rng, 8, 6, WIDTH), "y": rows(rng, 8, 6, 1)}

    params = {"gates": normal(0, WIDTH, 4), "inputs": normal(1, WIDTH, 4)}
    params |= {"out": normal(2, 4, 1), "none": np.zeros((0, 3), np.float32)}
    return Case(step, (params,), one(batch))
