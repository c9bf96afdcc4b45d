"""What the rows of docs/coming-from-alpa.md say, as a model and steps to try it on."""

from __future__ import annotations

import functools
from collections.abc import Callable

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax

LAYERS, WIDTH, DEVICES = 2, 8, 2
OPTIMIZER = optax.adam(1e-2)
CLUSTER = alpa_mlir.Cluster.nominal("two", "cpu", (DEVICES,), 1 << 30)

PIPELINE = alpa_mlir.PipeshardParallel(num_micro_batches=2, layer_option="manual")

ROWS: dict[str, Callable[[], None]] = {}


def row(name: str):
    """The test of the row of Alpa's `name`."""

    def register(test):
        assert name not in ROWS, name
        ROWS[name] = test
        return test

    return register


def create_state(key):
    keys = jax.random.split(key, LAYERS)
    params = {f"w{i}": jax.random.normal(k, (WIDTH, WIDTH)) * 0.3 for i, k in enumerate(keys)}
    return {"params": params, "opt": OPTIMIZER.init(params)}


def make_batch():
    x = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)
    return {"x": x, "y": np.sin(x)}


def model(params, x):
    for i in range(LAYERS):
        x = alpa_mlir.mark_pipeline_boundary(x) if i else x
        x = jnp.tanh(x @ params[f"w{i}"])
    return x


def loss_of(params, batch):
    return jnp.mean((model(params, batch["x"]) - batch["y"]) ** 2)


def train_step(state, batch):
    loss, gradients = alpa_mlir.value_and_grad(loss_of)(state["params"], batch)
    updates, opt = OPTIMIZER.update(gradients, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, loss


@functools.cache
def example():
    return create_state(jax.random.key(0)), make_batch()


@functools.cache
def expected():
    return jax.jit(train_step)(*example())


def check_same(found, wanted, rtol=2e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-6)


_trained: list[tuple[alpa_mlir.Method, alpa_mlir.ParallelFunction]] = []


def trained(method: alpa_mlir.Method) -> alpa_mlir.ParallelFunction:
    """The step with a method, after one call that gave what `jax.jit` gives."""
    for known, step in _trained:
        if known == method:
            return step
    step = alpa_mlir.parallelize(train_step, cluster=CLUSTER, method=method)
    check_same(step(*example()), expected())
    _trained.append((method, step))
    return step


def pipeline() -> alpa_mlir.ParallelStep:
    """A step with two stages, each on a device, and two micro-batches."""
    return trained(PIPELINE).get_executable(*example())


def sharded() -> alpa_mlir.ParallelStep:
    """A step on one mesh."""
    return trained(alpa_mlir.Zero2Parallel()).get_executable(*example())


def specs_of(step: alpa_mlir.ParallelStep):
    """Whether a weight, its optimizer state and the batch are split, and on which meshes."""
    state, batch = step.get_input_placement_specs()
    parts = state["params"]["w0"], state["opt"][0].mu["w0"], batch["x"]
    return [any(axes for axes in part.sharding_specs[0]) for part in parts]


def follow(step, **options):
    method = alpa_mlir.FollowParallel(step, **options)
    return alpa_mlir.parallelize(loss_of, method=method)
