"""A pipeline written by hand whose meshes share stages and sums.

Stages 0 and 1 lie on mesh 0 and hold what they hand over differently; stage 1's backward is cut
in two. Stage 2 lies on mesh 1. Weights are updated by gradients that are clipped by the norm of
all of them: a sum over all meshes, to which mesh 2 (stage 3) gives zero and which it adds up.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alpa_runtime.plan import Plan
from handmade import lower, order_of, reshard_of, tensor, tensor_text

ROWS, RATE, CLIP = 8, 0.1, 0.5


def scaled(norm2):
    return jnp.minimum(1.0, CLIP / jnp.sqrt(norm2))


def reference_step(state, batch):
    """The same step for a single device."""

    def loss(params):
        h = jnp.tanh(jnp.tanh(batch["x"] @ params["w0"]) @ params["w1"])
        return jnp.mean((h @ params["w2"] - batch["y"]) ** 2)

    params = {name: w for name, w in state.items() if name != "total"}
    value, grads = jax.value_and_grad(loss)(params)
    norm2 = sum(jnp.sum(g**2) for g in grads.values())
    new = jax.tree.map(lambda p, g: p - RATE * scaled(norm2) * g, params, grads)
    return {**new, "total": state["total"] + jnp.sqrt(norm2)}, value, norm2


def arguments(micro_batches: int):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    state = {"w0": draw(8, 16), "w1": draw(16, 8), "w2": draw(8, 4), "total": np.float32(0)}
    rows = ROWS * micro_batches
    return state, {"x": draw(rows, 8), "y": draw(rows, 4)}


def check_steps(step, micro_batches: int):
    """A few steps of a loaded plan give what `jax.jit` does."""
    state, batch = arguments(micro_batches)
    expected, args = state, list(state.values())
    for _ in range(3):
        *args, loss, norm2 = step([*args, batch["x"], batch["y"]])
        expected, expected_loss, expected_norm2 = jax.jit(reference_step)(expected, batch)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
        np.testing.assert_allclose(norm2, expected_norm2, rtol=1e-5)
        for name, found in zip(state, args, strict=True):
            np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)


def plan_fields(n: int, strategy: str = "broadcast") -> tuple[dict[str, Any], dict[str, str]]:
    """plan.json as an object, instructions as lines, and the stage modules."""
    axes = ["x", "y"]
    meshes = [
        {"shape": [1, 2], "axes": axes, "devices": [0, 1]},
        {"shape": [2, 2], "axes": axes, "devices": [2, 3, 4, 5]},
        {"shape": [1, 1], "axes": axes, "devices": [6]},
    ]
    w0, w1 = tensor((8, 16), [[], ["y"]]), tensor((16, 8), [[], ["y"]])
    w2 = tensor((8, 4), [["y"], []])
    x, y = tensor((ROWS, 8), [[], []]), tensor((ROWS, 4), [["x"], []])
    columns, rows = tensor((ROWS, 16), [[], ["y"]]), tensor((ROWS, 16), [["y"], []])
    h1, h1_there = tensor((ROWS, 8), [["y"], []]), tensor((ROWS, 8), [["x"], ["y"]])
    one = tensor((), [])

    def squares(g):
        return (jnp.sum(g**2),)

    def update(w, g, norm2):
        return (w - RATE * scaled(norm2) * g,)

    def backward_input(w, h, g):
        before = g * (1 - jnp.tanh(h @ w) ** 2)
        return before @ w.T, before

    def head(w, h, target):
        return jnp.mean((h @ w - target) ** 2) / n

    def backward2(w, h, target):
        loss, (gw, gh) = jax.value_and_grad(head, argnums=(0, 1))(w, h, target)
        return loss, gw, gh

    def backward0(w, x, g):
        return (jax.vjp(lambda w: jnp.tanh(x @ w), w)[1](g)[0],)

    stages: list[tuple[int, dict[str, Any]]] = [
        (
            0,
            {
                "forward": (lambda w, x: (jnp.tanh(x @ w),), [w0, x], [columns]),
                "backward": (backward0, [w0, x, columns], [w0]),
                "update_0": (squares, [w0], [one]),
                "update_1": (update, [w0, w0, one], [w0]),
            },
        ),
        (
            0,
            {
                "forward": (lambda w, h: (jnp.tanh(h @ w),), [w1, rows], [h1]),
                "backward_input": (backward_input, [w1, rows, h1], [rows, h1]),
                "backward_weight": (lambda h, g: (h.T @ g,), [rows, h1], [w1]),
                "update_0": (squares, [w1], [one]),
                "update_1": (update, [w1, w1, one], [w1]),
            },
        ),
        (
            1,
            {
                "backward": (backward2, [w2, h1_there, y], [one, w2, h1_there]),
                "update_0": (squares, [w2], [one]),
                "update_1": (update, [w2, w2, one], [w2]),
            },
        ),
        (2, {"update_1": (lambda t, norm2: (t + jnp.sqrt(norm2),), [one, one], [one])}),
    ]
    modules, tables = {}, []
    for s, (mesh, functions) in enumerate(stages):
        lowered = [lower(name, f, meshes[mesh], i, o) for name, (f, i, o) in functions.items()]
        bodies = [body for _, body in lowered]
        modules[f"stage_{s}.mlir"] = "\n".join(
            [f"module @stage_{s} {{", lowered[0][0], *bodies, "}"]
        )
        tables.append(
            {
                "mesh": mesh,
                "layers": [s, s + 1],
                "module": f"stage_{s}.mlir",
                "functions": {
                    name: {"inputs": texts(i), "outputs": texts(o)}
                    for name, (_, i, o) in functions.items()
                },
                "predicted": {
                    f"{name}_seconds": 1e-3 for name in ("forward", "backward", "update")
                },
            }
        )

    reshards = [
        reshard_of(meshes, h1, h1_there, (0, 1), strategy),
        reshard_of(meshes, h1_there, h1, (1, 0), strategy),
        reshard_of(meshes, one, one, (1, 0), strategy),
        reshard_of(meshes, one, one, (0, 1), strategy),
        reshard_of(meshes, one, one, (2, 0), strategy),
        reshard_of(meshes, one, one, (0, 2), strategy),
    ]
    programs = [
        {"mesh": 0, "slots": 100, "instructions": first_mesh(n, w0, w1, x, columns, rows, h1)},
        {"mesh": 1, "slots": 100, "instructions": second_mesh(n, w2, y, h1_there)},
        {"mesh": 2, "slots": 3, "instructions": [
            "input 0 = arg 3: float32[][]",
            "zero 1: float32[][]",
            "all_reduce 1 = 1 among 0 1 2 tag 500 by 4 5",
            "run 3.update_1: 0 1 -> 2",
            "free 0-1",
            "output 2 = result 3",
        ]},
    ]  # fmt: skip

    def info(name, t, **fields):
        return {"name": name, "shape": t["shape"], "dtype": "float32", **fields}

    state = {"w0": w0, "w1": w1, "w2": w2, "total": one}
    plan = {
        "format": "alpa_mlir.plan",
        "version": 5,
        "compiler": "handmade",
        "name": "clipped_step",
        "cluster": {"name": "handmade"},
        "num_micro_batches": n,
        "schedule": "gpipe",
        "inputs": [
            *[info(k, t, kind="state", carried_by=i) for i, (k, t) in enumerate(state.items())],
            info("x", x, kind="batch", carried_by=None),
            info("y", y, kind="batch", carried_by=None),
        ],
        "outputs": [
            *[info(name, t, reduction=None) for name, t in state.items()],
            info("loss", one, reduction=None),
            info("norm2", one, reduction=None),
        ],
        "meshes": meshes,
        "stages": tables,
        "predicted": {},
        "reshards": reshards,
        "programs": programs,
    }
    return plan, modules


def texts(tensors) -> list[str]:
    return [tensor_text(t) for t in tensors]


def first_mesh(n: int, *tensors) -> list[str]:
    """Slots: 0-1 weights, 10+ batches, 20+ h0 as stage 1 wants it, 3-9 others."""
    w0, w1, x, columns, rows, h1 = texts(tensors)
    lines = [f"input 0 = arg 0: {w0}", f"input 1 = arg 1: {w1}"]
    for m in range(n):
        lines += [
            f"input {10 + m} = arg 4 mb {m}: {x}",
            f"run 0.forward mb {m}: 0 {10 + m} -> 3",
            f"reshard {20 + m} = 3: {rows}",
            "free 3",
            f"run 1.forward mb {m}: 1 {20 + m} -> 4",
            f"send 4 to 1 tag {m} by 0",
            "free 4",
        ]
    for m in range(n):
        g0, g1 = (30, 31) if m == 0 else (32, 33)
        lines += [
            f"recv 5 from 1 tag {100 + m} by 1: {h1}",
            f"run 1.backward_input mb {m}: 1 {20 + m} 5 -> 6 7",
            "free 5",
            f"reshard 8 = 6: {columns}",
            "free 6",
            f"run 0.backward mb {m}: 0 {10 + m} 8 -> {g0}",
            f"free 8 {10 + m}",
            f"run 1.backward_weight mb {m}: {20 + m} 7 -> {g1}",
            f"free 7 {20 + m}",
        ]
        if m:
            lines += ["accumulate 30-31 = 30-31 + 32-33", "free 32-33"]
    return [
        *lines,
        "run 0.update_0: 30 -> 40",
        "run 1.update_0: 31 -> 41",
        "accumulate 42 = 40 + 41",
        "free 40-41",
        "all_reduce 43 = 42 among 0 1 2 tag 500",
        "free 42",
        "run 0.update_1: 0 30 43 -> 50",
        "run 1.update_1: 1 31 43 -> 51",
        "free 0-1 30-31",
        "output 43 = result 5",
        "output 50 = result 0",
        "output 51 = result 1",
    ]


def second_mesh(n: int, *tensors) -> list[str]:
    w2, y, h1 = texts(tensors)
    lines = [f"input 0 = arg 2: {w2}"]
    for m in range(n):
        loss, grad = (30, 31) if m == 0 else (32, 33)
        lines += [
            f"recv 1 from 0 tag {m} by 0: {h1}",
            f"input 2 = arg 5 mb {m}: {y}",
            f"run 2.backward mb {m}: 0 1 2 -> {loss} {grad} 3",
            "free 1-2",
            f"send 3 to 0 tag {100 + m} by 1",
            "free 3",
        ]
        if m:
            lines += ["accumulate 30-31 = 30-31 + 32-33", "free 32-33"]
    return [
        *lines,
        "run 2.update_0: 31 -> 40",
        "all_reduce 41 = 40 among 0 1 2 tag 500 by 2 3",
        "free 40",
        "run 2.update_1: 0 31 41 -> 50",
        "free 0 31 41",
        "output 50 = result 2",
        "output 30 = result 4",
    ]


def as_plan(fields: dict[str, Any], modules: dict[str, str]) -> Plan:
    order = order_of(fields["programs"])
    return Plan.from_json(json.dumps({"order": order} | fields), modules)
