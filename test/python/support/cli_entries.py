"""Entry points, and plans of them, for tests of the command line."""

from __future__ import annotations

import json

from alpa_mlir import cli

STEP = '''
import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np


def step(state, batch):
    def loss(w):
        h = batch["x"]
        for each in w:
            h = h + jnp.tanh(h @ each)
        return jnp.mean((h - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    w = jax.tree.map(lambda p, g: p - 0.1 * g, state["w"], gradient)
    return {"w": w}, {"loss": value}


def entry(*, layers: int = 4, width: int = 16, rows: int = 8, scale: float = 0.1, on=None):
    """Layers of a residual network."""
    random = np.random.default_rng(0)
    w = [random.normal(size=(width, width)).astype(np.float32) * scale for _ in range(layers)]
    x = [random.normal(size=(rows, width)).astype(np.float32) for _ in range(6)]
    batches = [{"x": each, "y": np.roll(each, 1, 1)} for each in x]
    return step, ({"w": w}, batches[0]), batches


def shapes(*, layers: int = 2):
    a = jax.ShapeDtypeStruct
    state = {"w": [a((16, 16), jnp.float32)] * layers}
    return step, (state, {"x": a((8, 16), jnp.float32), "y": a((8, 16), jnp.float32)})


def huge():
    state = {"w": [jax.ShapeDtypeStruct((2**22, 2**22), jnp.float32)]}
    rows = jax.ShapeDtypeStruct((8, 2**22), jnp.float32)
    return step, (state, {"x": rows, "y": rows})


def parallel():
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2)
    return alpa_mlir.parallelize(step, cluster="cpu-test", method=method), entry()[1]


def fails():
    raise KeyError("no weight")


def needs(x):
    return step, (x, x)


def gives_a_number():
    return 3


def gives_an_array():
    return step, np.ones(3)


def gives_batches_that_are_none():
    return step, entry()[1], 7


def wrong_shapes():
    return (lambda w, b: (w, (b @ w).sum())), (jnp.ones(3), jnp.ones((4, 5)))


value = 4
'''


def write_files(folder):
    """A module of entry points, files that are none, and two plans."""
    (folder / "model.py").write_text(STEP)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "imports.py").write_text("import alpa_no_such_module\n")
    command = ["plan", f"{folder}/model.py", "--cluster", "cpu-test", "-q", "--no-cache"]
    assert cli.main([*command, "--method", "shard", "-o", f"{folder}/plan"]) == 0
    pipeline = ["--method", "pipeshard", "--submeshes", "1x1,1x1", "--micro-batches", "2"]
    assert cli.main([*command, *pipeline, "-o", f"{folder}/pipeline"]) == 0
    return folder


def failure(arguments, capsys):
    assert cli.main([*map(str, arguments), "--json", "-q"]) == 1
    shown = capsys.readouterr()
    assert not shown.err
    return json.loads(shown.out)["error"]
