"""Steps as people have them run in parallel with a few changed lines, and without an error."""

from __future__ import annotations

import difflib
import io
from contextlib import redirect_stdout

import pytest

SHARED = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax

x = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
batch = {"x": x, "y": np.sin(x)}
tx = optax.sgd(0.1, momentum=0.9)
"""

PLAIN = """
def init(key):
    a, b = jax.random.split(key)
    params = {"up": jax.random.normal(a, (16, 64)) / 4, "down": jax.random.normal(b, (64, 16)) / 8}
    return params, tx.init(params)

@jax.jit
def train_step(state, batch):
    params, opt_state = state

    def loss_fn(params):
        return jnp.mean((jnp.tanh(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(gradients, opt_state)
    return (optax.apply_updates(params, updates), opt_state), loss

state = init(jax.random.key(0))
"""

LINEN = """
import flax.linen as nn
from flax.training.train_state import TrainState

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(16)(nn.relu(nn.Dense(64)(x)))

@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        return jnp.mean((state.apply_fn({"params": params}, batch["x"]) - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=gradients), loss

model = Model()
params = model.init(jax.random.key(0), batch["x"])["params"]
state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
"""

NNX = """
from flax import nnx

class Model(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))

model = Model(nnx.Rngs(0))
graph, state = nnx.split((model, nnx.Optimizer(model, tx, wrt=nnx.Param)))

@jax.jit
def train_step(state, batch):
    model, optimizer = nnx.merge(graph, state)

    def loss_fn(model):
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss
"""

LOOP = """
for _ in range(4):
    state, loss = train_step(state, batch)
    print(float(loss))
"""


def losses(program: str) -> list[float]:
    """What a program prints, a number a line."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(program, "program", "exec"), {"__name__": "program"})
    return [float(line) for line in printed.getvalue().splitlines()]


@pytest.mark.parametrize("own", [PLAIN, LINEN, NNX], ids=["plain", "linen", "nnx"])
def test_a_step_of_ones_own_needs_few_changed_lines(own, recwarn):
    single = SHARED + own + LOOP
    start = "import alpa_mlir\nalpa_mlir.use_virtual_devices(8)\n"
    parallel = start + single.replace("@jax.jit", '@alpa_mlir.parallelize(cluster="cpu-test")')
    changes = [
        line
        for line in difflib.ndiff(single.splitlines(), parallel.splitlines())
        if line.startswith("+ ")
    ]
    assert len(changes) <= 4, changes
    expected = losses(single)
    assert expected[-1] < expected[0]
    assert losses(parallel) == pytest.approx(expected, rel=1e-4)
    assert not [str(warning.message) for warning in recwarn]
