"""A two-stage pipeline written by hand, for tests of the runtime without the compiler.

The model is a two-layer MLP: stage 0 makes `h = tanh(x w0)`, stage 1 the loss
`mean((h w1 - y)^2)`. Its functions are lowered by JAX for each stage's mesh; the plan's
tables and instruction lists are written here.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alpa_runtime.plan import Plan
from alpa_runtime.plan.stage import MeshInfo
from alpa_runtime.plan.tensor import TensorSpec
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reshard_plans import reshard

ROWS, IN, HIDDEN, OUT, RATE = 8, 8, 16, 4, 0.1


def reference_step(state, batch):
    """The same step for a single device."""

    def loss(params):
        h = jnp.tanh(batch["x"] @ params["w0"])
        return jnp.mean((h @ params["w1"] - batch["y"]) ** 2), h

    (value, h), grads = jax.value_and_grad(loss, has_aux=True)(state)
    return jax.tree.map(lambda p, g: p - RATE * g, state, grads), value, h


def arguments(micro_batches: int, seed: int = 0):
    """Weights and a whole batch, as host arrays."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    state = {"w0": draw(IN, HIDDEN) * 0.3, "w1": draw(HIDDEN, OUT) * 0.3}
    rows = ROWS * micro_batches
    return state, {"x": draw(rows, IN), "y": draw(rows, OUT)}


def flat(state, batch):
    """Arguments as a plan lists them."""
    return [state["w0"], state["w1"], batch["x"], batch["y"]]


def check_steps(step, micro_batches: int):
    """A few steps of a loaded plan give what `jax.jit` does; returns the last weights."""
    state, batch = arguments(micro_batches)
    expected = jax.device_get(state)
    for _ in range(3):
        w0, w1, loss, h = step(flat(state, batch))
        expected, expected_loss, expected_h = jax.jit(reference_step)(expected, batch)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
        np.testing.assert_allclose(h, expected_h, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(w0, expected["w0"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(w1, expected["w1"], rtol=1e-5, atol=1e-6)
        state = {"w0": w0, "w1": w1}
    return state


def tensor(shape: Sequence[int], spec: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "float32", "spec": [list(axes) for axes in spec]}


def lower(name: str, function: Callable[..., Any], mesh, inputs, outputs) -> tuple[str, str]:
    """The mesh op and the text of `function` as `@name`, sharded as the tables say."""
    shape, axes, devices = mesh["shape"], mesh["axes"], mesh["devices"]
    grid = Mesh(np.array([jax.devices()[d] for d in devices]).reshape(shape), axes)

    def sharding(t):
        return NamedSharding(grid, PartitionSpec(*[tuple(a) or None for a in t["spec"]]))

    jitted = jax.jit(
        function,
        in_shardings=tuple(map(sharding, inputs)),
        out_shardings=tuple(map(sharding, outputs)),
        keep_unused=True,
    )
    args = [jax.ShapeDtypeStruct(t["shape"], t["dtype"]) for t in inputs]
    text = jitted.lower(*args).as_text()
    mesh_op = re.search(r"sdy\.mesh .*", text)
    body = text[text.index("func.func") : text.rindex("}")]
    return (mesh_op[0] if mesh_op else ""), body.replace("@main", f"@{name}", 1)


def two_stages(
    micro_batches: int = 2,
    schedule: str = "1f1b",
    first: Sequence[int] = (1, 2),
    second: Sequence[int] = (1, 2),
) -> tuple[dict[str, Any], dict[str, str]]:
    """`plan.json` as a dictionary and the stage modules; meshes of the given shapes.

    Weights are split over `y` (columns of w0, rows of w1), rows of the batch over `x`.
    """
    n = micro_batches
    sizes = [first[0] * first[1], second[0] * second[1]]
    meshes = [
        {"shape": list(first), "axes": ["x", "y"], "devices": list(range(sizes[0]))},
        {"shape": list(second), "axes": ["x", "y"], "devices": list(range(sizes[0], sum(sizes)))},
    ]
    w0 = tensor((IN, HIDDEN), [[], ["y"]])
    w1 = tensor((HIDDEN, OUT), [["y"], []])
    x = tensor((ROWS, IN), [["x"], []])
    y = tensor((ROWS, OUT), [["x"], []])
    h0 = tensor((ROWS, HIDDEN), [["x"], ["y"]])
    h1 = tensor((ROWS, HIDDEN), [["x"], []])
    scalar = tensor((), [])

    def stage0(w, x):
        return jnp.tanh(x @ w)

    def stage1(w, h, y):
        return jnp.mean((h @ w - y) ** 2) / n

    def backward1(w, h, y):
        loss, (gw, gh) = jax.value_and_grad(stage1, argnums=(0, 1))(w, h, y)
        return loss, gw, gh

    def backward0(w, x, gh):
        return (jax.vjp(lambda w: stage0(w, x), w)[1](gh)[0],)

    def update(w, g):
        return (w - RATE * g,)

    functions = [
        {
            "forward": (lambda w, x: (stage0(w, x),), [w0, x], [h0]),
            "backward": (backward0, [w0, x, h0], [w0]),
            "update_0": (update, [w0, w0], [w0]),
        },
        {
            "forward": (lambda h: (h,), [h1], [h1]),
            "backward": (backward1, [w1, h1, y], [scalar, w1, h1]),
            "update_0": (update, [w1, w1], [w1]),
        },
    ]
    modules, stages = {}, []
    for s, table in enumerate(functions):
        lowered = [lower(name, f, meshes[s], i, o) for name, (f, i, o) in table.items()]
        modules[f"stage_{s}.mlir"] = "\n".join(
            [f"module @stage_{s} {{", lowered[0][0], *[body for _, body in lowered], "}"]
        )
        stages.append(
            {
                "mesh": s,
                "layers": [s, s + 1],
                "module": f"stage_{s}.mlir",
                "functions": {k: {"inputs": i, "outputs": o} for k, (_, i, o) in table.items()},
                "predicted": {"forward_seconds": 1e-3, "peak_bytes": 4096},
                "weights": [
                    {"name": f"state['w{s}']", "shape": w["shape"], "spec": w["spec"]}
                    for w in [(w0, w1)[s]]
                ],
            }
        )

    def order(warm_up: int) -> list[tuple[str, int]]:
        """Forward and backward calls of a mesh; GPipe is 1F1B with a full warm-up."""
        warm_up = n if schedule == "gpipe" else min(warm_up, n)
        calls = [("f", m) for m in range(warm_up)]
        for m in range(n):
            calls.append(("b", m))
            if m + warm_up < n:
                calls.append(("f", m + warm_up))
        return calls

    class Lists:
        def __init__(self) -> None:
            self.list: list[dict[str, Any]] = []
            self.slots = 0

        def new(self) -> int:
            self.slots += 1
            return self.slots - 1

        def add(self, op: str, **fields: Any) -> None:
            self.list.append({"op": op, **fields})

    def run(p, stage, function, m, inputs, count):
        outputs = [p.new() for _ in range(count)]
        p.add("run", stage=stage, function=function, micro_batch=m, inputs=inputs, outputs=outputs)
        return outputs

    programs = []
    for s in (0, 1):
        p = Lists()
        weight = p.new()
        p.add("input", slot=weight, arg=s, micro_batch=None, **(w0, w1)[s])
        held: dict[int, list[int]] = {}
        total: int | None = None
        loss: int | None = None
        for kind, m in order(2 - s):
            if s == 0 and kind == "f":
                slot = p.new()
                p.add("input", slot=slot, arg=2, micro_batch=m, **x)
                (h,) = run(p, 0, "forward", m, [weight, slot], 1)
                p.add("send", slot=h, to=1, tag=m, by=0)
                p.add("output", slot=h, result=3, micro_batch=m)
                held[m] = [slot]
            elif s == 0:
                slot = p.new()
                p.add("recv", slot=slot, **{"from": 1}, tag=100 + m, by=1, **h0)
                (g,) = run(p, 0, "backward", m, [weight, held[m][0], slot], 1)
                p.add("free", slots=[held[m][0], slot])
                total = accumulate(p, total, g)
            elif kind == "f":
                slot = p.new()
                p.add("recv", slot=slot, **{"from": 0}, tag=m, by=0, **h1)
                held[m] = run(p, 1, "forward", m, [slot], 1)
            else:
                slot = p.new()
                p.add("input", slot=slot, arg=3, micro_batch=m, **y)
                one, g, gh = run(p, 1, "backward", m, [weight, held[m][0], slot], 3)
                p.add("send", slot=gh, to=0, tag=100 + m, by=1)
                total = accumulate(p, total, g)
                loss = accumulate(p, loss, one)
        (new,) = run(p, s, "update_0", None, [weight, total], 1)
        p.add("output", slot=new, result=s, micro_batch=None)
        if s == 1:
            p.add("output", slot=loss, result=2, micro_batch=None)
        programs.append({"mesh": s, "slots": p.slots, "instructions": p.list})

    def info(name, t, **fields):
        return {"name": name, "shape": t["shape"], "dtype": "float32", **fields}

    plan = {
        "format": "alpa_mlir.plan",
        "version": 5,
        "compiler": "handmade",
        "name": "mlp_step",
        "cluster": {"name": "handmade"},
        "num_micro_batches": n,
        "schedule": schedule,
        "inputs": [
            info("state['w0']", w0, kind="state", carried_by=0),
            info("state['w1']", w1, kind="state", carried_by=1),
            info("batch['x']", x, kind="batch", carried_by=None),
            info("batch['y']", y, kind="batch", carried_by=None),
        ],
        "outputs": [
            info("state['w0']", w0, reduction=None),
            info("state['w1']", w1, reduction=None),
            info("loss", scalar, reduction=None),
            info("h", h0, reduction="concat"),
        ],
        "meshes": meshes,
        "stages": stages,
        "predicted": {"step_seconds": 4e-3},
        "reshards": [reshard_of(meshes, h0, h1, (0, 1)), reshard_of(meshes, h1, h0, (1, 0))],
        "programs": programs,
    }
    return plan, modules


def reshard_of(meshes, source, target, numbers, strategy="broadcast") -> dict[str, Any]:
    """The plan of a transfer between two meshes, as plan.json has it."""
    infos = [MeshInfo(tuple(m["shape"]), tuple(m["axes"]), tuple(m["devices"])) for m in meshes]
    tensors = [TensorSpec.parse(tensor_text(t)) for t in (source, target)]
    ends = tensors[0], infos[numbers[0]], tensors[1], infos[numbers[1]]
    return reshard(*ends, strategy, numbers).to_json()


def accumulate(p: Any, total: int | None, slot: int) -> int:
    """Adds `slot` to the running sum `total`; returns the sum's slot."""
    if total is None:
        return slot
    result = p.new()
    p.add("accumulate", slot=result, left=total, right=slot)
    return result


def tensor_text(t: dict[str, Any]) -> str:
    axes = ",".join("*".join(names) or "R" for names in t["spec"])
    return f"{t['dtype']}[{','.join(map(str, t['shape']))}][{axes}]"


def line(i: dict[str, Any]) -> str:
    """An instruction as plan.json has it."""

    def slots(key: str) -> str:
        return "".join(f" {slot}" for slot in i[key])

    mb = f" mb {i['micro_batch']}" if i.get("micro_batch") is not None else ""
    match i["op"]:
        case "input":
            return f"input {i['slot']} = arg {i['arg']}{mb}: {tensor_text(i)}"
        case "run":
            return f"run {i['stage']}.{i['function']}{mb}:{slots('inputs')} ->{slots('outputs')}"
        case "send":
            return f"send {i['slot']} to {i['to']} tag {i['tag']} by {i['by']}"
        case "recv":
            what = f"recv {i['slot']} from {i['from']} tag {i['tag']} by {i['by']}"
            return f"{what}: {tensor_text(i)}"
        case "reshard":
            return f"reshard {i['slot']} = {i['operand']}: {tensor_text(i)}"
        case "zero":
            return f"zero {i['slot']}: {tensor_text(i)}"
        case "all_reduce":
            by = f" by{slots('by')}" if i["by"] else ""
            what = f"all_reduce {i['slot']} = {i['operand']} among{slots('members')}"
            return f"{what} tag {i['tag']}{by}"
        case "accumulate":
            return f"accumulate {i['slot']} = {i['left']} + {i['right']}"
        case "free":
            return f"free{slots('slots')}"
        case "output":
            return f"output {i['slot']} = result {i['result']}{mb}"
        case other:
            return f"{other} {i['slot']}"


def as_plan(plan: dict[str, Any], modules: dict[str, str]) -> Plan:
    return Plan.from_json(as_json(plan), modules)


def as_json(plan: dict[str, Any]) -> str:
    """The text of plan.json; tensors and instructions become text."""
    plan = copy.deepcopy(plan)
    for stage in plan["stages"]:
        for function in stage["functions"].values():
            for key in ("inputs", "outputs"):
                function[key] = [tensor_text(t) for t in function[key]]
    for program in plan["programs"]:
        program["instructions"] = [line(i) for i in program["instructions"]]
    return json.dumps({"order": order_of(plan["programs"])} | plan)


def order_of(programs: list[dict[str, Any]]) -> list[str]:
    """An order in which programs run, as plan.json has it; what never can stands at the end."""
    meshes = [program["mesh"] for program in programs]
    left = [list(map(str, program["instructions"])) for program in programs]
    runs: list[str] = []
    sent: set[str] = set()

    def take(index: int, count: int) -> None:
        del left[index][:count]
        runs.append(f"{meshes[index]}*{count}")

    def summing(tag: str, members: str) -> list[int]:
        """The programs that stand at a sum, if these are all of its members."""
        there = [i for i, lines in enumerate(left) if lines and f"{tag} " in f"{lines[0]} "]
        return there if members.split() == [str(meshes[i]) for i in there] else []

    def goes_on(index: int) -> bool:
        """Takes what the program can run, and says whether that was anything."""
        count = 0
        for line in left[index]:
            tag = re.search(r" tag \d+", line)
            if line.startswith("send ") and tag:
                sent.add(tag[0])
            elif (line.startswith("recv ") and tag and tag[0] not in sent) or " among " in line:
                break
            count += 1
        if count:
            take(index, count)
        line = [*left[index], ""][0]
        members = re.search(r" among([ \d]+)( tag \d+)", line)
        ready = summing(members[2], members[1]) if members else []
        for member in ready:
            take(member, 1)
        return bool(count or ready)

    while any([goes_on(index) for index in range(len(programs))]):
        pass
    for index, lines in enumerate(left):
        if lines:
            take(index, len(lines))
    return runs
