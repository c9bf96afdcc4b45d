"""Plans of one mesh as Python modules: `jax.jit` follows them without this package."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import re
import subprocess
import sys
import weakref
from dataclasses import replace

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from alpa_mlir import PipeshardParallel, ShardParallel, Zero3Parallel
from alpa_mlir.cli import main
from alpa_mlir.errors import ArgumentTypeError, ExportError, PlanMismatchError
from alpa_mlir.export import export_plan, plain_jax
from alpa_runtime.plan import Plan
from conditioned import check_state, plain
from jax.sharding import PartitionSpec as P

CLUSTER = "cpu-test:2"
COLLECTIVES = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def module_of(plan: Plan, folder):
    """The exported module, imported from a file."""
    path = folder / "shardings.py"
    path.write_text(export_plan(plan, "jax").text)
    spec = importlib.util.spec_from_file_location("shardings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planned(step, *args, method=None, cluster=CLUSTER, **options):
    method = method or ShardParallel(mesh_shape=(2, 4))
    return alpa_mlir.parallelize(step, cluster=cluster, method=method, **options).plan(*args)


def planned_call(step, *args, **named) -> Plan:
    method = ShardParallel(mesh_shape=(2, 4))
    return alpa_mlir.parallelize(step, cluster=CLUSTER, method=method).plan(*args, **named).plan


def check_alike(found, expected):
    for x, want in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(plain(x), plain(want), rtol=1e-5, atol=1e-8)


@functools.cache
def model_of(name: str):
    if name == "gpt":
        return zoo.make_gpt(zoo.GPTConfig(layers=1, optimizer="sgd"))
    return zoo.get(name)


@functools.cache
def zoo_plan(name: str, method=None) -> Plan:
    model = model_of(name)
    return planned(model.step, *model.init(), method=method).plan


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    [
        "gpt",
        "moe",
        pytest.param("gpt_scan_remat", marks=pytest.mark.slow),
        pytest.param("wide_resnet", marks=pytest.mark.slow),
    ],
)
def test_equals_jit(name, tmp_path):
    """In its numbers, and in the kinds of its collectives the plan; XLA joins and splits these as
    it likes, and has no reduce-scatter on CPUs."""
    model = model_of(name)
    args = model.init()
    plan = zoo_plan(name, Zero3Parallel(mesh_shape=(2, 4)) if name == "gpt" else None)
    shardings = module_of(plan, tmp_path)
    placed = shardings.place(*args)
    compiled = shardings.jit(model.step, *args).lower(*placed).compile()
    rows = plan.explanation(0)["communication"]
    kinds = COLLECTIVES.findall(compiled.as_text())
    assert set(kinds) <= {row["collective"].replace("_", "-") for row in rows} | {"all-reduce"}
    assert {"all-gather", "all-reduce"} <= set(kinds)
    state, metrics = compiled(*placed)
    expected, wanted = jax.jit(model.step)(*args)
    check_state(args[0], state, expected, rtol=1e-5)
    for found, want in zip(jax.tree.leaves(metrics), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(plain(found), plain(want), rtol=1e-5)
    # The state comes back as it was given, so that steps follow one another.
    for before, after in zip(jax.tree.leaves(placed[0]), jax.tree.leaves(state), strict=True):
        assert before.sharding.is_equivalent_to(after.sharding, before.ndim)
    if name == "gpt":
        free = shardings.jit(model.step, *args, constrain=False).lower(*placed).compile()
        assert len(kinds) < len(COLLECTIVES.findall(free.as_text()))
        temporary = [c.memory_analysis().temp_size_in_bytes for c in (compiled, free)]
        assert temporary[0] < temporary[1]


def test_typed_keys(tmp_path):
    model = zoo.get("dropout_typed_key")
    args = model.init()
    shardings = module_of(zoo_plan("dropout_typed_key"), tmp_path)
    found = shardings.jit(model.step, *args)(*shardings.place(*args))
    check_state(args, found, jax.jit(model.step)(*args), rtol=1e-5)


def test_weights_lie_as_in_the_plan(tmp_path):
    plan = zoo_plan("gpt", Zero3Parallel(mesh_shape=(2, 4)))
    shardings = module_of(plan, tmp_path)
    model = model_of("gpt")
    state, batch = model.init()
    specs, _ = shardings.argument_specs(state, batch)
    (stage,) = plan.stages
    (weight,) = (w for w in stage.weights if w.name == "state.params['h0']['down']['kernel']")
    axes = [names[0] if len(names) == 1 else names or None for names in weight.spec]
    assert P(*axes) == specs.params["h0"]["down"]["kernel"] != P()
    out = shardings.result_specs(jax.eval_shape(model.step, state, batch))
    assert out[0].params["h0"]["down"]["kernel"] == specs.params["h0"]["down"]["kernel"]
    assert out[1]["loss"] == P()


MODEL = """
import jax, jax.numpy as jnp, numpy as np
def step(w, x, rate, decay):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"] - x) ** 2)
    value, g = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda w, g: decay * w - rate * g, w, g), value
def arguments():
    random = np.random.default_rng(0)
    up, down, x = (random.normal(size=s).astype(np.float32) for s in ((16, 64), (64, 16), (32, 16)))
    return {"up": up, "down": down}, x, np.float32(0.1), 0.99
"""
ALONE = """
import sys
sys.modules["alpa_mlir"] = sys.modules["alpa_runtime"] = None
import jax, numpy as np, model, shardings
args = model.arguments()
step = shardings.jit(model.step, *args, donate_argnums=shardings.STATE)
found = step(*shardings.place(*args))
for x, y in zip(*map(jax.tree.leaves, (found, jax.jit(model.step, static_argnums=3)(*args)))):
    np.testing.assert_allclose(x, y, rtol=1e-5)
print(found[0]["up"].sharding.spec)
"""


def test_runs_without_this_package(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    scope: dict = {}
    exec(MODEL, scope)
    plan = planned(
        scope["step"],
        *scope["arguments"](),
        method=Zero3Parallel(mesh_shape=(2, 4)),
        batch_argnums=1,
        static_argnums=3,
    ).plan
    (tmp_path / "shardings.py").write_text(export_plan(plan, "jax").text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE],
        env={
            "PATH": os.environ["PATH"],
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'x'" in done.stdout


def test_a_step_stands_for_its_plan(tmp_path):
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    step = alpa_mlir.parallelize(mean_loss, cluster=CLUSTER, method=ShardParallel())
    found = step.plan(weights(), x)
    expected = export_plan(found.plan, "jax")
    folder = found.save(tmp_path / "plan")
    for plan in (found, found.load(), folder, str(folder)):
        assert export_plan(plan, "jax") == expected
    for wrong, what in ((None, "plan is None"), (7, "plan=7 is an int")):
        with pytest.raises(ArgumentTypeError, match=f"export_plan: {what}; fix: give a Plan or"):
            export_plan(wrong, "jax")


def test_convolutions_with_groups_are_refused(tmp_path):
    """XLA's partitioner gets gradients of their weights wrong, here twice as large."""
    dims = ("NHWC", "HWIO", "NHWC")

    def step(kernel, x):
        def loss(kernel):
            def layer(x, _):
                y = jax.lax.conv_general_dilated(
                    x, kernel, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=4
                )
                return jnp.sin(y), None

            return jnp.mean(jax.lax.scan(layer, x, length=2)[0] ** 2)

        return kernel - jax.grad(loss)(kernel)

    given = jnp.ones((3, 3, 1, 4)), jnp.ones((4, 8, 8, 4))
    module = module_of(planned(step, *given, method=Zero3Parallel()).plan, tmp_path)
    with pytest.raises(ValueError, match="convolutions with groups"):
        module.jit(step, *given)


def test_pipelines_are_refused(tmp_path, capsys):
    model = zoo.get("mlp")
    method = PipeshardParallel(submeshes=[(1, 4), (1, 4)])
    planned(model.step, *model.init(), method=method).save(tmp_path / "plan")
    assert main(["export", str(tmp_path / "plan"), "--to", "jax"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 pipeline stages" in line
    assert "export it to " in line


def test_command_line(tmp_path, capsys):
    zoo_plan("moe").save(tmp_path / "plan")
    output = tmp_path / "shardings.py"
    words = ["export", str(tmp_path / "plan"), "--to", "jax"]
    assert main([*words, "-o", str(output)]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == output.read_text()
    with pytest.raises(SystemExit):
        main([*words, "-o", str(output)])
    assert "exists" in capsys.readouterr().err
    with pytest.raises(ExportError, match=r"no format 'torch'.*jax"):
        export_plan(zoo_plan("moe"), "torch")


def mean_loss(w, x):
    return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - x) ** 2)


def weights():
    random = np.random.default_rng(1)
    shapes = {"a": (16, 32), "b": (32, 16)}
    return {k: random.normal(size=v).astype(np.float32) for k, v in shapes.items()}


def whole_and_rate(w, x, rate):
    """Returns its first argument anew; nothing but that may be donated."""
    value, g = jax.value_and_grad(mean_loss)(w, x)
    return jax.tree.map(lambda w, g: w - rate * g, w, g), value


def by_name_alone(w, x, *, rate, sign="plus", scaled=False):
    value, g = jax.value_and_grad(mean_loss)(w, x)
    factor = (2 if scaled else 1) * (1 if sign == "plus" else -1)
    return jax.tree.map(lambda w, g: w - factor * rate * g, w, g), value


def by_position_alone(w, scaled, x, /):
    return by_name_alone(w, x, rate=0.1, scaled=scaled)


def any_number(*args, **more):
    return by_name_alone(*args, **more)


def with_defaults(w, rate=0.1, x=None, scaled=False):
    return by_name_alone(w, x, rate=rate, scaled=scaled)


def a_part(w, x):
    """Returns one of two leaves."""
    value, g = jax.value_and_grad(mean_loss)(w, x)
    return {"a": w["a"] - g["a"]}, value


@pytest.mark.parametrize(
    ("step", "rest", "state"),
    [
        (whole_and_rate, [np.float32(0.1)], [0]),
        (a_part, [], []),
        (mean_loss, [], []),
        (lambda w, x, count: (*whole_and_rate(w, x, 1.0), count + 1), [np.int32(0)], [0, 2]),
    ],
    ids=["rate", "part", "inference", "counter"],
)
def test_state_is_what_the_step_returns_anew(step, rest, state, tmp_path):
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    args = [weights(), x, *rest]
    shardings = module_of(planned(step, *args, batch_argnums=1).plan, tmp_path)
    assert state == shardings.STATE
    run = shardings.jit(step, *args, donate_argnums=shardings.STATE)
    placed = shardings.place(*args)
    run(*placed)
    gone = [any(x.is_deleted() for x in jax.tree.leaves(arg)) for arg in placed]
    assert gone == [number in state for number in range(len(args))]


@pytest.mark.parametrize(
    ("step", "given", "named"),
    [
        (by_name_alone, "wx", {"scaled": True, "rate": 0.1, "sign": "minus"}),
        (by_position_alone, ["w", True, "x"], {}),
        (any_number, "wx", {"rate": 0.1, "scaled": True}),
        (with_defaults, "w", {"x": "x", "scaled": True}),
        (functools.partial(by_name_alone, rate=0.1), "wx", {"sign": "minus"}),
    ],
    ids=["by name", "by position", "any", "defaults", "partial"],
)
def test_calls_are_those_of_the_step(step, given, named, tmp_path):
    """As the module's own docstring writes them."""
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    arrays = {"w": weights(), "x": x}
    args = [arrays[a] if isinstance(a, str) else a for a in given]
    named = {k: arrays.get(v, v) if isinstance(v, str) else v for k, v in named.items()}
    plan = planned_call(step, *args, **named)
    shardings = module_of(plan, tmp_path)
    assert list(plan.call.names) == shardings.NAMES
    assert [shardings.NAMES[i] for i in shardings.STATIC] == [
        name for name in shardings.NAMES if name in ("scaled", "sign")
    ]
    lines = [
        line[4:] for line in shardings.__doc__.split("\n") if "(" in line[4:] and line[:1] == " "
    ]
    in_order = [*args, *(named[name] for name in shardings.NAMES[len(args) :])]
    scope = dict(zip(shardings.NAMES, in_order, strict=True))
    scope |= {"shardings": shardings, plan.name: step}
    exec("\n".join(lines), scope)
    check_alike(scope["result"], step(*args, **named))
    specs = shardings.argument_specs(*args, **named)
    assert len(specs) == len(in_order)


def test_arguments_by_name(tmp_path):
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    w, named = weights(), {"rate": np.float32(0.1), "scaled": True}
    plan = planned_call(by_name_alone, w, x, **named)
    shardings = module_of(plan, tmp_path)
    check = functools.partial(check_alike, expected=by_name_alone(w, x, **named))
    step = shardings.jit(by_name_alone, w, x, **named)
    check(step(w, x, **named))
    check(step(x=x, scaled=True, rate=0.1, w=w))
    check(step(w, x, 0.1, True))
    lowered = step.lower(*shardings.place(w, x, **named))
    check(lowered.compile()(*shardings.place(w, x, **named)[:3]))
    # Static arguments may be bound before, or be left to the step's default.
    bound = functools.partial(by_name_alone, scaled=True)
    placed = shardings.place(w, x, rate=0.1)
    assert len(placed) == len(shardings.argument_specs(w, x, rate=0.1)) == 3
    check(shardings.jit(bound, w, x, rate=0.1)(*placed))
    by_order = shardings.jit(
        lambda w, x, r, s: by_name_alone(w, x, rate=r, scaled=s), w, x, 0.1, True
    )
    check(by_order(w, x, 0.1, True))
    halved = shardings.jit(by_name_alone, w, x, rate=0.2)
    check(halved(w, x, rate=0.2))
    # Examples are not kept.
    example = {name: jnp.asarray(leaf) for name, leaf in w.items()}
    kept = weakref.ref(example["a"])
    step = shardings.jit(by_name_alone, example, x, **named)
    del example
    gc.collect()
    assert kept() is None
    donating = shardings.jit(by_name_alone, w, x, **named, donate_argnames="w")
    placed = shardings.place(w, x, **named)
    check(donating(*placed))
    assert all(leaf.is_deleted() for leaf in placed[0].values())
    for args, wrong, message in (
        ((w, x), {"rat": 0.1}, "got an unknown argument 'rat', the plan is for w, x, rate, scaled"),
        ((w, x), {"x": x, "rate": 0.1}, "got the argument 'x' twice"),
        ((w,), {"rate": 0.1}, "got no x, the plan"),
        ((w, x, 0.1, True, 1), {}, "got 5 arguments"),
    ):
        for call in (shardings.place, step, shardings.argument_specs):
            with pytest.raises(TypeError, match=message):
                call(*args, **wrong)


def test_objects_of_nnx(tmp_path):
    """Changed in place, as `nnx.jit` changes them."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(2)])
            self.drop = nnx.Dropout(0.1, rngs=nnx.Rngs(1))

        def __call__(self, x):
            for layer in self.layers:
                x = self.drop(jnp.tanh(layer(x)))
            return x

    def train(model, fixed, optimizer, x):
        def loss(model):
            return jnp.mean((model(x) - fixed(x)) ** 2)

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value, model

    def objects():
        model, fixed = Net(), Net()
        fixed.eval()
        return model, fixed, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    plan = planned(train, *objects(), x, method=Zero3Parallel(mesh_shape=(2, 4))).plan
    shardings = module_of(plan, tmp_path)
    ours, theirs = objects(), objects()
    step = shardings.jit(train, *ours, x, donate_argnums=shardings.STATE)
    reference = nnx.jit(train)
    specs = shardings.argument_specs(*ours, x)
    assert specs[0]["layers"][0]["kernel"] != P()
    placed = shardings.place(*ours, x)
    assert all(a is b for a, b in zip(placed, ours, strict=False))
    for mode in ("train", "train", "eval"):  # The last one compiles anew.
        if mode == "eval":
            ours[0].eval()
            theirs[0].eval()
        kernel = ours[0].layers[0].kernel[...]
        assert not kernel.sharding.is_fully_replicated
        found, model = step(*ours, x)
        assert model is ours[0]
        check_alike(found, reference(*theirs, x)[0])
        assert kernel.is_deleted()
    for a, b in zip(*(jax.tree.leaves(nnx.state(each)) for each in (ours, theirs)), strict=True):
        np.testing.assert_allclose(plain(a), plain(b), rtol=1e-4, atol=1e-6)
    # The constrained step by itself.
    found = nnx.jit(shardings.constrained(train))(*ours, x)[0]
    check_alike(found, reference(*theirs, x)[0])


def test_modules_of_equinox(tmp_path):
    """What is no array among their leaves stays as it is."""
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(16, 16, 32, 2, key=jax.random.key(0))

    def step(model, x):
        loss, g = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, g)), loss

    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    shardings = module_of(planned(step, model, x).plan, tmp_path)
    run = shardings.jit(step, model, x, donate_argnums=shardings.STATE)
    placed, x = shardings.place(model, x)
    assert placed.activation is model.activation
    expected = eqx.filter_jit(step)(model, x)
    found = run(placed, x)
    assert found[0].activation is model.activation
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    check_alike(*(eqx.filter(each, eqx.is_array) for each in (found, expected)))
    # Another function in its place compiles the step again.
    other = eqx.tree_at(lambda m: m.activation, found[0], jnp.tanh)
    expected = eqx.filter_jit(step)(other, x)
    found = run(other, x)
    check_alike(*(eqx.filter(each, eqx.is_array) for each in (found, expected)))


def test_plans_without_names_of_arguments(tmp_path):
    x = np.random.default_rng(2).normal(size=(32, 16)).astype(np.float32)
    args = [weights(), x, 0.1, True]
    plan = planned(lambda w, x, r, s: by_name_alone(w, x, rate=r, scaled=s), *args).plan
    older = replace(plan, call=replace(plan.call, names=()))
    assert "which arguments its step takes by name alone" in export_plan(older, "jax").notes[0]
    shardings = module_of(older, tmp_path)
    assert shardings.NAMES == ["w", "x", "r", "argument_3"]
    step = shardings.jit(lambda w, x, r, s: by_name_alone(w, x, rate=r, scaled=s), *args)
    found = step(*shardings.place(*args))
    check_alike(found, by_name_alone(weights(), x, rate=0.1, scaled=True))
    with pytest.raises(PlanMismatchError, match="1 names for 4 arguments"):
        export_plan(replace(plan, call=replace(plan.call, names=("w",))), "jax")


def test_micro_batches(tmp_path):
    def step(w, x):
        loss, g = jax.value_and_grad(mean_loss)(w, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), loss

    w, x = weights(), np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    method = ShardParallel(mesh_shape=(2, 4), num_micro_batches=4)
    exported = export_plan(planned(step, w, x, method=method).plan, "jax")
    assert "takes 4 micro-batches" in exported.notes[0]
    shardings = module_of(planned(step, w, x, method=method).plan, tmp_path)

    def accumulating(w, x):
        both = shardings.micro_batched_value_and_grad(mean_loss, reduction="mean")
        loss, g = both(w, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), loss

    expected = jax.jit(step)(w, x)
    for each in (step, accumulating):
        found = shardings.jit(each, w, x)(*shardings.place(w, x))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    both = shardings.micro_batched_value_and_grad(
        lambda w, x: x.size * mean_loss(w, x), reduction="sum"
    )
    np.testing.assert_allclose(both(w, x)[0], x.size * expected[1], rtol=1e-5)
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        shardings.micro_batched_value_and_grad(mean_loss, reduction="max")


def test_dropout_leaves_the_loop_of_micro_batches_out():
    """Each micro-batch would draw the bits of the first."""

    def step(w, x, key):
        def loss(w):
            kept = jax.random.bernoulli(key, 0.5, x.shape)
            return mean_loss(w, x * kept)

        value, g = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), value

    method = ShardParallel(mesh_shape=(2, 4), num_micro_batches=4)
    x = np.ones((32, 16), np.float32)
    plan = planned(step, weights(), x, jax.random.key(3), method=method).plan
    exported = export_plan(plan, "jax")
    assert "random bits" in exported.notes[0]
    assert "def micro_batched_value_and_grad" not in exported.text


def test_losses_that_micro_batches_do_not_add_up_to(tmp_path):
    """A mean over unmasked tokens is no mean of the micro-batches' means."""

    def step(w, batch):
        x, mask = batch["x"], batch["mask"]

        def loss(w):
            errors = (jnp.tanh(x @ w["a"]) @ w["b"] - x) ** 2
            return jnp.sum(errors * mask[:, None]) / jnp.sum(mask)

        value, g = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), value

    random = np.random.default_rng(0)
    x = random.normal(size=(32, 16)).astype(np.float32)
    batch = {"x": x, "mask": (random.random(32) < 0.5).astype(np.float32)}
    method = ShardParallel(mesh_shape=(2, 4), num_micro_batches=4)
    plan = planned(step, weights(), batch, method=method).plan
    exported = export_plan(plan, "jax")
    assert "there is no general one" in exported.notes[0]
    assert "test_jax_module.py" in exported.notes[0]
    shardings = module_of(plan, tmp_path)
    assert not hasattr(shardings, "micro_batched_value_and_grad")
    found = shardings.jit(step, weights(), batch)(*shardings.place(weights(), batch))
    expected = jax.jit(step)(weights(), batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_deep_models_need_no_longer_tables(tmp_path):
    def step(w, x):
        def loss(w):
            h = x
            for number, each in enumerate(w):
                with jax.named_scope(f"layer_{number}"):
                    h = h + jnp.tanh(h @ each)
            return jnp.mean(h**2)

        value, g = jax.value_and_grad(loss)(w)
        return [a - 0.1 * b for a, b in zip(w, g, strict=True)], value

    def constraints(layers):
        w = [jax.ShapeDtypeStruct((16, 16), np.float32)] * layers
        args = w, jax.ShapeDtypeStruct((32, 16), np.float32)
        plan = planned(step, *args, method=Zero3Parallel(mesh_shape=(1, 8))).plan
        return module_of(plan, tmp_path).CONSTRAINTS

    found = constraints(12)
    assert "layer_*/dot_general" in found
    assert sum(map(len, found.values())) <= sum(map(len, constraints(4).values()))


def test_another_step(tmp_path):
    model = model_of("gpt")
    state, batch = model.init()
    shardings = module_of(zoo_plan("gpt"), tmp_path)
    with pytest.raises(KeyError, match=r"no batch\['more'\]"):
        shardings.place(state, {**batch, "more": np.zeros(8)})
    with pytest.raises(TypeError, match="got no batch, the plan is for state, batch"):
        shardings.place(state)
    with pytest.raises(ValueError, match="got 2 devices, the plan needs 8"):
        shardings.mesh(jax.devices()[:2])

    def other(state, batch):
        return state, {"loss": jnp.sum(batch["tokens"] * 1.0)}

    with pytest.warns(UserWarning, match="constraints are of values that the step does not"):
        jax.make_jaxpr(shardings.constrained(other))(state, batch)


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (None, P("x"), [P("x")]),
        (P("x"), P("x", None), []),
        (P("x"), P(None, "x"), [P(None, "x")]),
        (P(None, ("x", "y")), P("y"), [P("y", "x"), P("y", None)]),
        (P(("x", "y")), P("x"), [P("x", None)]),
        (P(("x", "y")), P("y"), [P(None, None), P("y", None)]),
        (P(), P("x", "y"), [P("x", "y")]),
        (P("x", "y"), P("y", "x"), [P(None, None), P("y", "x")]),
    ],
)
def test_way_between_shardings(before, after, steps):
    assert plain_jax.way(before, after, 2) == steps


@pytest.mark.parametrize(
    ("scopes", "name"),
    [
        ("jvp(alpa_eqn_4)/GPT/wte/jit(_take)/gather", "GPT/wte/_take/gather"),
        ("jvp(GPT)/wte/_take//gather", "GPT/wte/_take/gather"),
        ("transpose(jvp(GPT))/while/body/eval_jaxpr/alpa_inner1_3/h/mul", "backward GPT/h/mul"),
        ("jvp()/bqhd,bkhd->bhqk/dot_general", "bqhd,bkhd->bhqk/dot_general"),
    ],
)
def test_names_of_values(scopes, name):
    assert plain_jax.value_name(scopes) == name


def test_a_step_that_every_device_computes_whole_is_said():
    """Padding is the plan's own: nothing that it splits is left to split."""

    def step(weights, batch):
        def loss(weights):
            return jnp.mean((jnp.tanh(batch @ weights[0]) @ weights[1]) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    arguments = (jnp.ones((15, 33)), jnp.ones((33, 7))), jnp.ones((30, 15))
    said = "no argument is split, so that each device computes the whole step"
    method = ShardParallel(method="data-parallel", num_micro_batches=2, padding="all")
    plan = planned(step, *arguments, method=method).plan
    assert plan.padded
    assert any(said in note and "padding='none'" in note for note in export_plan(plan, "jax").notes)
    split = planned(step, *arguments[:1], jnp.ones((32, 15)), method=ShardParallel(method="zero-2"))
    assert not any(said in note for note in export_plan(split.plan, "jax").notes)
