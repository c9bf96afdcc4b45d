"""Saved plans as steps, and the trees of their arguments."""

from __future__ import annotations

import collections
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import NamedTuple

import alpa_mlir
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa_mlir import PipeshardParallel, ShardParallel, errors
from alpa_mlir.report import write_report
from alpa_runtime import trees
from alpa_runtime.plan import Plan
from schema import SCHEMA, problems

CLUSTER = "cpu-test"


def test_a_loaded_plan_is_called_like_the_function(tmp_path):
    """In a process that knows nothing of the model: no tracing, no compiler."""
    optimizer = optax.adam(1e-2)

    def train_step(state, batch):
        def loss(params):
            hidden = jnp.tanh(batch["x"] @ params["layers"][0])
            return jnp.mean((hidden @ params["layers"][1] - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = optimizer.update(grads, state["opt"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    params = {"layers": [jnp.ones((8, 16)) / 8, jnp.ones((16, 4)) / 16]}
    state = {"params": params, "opt": optimizer.init(params)}
    rng = np.random.default_rng(0)
    batch = {k: rng.normal(size=(16, n)).astype(np.float32) for k, n in (("x", 8), ("y", 4))}
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=2, layers=2)
    step = alpa_mlir.compile(train_step, state, batch, cluster=CLUSTER, method=method)
    step.plan.save(tmp_path / "plan")
    (tmp_path / "in.pkl").write_bytes(pickle.dumps(jax.tree.map(np.asarray, (state, batch))))
    code = f"""
import pickle, sys
from pathlib import Path
import optax  # its states are named tuples in this step's arguments
sys.modules["alpa_mlir._native"] = None  # importing it fails
import alpa_mlir, jax, numpy as np
alpa_mlir.use_virtual_devices(8)
folder = Path({str(tmp_path)!r})
step = alpa_mlir.load(folder / "plan")
result = step(*pickle.loads((folder / "in.pkl").read_bytes()))
(folder / "out.pkl").write_bytes(pickle.dumps(jax.tree.map(np.asarray, result)))
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    result = pickle.loads((tmp_path / "out.pkl").read_bytes())
    expected = jax.jit(train_step)(state, batch)
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def keyed_step(mode, state, batch):
    noise = jax.random.normal(state["key"], (4,))
    w = state["w"] - 0.1 * batch.mean(0) + (noise if mode == "train" else 0)
    return {"w": w, "key": jax.random.split(state["key"], 1)[0]}, w.sum()


def test_keys_and_static_arguments_of_a_loaded_plan(tmp_path):
    state = {"w": jnp.ones(4), "key": jax.random.key(3)}
    args = ("train", state, jnp.ones((8, 4)))
    step = alpa_mlir.compile(
        keyed_step, *args, cluster=CLUSTER, static_argnums=0, donate_state=False,
        method=ShardParallel(mesh_shape=(1, 2), num_micro_batches=1),
    )  # fmt: skip
    loaded = alpa_mlir.load(step.plan.save(tmp_path))
    (new, value), (expected, wanted) = loaded(*args), keyed_step(*args)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(new["w"], expected["w"], rtol=1e-6)
    assert new["key"].dtype == expected["key"].dtype
    np.testing.assert_array_equal(*map(jax.random.key_data, (new["key"], expected["key"])))
    assert not loaded(*args)[0]["w"].is_deleted()
    with pytest.raises(errors.ArgumentMismatchError, match="got 'test', the step was made for 'tr"):
        loaded("test", *args[1:])
    with pytest.raises(errors.ArgumentMismatchError, match="no leaf"):
        loaded("train", {"w": state["w"]}, args[2])
    with pytest.raises(errors.ArgumentMismatchError, match="batch: got a str, which is no array"):
        loaded("train", state, "text")
    assert loaded("train", batch=args[2], state=state)[1] == value
    assert loaded(batch=args[2], mode="train", state=state)[1] == value
    for first, named, message in (
        (args, {"batch": 0}, "keyed_step: the argument 'batch' is given twice"),
        (args[:2], {"bach": 0}, "the argument 'bach' is unknown; fix: give mode, state, batch,"),
        (args[:1], {"batch": 0}, "the argument 'batch' comes after one that is not given"),
    ):
        with pytest.raises(errors.ArgumentMismatchError, match=message):
            loaded(*first, **named)
    # A plan may not say the names.
    older = alpa_mlir.load(replace(loaded.plan, call=replace(loaded.plan.call, names=())))
    assert older("train", batch=args[2], state=state)[1] == value
    with pytest.raises(errors.ArgumentMismatchError, match="give a Python value, state, batch"):
        older(*args[:2], bach=0)
    wrong = replace(loaded.plan.call, names=("mode", "state"))
    with pytest.raises(errors.PlanMismatchError, match="2 names for 3 arguments"):
        alpa_mlir.load(replace(loaded.plan, call=wrong))


def test_a_plan_says_the_names_of_its_arguments(tmp_path):
    def step(w, x, *, lr, flag=False):
        return w - lr * x.mean(0), x.sum() + flag

    def by_default(w, lr=0.1, x=None):
        return step(w, x, lr=lr)

    w, x = jnp.ones(4), jnp.ones((8, 4))
    for fn, args, named, names, by_name in (
        (step, (w, x), {"flag": True, "lr": 0.2}, ("w", "x", "lr", "flag"), 2),
        (step, (w, x, 0.2), {}, ("w", "x", "lr"), 1),
        (by_default, (w,), {"x": x}, ("w", "x"), 1),
        (by_default, (w, 0.2, x), {}, ("w", "lr", "x"), 0),
    ):
        planned = alpa_mlir.parallelize(fn, cluster=CLUSTER, method=ShardParallel())
        plan = Plan.load(planned.plan(*args, **named).save(tmp_path))
        assert (plan.call.names, plan.call.by_name) == (names, by_name)


def test_functions_are_called_with_names():
    def scaled(w, factor, x):
        return w + factor * x.sum(), x.sum()

    step = alpa_mlir.parallelize(scaled, cluster=CLUSTER, static_argnums=1)
    x = np.ones((8, 4), np.float32)
    expected = step(np.float32(1), 2, x)
    assert step(x=x, w=np.float32(1), factor=2) == expected
    assert step(np.float32(1), 2, x=x) == expected
    with pytest.raises(errors.ArgumentMismatchError, match="scaled: the argument 'y' is unknown"):
        step(np.float32(1), 2, y=x)


def test_a_step_stands_for_its_plan(tmp_path):
    def step(w, x):
        return w - 0.1 * x.mean(0), x.sum()

    w, x = jnp.ones(4), jnp.ones((8, 4))
    traced = alpa_mlir.parallelize(step, cluster=CLUSTER, donate_state=False).trace(w, x)
    planned = traced.plan(method=ShardParallel(num_micro_batches=1))
    expected = step(w, x)[1]
    loaded = alpa_mlir.load(planned)
    assert loaded(w, x)[1] == alpa_mlir.load(loaded)(w, x)[1] == expected
    assert traced.with_plan(planned).plan is planned.plan
    near = traced.plan(start=planned, cache=False)
    assert near.load()(w, x)[1] == expected
    assert write_report(planned, tmp_path / "plan.html").exists()
    with pytest.raises(errors.ArgumentTypeError, match="start=3 is an int; fix: give a Plan or a"):
        traced.plan(start=3)


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A container that keeps a function, as some training states do."""

    def __init__(self, value, apply):
        self.value, self.apply = value, apply

    def tree_flatten(self):
        return (self.value,), self.apply

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(children[0], aux)


def test_trees_that_a_plan_cannot_store_need_an_example(tmp_path):
    def step(state, batch):
        w = state.value - batch.mean(0)
        return Opaque(w, state.apply), w.sum()

    state, batch = Opaque(jnp.ones(4), jnp.sin), jnp.ones((8, 4))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=1)
    alpa_mlir.compile(step, state, batch, cluster=CLUSTER, method=method).plan.save(tmp_path)
    with pytest.raises(errors.PlanMismatchError, match=r"Opaque keeps more .* arguments=\(..\)"):
        alpa_mlir.load(tmp_path)
    loaded = alpa_mlir.load(tmp_path, arguments=(Opaque(0, jnp.sin), 0))
    new, value = loaded(state, batch)
    assert isinstance(new, Opaque)
    assert new.apply is jnp.sin
    assert value == 0


def test_factorizations_in_a_process_that_traced_nothing(tmp_path):
    """JAX loads LAPACK where it lowers a call of it alone."""

    def step(w, x):
        gram = x.T @ x / x.shape[0] + jnp.eye(w.shape[0])
        values, vectors = jnp.linalg.eigh(gram)
        w = jnp.linalg.solve(gram, w) + jnp.linalg.cholesky(gram) + (vectors * values) @ vectors.T
        return w, jnp.linalg.svd(w, compute_uv=False)

    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 8), (16, 8)))
    method = ShardParallel(mesh_shape=(1, 2), num_micro_batches=1)
    planned = alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(w, x)
    planned.plan.save(tmp_path / "plan")
    np.savez(tmp_path / "in.npz", w=w, x=x)
    code = f"""
import alpa_mlir, numpy as np
alpa_mlir.use_virtual_devices(8)
given = np.load({str(tmp_path / "in.npz")!r})
w, values = alpa_mlir.load({str(tmp_path / "plan")!r})(given["w"], given["x"])
np.savez({str(tmp_path / "out.npz")!r}, w=w, values=values)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    found = np.load(tmp_path / "out.npz")
    for got, wanted in zip((found["w"], found["values"]), jax.jit(step)(w, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


class Pair(NamedTuple):
    a: object
    b: object


TREES = [
    1,
    None,
    {"b": [1, (2, None)], "a": {}},
    Pair(1, {"x": 2}),
    {3: 1, 1: (2,)},
    collections.OrderedDict(z=1, a=[2]),
    optax.adam(1e-3).init({"w": np.ones(3)}),
    ((), [], {}),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_structures(tree):
    structure = jax.tree.structure(tree)
    value = json.loads(json.dumps(trees.encode(structure)))
    assert trees.decode(value) == structure
    assert problems(value, SCHEMA["$defs"]["tree"], SCHEMA) == []


def test_classes_that_are_not_imported_are_named():
    value = {"class": "no_such_module:State", "children": ["*"], "aux": None}
    with pytest.raises(trees.UnknownTreeError, match="no_such_module:State is not imported"):
        trees.decode(value)
    for wrong in (5, {"tuple": 3}, {"odd": []}, {"items": [[1]]}, "x", [{"dict": []}]):
        with pytest.raises(ValueError, match="got"):
            trees.decode(wrong)
    with pytest.raises(trees.UnknownTreeError, match="is no container"):
        trees.decode({"class": "builtins:int", "children": ["*"], "aux": None})


def test_a_plan_without_trees_says_so(tmp_path):
    plan = handmade.as_plan(*handmade.two_stages(1))
    with pytest.raises(errors.PlanMismatchError, match="does not say how its step is called"):
        alpa_mlir.load(plan.save(tmp_path))
