"""Small programs, each around one part of JAX that real models lean on."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from .base import Model, PyTree, training_model

_IN, _HIDDEN = 8, 16


def _params(key: jax.Array) -> PyTree:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (_IN, _HIDDEN)) * 0.3,
        "b1": jnp.zeros(_HIDDEN),
        "w2": jax.random.normal(second, (_HIDDEN, _IN)) * 0.3,
    }


def _batch(key: jax.Array, batch_size: int) -> PyTree:
    return {"x": jax.random.normal(key, (batch_size, _IN)), "y": jnp.ones((batch_size, _IN))}


def _regression(name: str, middle, *tags: str, tx=None) -> Model:
    """Linear, `middle(hidden, params)`, linear, mean squared error."""

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        hidden = batch["x"] @ params["w1"] + params["b1"]
        return jnp.mean((middle(hidden) @ params["w2"] - batch["y"]) ** 2)

    tx = tx or optax.sgd(0.05)
    return training_model(name, _params, _batch, loss, tx, frozenset({*tags, "train"}))


def make_dropout(name: str = "dropout", typed_key: bool = False) -> Model:
    """Dropout whose key is part of the state and is split at every step."""
    tx = optax.sgd(0.05)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        params = _params(jax.random.PRNGKey(0))
        key = jax.random.key(7) if typed_key else jax.random.PRNGKey(7)
        state = {"params": params, "opt_state": tx.init(params), "key": key}
        return state, _batch(jax.random.PRNGKey(1), batch_size)

    def loss_fn(params: PyTree, batch: PyTree, key: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"])
        keep = jax.random.bernoulli(key, 0.8, hidden.shape)
        noise = 0.01 * jax.random.normal(jax.random.fold_in(key, 1), hidden.shape)
        hidden = jnp.where(keep, hidden / 0.8, 0.0) + noise
        return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss_fn(state["params"], batch, state["key"])

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        key, used = jax.random.split(state["key"])
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch, used)
        updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "key": key}, {"loss": loss}

    tags = frozenset({"random", "train"} | ({"typed_key"} if typed_key else set()))
    return Model(name, forward, step, init, tags)


class _DropoutNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(_IN, _HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(_HIDDEN, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.second = nnx.Linear(_HIDDEN, _IN, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.dropout(nnx.relu(self.norm(self.first(x)))))


def make_nnx_dropout(name: str = "nnx_dropout") -> Model:
    """An nnx module with typed PRNG keys and batch statistics in its state."""

    def build() -> tuple[_DropoutNet, nnx.Optimizer]:
        net = _DropoutNet(nnx.Rngs(0))
        return net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

    graph = nnx.graphdef(nnx.eval_shape(build))

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        state = jax.jit(lambda: nnx.state(build()))()
        return state, _batch(jax.random.PRNGKey(1), batch_size)

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        net, _ = nnx.merge(graph, state)
        net.eval()
        return net(batch["x"])

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        net, optimizer = nnx.merge(graph, state)

        def loss_fn(net: _DropoutNet) -> jax.Array:
            return jnp.mean((net(batch["x"]) - batch["y"]) ** 2)

        loss, grads = nnx.value_and_grad(loss_fn)(net)
        optimizer.update(net, grads)
        return nnx.state((net, optimizer)), {"loss": loss}

    return Model(name, forward, step, init, frozenset({"nnx", "random", "typed_key", "train"}))


def make_random_bits(name: str = "random_bits") -> Model:
    """Several generators and distributions; nothing is trained."""

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        state = {"key": jax.random.PRNGKey(3), "xla_key": jax.random.key(5, impl="rbg")}
        return state, {"x": jnp.arange(batch_size * 4.0).reshape(batch_size, 4)}

    def forward(state: PyTree, batch: PyTree) -> PyTree:
        x = batch["x"]
        uniform = jax.random.uniform(state["key"], x.shape)
        rbg = jax.random.normal(state["xla_key"], x.shape)
        order = jax.random.permutation(state["key"], x.shape[1])
        gumbel = jax.random.categorical(state["key"], x)
        return {"y": x * uniform + rbg + x[:, order], "choice": gumbel}

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        new_state = jax.tree.map(lambda k: jax.random.split(k)[0], state)
        return new_state, {"loss": jnp.mean(forward(state, batch)["y"])}

    return Model(name, forward, step, init, frozenset({"random", "typed_key"}))


def make_sort(name: str = "sort_top_k") -> Model:
    """Sort, argsort and top-k inside the loss."""

    def middle(h: jax.Array) -> jax.Array:
        best, where = jax.lax.top_k(h, 4)
        ordered = jnp.sort(h, axis=-1)
        order = jnp.argsort(h, axis=-1, descending=True)
        taken = jnp.take_along_axis(h, order, axis=-1)
        weight = best.sum(-1, keepdims=True) + 0.01 * where.sum(-1, keepdims=True)
        return ordered + taken + 0.1 * weight

    return _regression(name, middle, "sort")


def make_cumsum(name: str = "cumsum") -> Model:
    """Cumulative sum, product, maximum and log-sum-exp."""

    def middle(h: jax.Array) -> jax.Array:
        total = jnp.cumsum(h, axis=1) / h.shape[1]
        product = jnp.cumprod(jax.nn.sigmoid(h), axis=1)
        return total + product + jax.lax.cummax(h, axis=1) + 0.1 * jax.lax.cumlogsumexp(h, axis=1)

    return _regression(name, middle, "reduce_window")


def make_fft(name: str = "fft") -> Model:
    """A global filter: real FFT, a product in frequency, inverse FFT; complex FFT beside it."""

    def middle(h: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfft(h)
        damp = 1.0 / (1.0 + jnp.arange(spectrum.shape[-1]))
        magnitude = jnp.abs(jnp.fft.fft(h.astype(jnp.complex64)))
        return jnp.fft.irfft(spectrum * damp, n=h.shape[-1]) + 0.1 * magnitude

    return _regression(name, middle, "complex")


def make_while_cond(name: str = "while_cond") -> Model:
    """`cond`, `switch` and a bounded `fori_loop` in the loss; `while_loop` in the update."""
    tx = optax.sgd(0.05)

    def loss_fn(params: PyTree, batch: PyTree) -> jax.Array:
        h = batch["x"] @ params["w1"] + params["b1"]
        h = jax.lax.cond(params["b1"].sum() > 0, jnp.tanh, jax.nn.relu, h)
        branch = (h.sum() > 0).astype(jnp.int32)
        h = jax.lax.switch(branch, [lambda v: v, lambda v: 2 * v, jnp.sin], h)
        h = jax.lax.fori_loop(0, 3, lambda i, v: v + 0.1 * jnp.tanh(v), h)
        return jnp.mean((h @ params["w2"] - batch["y"]) ** 2)

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        params = _params(jax.random.PRNGKey(0))
        return {"params": params, "opt": tx.init(params)}, _batch(jax.random.PRNGKey(1), batch_size)

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return loss_fn(state["params"], batch)

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
        norm = optax.tree.norm(grads)
        # Halve the step until it is short enough: a loop with an unknown trip count.
        scale = jax.lax.while_loop(lambda s: s * norm > 1.0, lambda s: 0.5 * s, jnp.float32(1))
        grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt = tx.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt}, {"loss": loss}

    return Model(name, forward, step, init, frozenset({"control_flow", "train"}))


@jax.custom_vjp
def _clipped(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


def _clipped_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jnp.tanh(x)
    return y, y


def _clipped_backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.clip(g, -0.1, 0.1) * (1 - y * y),)


_clipped.defvjp(_clipped_forward, _clipped_backward)


@jax.custom_jvp
def _soft_abs(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x * x + 1e-3)


@_soft_abs.defjvp
def _soft_abs_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = _soft_abs(x)
    return y, t * x / y


def make_custom_vjp(name: str = "custom_vjp") -> Model:
    """Own derivative rules: a `custom_vjp` that clips gradients and a `custom_jvp`."""
    return _regression(name, lambda h: _clipped(h) + 0.1 * _soft_abs(h), "custom_vjp")


def make_checkpoint(name: str = "checkpoint") -> Model:
    """`jax.checkpoint` around a block, with a saving policy around another."""

    @jax.checkpoint
    def block(h: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(h) * h)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def other(h: jax.Array) -> jax.Array:
        return h + jnp.sin(h @ h.T) @ h / h.shape[0]

    return _regression(name, lambda h: other(block(h)), "remat")


def make_optimizer_entry(name: str, tx: optax.GradientTransformation) -> Model:
    """A two-layer regression under a given optimizer."""
    return _regression(name, jnp.tanh, "optimizer", tx=tx)


def make_kv_cache(name: str = "kv_cache") -> Model:
    """One decoding step of attention: dynamic update of a cache, dynamic slice of positions.

    Inference, so nothing is trained. The cache is indexed by [slot, position, feature] and
    belongs to the state; the position advances by one at each step.
    """
    length, hidden = 8, 8

    def init(batch_size: int = 8) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        state = {
            "weights": {
                n: jax.random.normal(k, (hidden, hidden)) * 0.3
                for n, k in zip("qkv", keys[:3], strict=True)
            },
            "positions": jax.random.normal(keys[3], (length, hidden)),
            "cache": {n: jnp.zeros((batch_size, length, hidden)) for n in "kv"},
            "index": jnp.int32(0),
        }
        return state, {"x": jax.random.normal(keys[4], (batch_size, hidden))}

    def run(state: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        w, index = state["weights"], state["index"]
        x = batch["x"] + jax.lax.dynamic_slice(state["positions"], (index, 0), (1, hidden))
        cache = {
            n: jax.lax.dynamic_update_slice(state["cache"][n], (x @ w[n])[:, None], (0, index, 0))
            for n in "kv"
        }
        scores = jnp.einsum("bd,bkd->bk", x @ w["q"], cache["k"]) / hidden**0.5
        scores = jnp.where(jnp.arange(length) <= index, scores, -1e9)
        return jnp.einsum("bk,bkd->bd", jax.nn.softmax(scores), cache["v"]), cache

    def forward(state: PyTree, batch: PyTree) -> jax.Array:
        return run(state, batch)[0]

    def step(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        output, cache = run(state, batch)
        return {**state, "cache": cache, "index": state["index"] + 1}, {
            "output": output,
            "loss": jnp.mean(output),
        }

    return Model(name, forward, step, init, frozenset({"inference", "batched_state"}))
