"""From a user's step to StableHLO text and a signature."""

from __future__ import annotations

import functools
import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from alpa_mlir import AutoParallel, PipeshardParallel, parallelize
from alpa_mlir.errors import ArgumentMismatchError, TraceError
from alpa_mlir.trace.dependencies import phase_of
from alpa_mlir.trace.tracing import Signature, trace
from module_walk import main_ops, tag_of


def _sgd(params, batch):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((batch @ p["w"] + p["b"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


_PARAMS = {"w": jnp.ones((4, 3)), "b": jnp.zeros(3)}
_BATCH = jnp.ones((8, 4))


def _carried(signature):
    return {
        i.name: signature.outputs[i.carried_by].name
        for i in signature.inputs
        if i.carried_by is not None
    }


@pytest.mark.parametrize("name", zoo.names())
def test_zoo(name):
    model = zoo.get(name)
    state, batch = jax.eval_shape(model.init)
    traced = trace(model.step, state, batch)
    signature = traced.signature
    assert signature.batch_size == 8

    kinds = Counter(i.kind for i in signature.inputs)
    assert kinds == {"state": len(jax.tree.leaves(state)), "batch": len(jax.tree.leaves(batch))}
    for item in signature.inputs:
        if item.kind == "batch":
            assert item.shape[0] == 8
        else:
            assert item.carried_by is not None
            device_backend = signature.outputs[item.carried_by]
            assert device_backend.name == item.name.replace("state", "result[0]", 1)
    assert signature == Signature.from_json(signature.to_json())
    assert set(json.loads(signature.to_json())) == {"name", "inputs", "outputs"}

    coverage = Counter()
    for op in main_ops(traced.lowered):
        stack = str(op.location)
        coverage[phase_of(stack), tag_of(stack) is not None] += 1
    if "train" in model.tags:
        for phase in ("forward", "backward"):
            assert coverage[phase, True] > 0
            assert coverage[phase, False] <= 0.02 * coverage[phase, True]
        assert traced.tagged_equations > 0
        assert coverage["update", True] == 0
    assert "stablehlo." in traced.as_text()
    assert '"stablehlo.' in traced.text
    assert "loc(" in traced.text


def test_text_is_read_back_as_the_same_module():
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    traced = trace(_sgd, _PARAMS, _BATCH)
    with mlir.make_ir_context():
        module = ir.Module.parse(traced.text)
        assert module.operation.verify()
        again = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    assert again == traced.text


@pytest.mark.parametrize("name", ["mlp", "gpt", "nnx_dropout", "kv_cache", "random_bits"])
def test_text_computes_the_step(name):
    from jax.extend import backend

    model = zoo.get(name)
    state, batch = model.init()
    traced = trace(model.step, state, batch)
    client = backend.get_backend("cpu")
    devices = client.local_devices()[:1]
    options = backend.get_compile_options(
        1, 1, device_assignment=np.array(devices)[None, :], backend=client
    )
    program = client.compile_and_load(traced.text, devices, options)
    flat = [jax.device_put(x, devices[0]) for x in traced.flatten_args(state, batch)]
    results = program.execute_sharded(flat).disassemble_into_single_device_arrays()
    got = traced.unflatten_results([result[0] for result in results])
    want = jax.jit(model.step)(state, batch)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


def test_locations_show_the_users_lines_only():
    traced = trace(_sgd, _PARAMS, _BATCH)
    assert "test_trace.py" in traced.text
    assert "/alpa_mlir/" not in traced.text


def test_whole_batch():
    traced = trace(_sgd, _PARAMS, _BATCH)
    names = {i.name: (i.shape, i.kind) for i in traced.signature.inputs}
    assert names == {
        "params['w']": ((4, 3), "state"),
        "params['b']": ((3,), "state"),
        "batch": ((8, 4), "batch"),
    }
    assert _carried(traced.signature) == {
        "params['w']": "result[0]['w']",
        "params['b']": "result[0]['b']",
    }
    assert [o.shape for o in traced.signature.outputs] == [(3,), (4, 3), ()]


def test_form_of_a_plan():
    """What is called has the whole batch, whatever the plan's micro-batches are."""
    traced = trace(_sgd, _PARAMS, _BATCH)
    for count in (1, 4):
        form = traced.form_for(count)
        assert [x.shape for x in form.in_leaves] == [(3,), (4, 3), (8 // count, 4)]
        assert [x.shape for x in form.flatten_args(_PARAMS, _BATCH)] == [(3,), (4, 3), (8, 4)]


@pytest.mark.parametrize(
    ("rest", "batches"),
    [
        (lambda x, y: (x,), {"b"}),
        # Inputs before targets, and a mask.
        (lambda x, y: (x, y), {"b", "c"}),
        # A number or a key behind the batch.
        (lambda x, y: (x, 0.1), {"b"}),
        (lambda x, y: (x, jax.random.PRNGKey(0)), {"b"}),
        (lambda x, y: (x, jax.random.key(0)), {"b"}),
        # What is in the batch, and has no examples.
        (lambda x, y: (y, {"x": x, "k": 1.0}), {"b", "c['x']"}),
        (lambda x, y: ({"x": x, "y": y, "z": jnp.ones(6)},), {"b['x']", "b['y']"}),
        (lambda x, y: (x, {"x": x, "y": y, "z": jnp.ones(6)}), {"b", "c['x']", "c['y']"}),
    ],
)
def test_which_arguments_are_batches(rest, batches):
    def step(a, b, c=0.0):
        leaves = map(jnp.asarray, jax.tree.leaves((b, c)))
        numbers = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
        return a + 1, [jnp.sum(x) for x in numbers]

    arguments = rest(jnp.ones((8, 4)), jnp.ones(8))
    signature = trace(step, jnp.ones((4, 3)), *arguments).signature
    assert {i.name for i in signature.inputs if i.kind == "batch"} == batches


def test_arguments_that_are_returned_are_no_batches():
    """Weights and averages of them with as many rows as the batch."""

    def step(w, average, batch):
        gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
        return w - gradient, 0.9 * average + 0.1 * w

    w, batch = jnp.ones((8, 4)), jnp.ones((8, 8))
    kinds = [i.kind for i in trace(step, w, w, batch).signature.inputs]
    assert kinds == ["state", "state", "batch"]
    kinds = [i.kind for i in trace(step, w, w, batch, batch_argnums=(1, 2)).signature.inputs]
    assert kinds == ["state", "batch", "batch"]


def test_own_errors_of_the_step_come_through():
    def step(params, batch):
        return params @ params, batch

    with pytest.raises(TypeError, match="dot_general"):
        trace(step, jnp.ones((4, 3)), _BATCH)


def _pure(x):
    return jax.pure_callback(np.asarray, x, x, vmap_method="sequential")


def _in_out(x):
    return jax.experimental.io_callback(np.asarray, x, x)


@pytest.mark.parametrize("call", [_pure, _in_out])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, jax.vmap])
def test_calls_of_python_are_refused(call, wrap):
    def step(params, batch):
        return params, jnp.sum(wrap(call)(batch))

    line = call.__code__.co_firstlineno + 1
    with pytest.raises(
        TraceError, match=rf"step: the step calls Python .*test_trace.py:{line}.*; fix"
    ):
        trace(step, jnp.ones(3), _BATCH)


def test_calls_of_python_in_gradients_and_loops_are_refused():
    def step(params, batch):
        def body(x, row):
            return x + _pure(jax.lax.stop_gradient(x)) + jnp.sum(row @ params), None

        return params - jax.grad(lambda p: jax.lax.scan(body, 0.0, batch * p.sum())[0])(params), 0

    with pytest.raises(TraceError, match=r"calls Python .*_pure"):
        trace(step, jnp.ones(4), _BATCH)


@pytest.mark.parametrize(
    "method",
    [
        AutoParallel(num_micro_batches=4),
        PipeshardParallel(submeshes=[(1, 1), (1, 1)], num_micro_batches=2),
    ],
    ids=["micro-batches", "two stages"],
)
def test_what_is_printed_is_left_out(method):
    """In loops, branches, gradients, mapped and jitted functions."""

    def layer(x, w):
        jax.debug.print("mean {}", x.mean())
        return jnp.tanh(x @ w), None

    def step(params, batch):
        def loss(params):
            y, _ = jax.lax.scan(jax.checkpoint(layer), batch, params)
            jax.lax.cond(y.sum() > 0, lambda: jax.debug.print("+", ordered=True), lambda: None)
            jax.vmap(lambda row: jax.debug.print("{}", row))(batch)
            jax.jit(lambda y: jax.debug.callback(print, y))(y)
            return jnp.mean(y**2)

        value, gradient = jax.value_and_grad(loss)(params)
        jax.debug.print("loss {}", value)
        return params - 0.1 * gradient, value

    params = jax.random.normal(jax.random.key(0), (4, 4, 4))
    with pytest.warns(UserWarning, match=r"^step: what jax.debug .*test_trace.py:\d+.* left out"):
        found = parallelize(step, method=method, cache=False)(params, _BATCH)
    for got, wanted in zip(found, jax.jit(step)(params, _BATCH), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    with pytest.warns(UserWarning, match="left out"):
        assert "callback" not in trace(step, params, _BATCH).as_text()


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable arrays")
def test_side_effects_are_refused():
    kept = jax.new_ref(jnp.zeros(()))

    def step(params, batch):
        kept[...] += batch.sum()
        return params, batch.sum()

    with pytest.raises(TraceError, match=r"step: .* side effects .*fix: remove"):
        trace(step, jnp.ones(3), _BATCH)


def test_models_that_are_changed_in_place_are_refused():
    from flax import nnx

    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def step(model, batch):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(batch) ** 2))(model)
        model.kernel[...] = model.kernel[...] - 0.1 * grads["kernel"][...]
        return loss

    with pytest.raises(
        TraceError, match=r"model: the step changes this argument in place.*fix: .*split"
    ):
        trace(step, model, _BATCH)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_argnums": 5}, r"batch_argnums: argument 5 does not exist, got 2"),
        ({"static_argnums": (0, 1)}, r"no example argument holds arrays"),
        ({"batch_argnums": 0, "static_argnums": 0}, r"also in static_argnums"),
        ({"batch_argnums": 1, "carried": {1: 0}}, r"carried: argument 1 is not a state"),
        ({"carried": {0: 7}}, r"params: `carried` names result 7, but the step returns 2"),
        ({"carried": {0: 1}}, r"params: result 1 has another structure"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(TraceError, match=message):
        trace(_sgd, _PARAMS, _BATCH, **options)


def test_value_that_is_no_array():
    with pytest.raises(TraceError, match=r"params\['name'\]: a value of type str.*static_argnums"):
        trace(_sgd, {**_PARAMS, "name": "x"}, _BATCH)


def test_static_arguments_and_unused_ones():
    def step(mode, params, unused, batch, *, scale=2.0):
        assert mode == "train"
        return params * scale, unused, batch.sum()

    traced = trace(step, "train", jnp.ones(3), {"a": jnp.ones(2)}, _BATCH, static_argnums=0)
    assert [i.name for i in traced.signature.inputs] == ["params", "unused['a']", "batch"]
    assert len(traced.flatten_args("train", jnp.ones(3), {"a": jnp.ones(2)}, _BATCH)) == 3
    assert _carried(traced.signature) == {"params": "result[0]", "unused['a']": "result[1]['a']"}


def test_jitted_step_and_none_leaves():
    @jax.jit
    def step(state, batch):
        new, loss = _sgd(state["params"], batch)
        return {"params": new, "nothing": None}, loss

    state = {"params": _PARAMS, "nothing": None}
    step(state, _BATCH)
    traced = trace(step, state, _BATCH)
    assert len(_carried(traced.signature)) == 2
    assert traced.tagged_equations > 0


def test_names_of_partial_and_callable_objects():
    def step(rate, params, batch):
        return params * rate, batch.sum()

    class Trainer:
        def __call__(self, params, batch):
            return params, batch.sum()

        def run(self, params, *rest):
            return params, rest[-1].sum()

    def name_and_inputs(fn):
        signature = trace(fn, jnp.ones(3), _BATCH).signature
        return signature.name, [i.name for i in signature.inputs]

    assert name_and_inputs(functools.partial(step, 0.5)) == ("step", ["params", "batch"])
    assert name_and_inputs(Trainer()) == ("Trainer", ["params", "batch"])
    assert name_and_inputs(Trainer().run) == ("run", ["params", "rest[0]"])


def test_typed_keys_travel_as_data():
    def step(state, batch):
        key, used = jax.random.split(state["key"])
        noise = jax.random.normal(used, batch.shape)
        return {"key": key, "w": state["w"] + 1}, jnp.mean(batch + noise), used

    state = {"key": jax.random.key(1), "w": jnp.ones(2)}
    traced = trace(step, state, _BATCH)
    key = traced.signature.inputs[0]
    assert (key.name, key.shape, key.dtype) == ("state['key']", (2,), "uint32")
    assert key.carried_by == 0
    flat = traced.flatten_args(state, _BATCH)
    np.testing.assert_array_equal(flat[0], jax.random.key_data(state["key"]))
    outputs = [flat[0], flat[1], np.float32(0), flat[0]]
    (new, _, used) = traced.unflatten_results(outputs)
    assert new["key"].dtype == state["key"].dtype == used.dtype


def test_python_and_numpy_numbers_become_arrays():
    def step(state, batch):
        return {"n": state["n"] + 1, "x": state["x"] * 2}, batch.sum()

    state = {"n": 3, "x": np.ones(2, np.float64)}
    batch = np.arange(8)
    traced = trace(step, state, batch)
    flat = traced.flatten_args(state, batch)
    assert [x.dtype for x in flat] == [np.int32, np.float32, np.int32]
    assert [i.dtype for i in traced.signature.inputs] == ["int32", "float32", "int32"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (({"w": jnp.ones((4, 3))}, _BATCH), r"no leaf params\['b'\]"),
        (({**_PARAMS, "c": 1.0}, _BATCH), r"an unknown leaf params\['c'\]"),
        ((_PARAMS, jnp.ones((2, 4))), r"batch: got float32\[2, 4\], .* float32\[8, 4\]"),
        ((_PARAMS, np.ones((8, 4), np.int32)), r"batch: got int32"),
    ],
)
def test_arguments_that_do_not_match(args, message):
    traced = trace(_sgd, _PARAMS, _BATCH)
    assert len(traced.flatten_args(_PARAMS, _BATCH)) == 3
    with pytest.raises(ArgumentMismatchError, match=message):
        traced.flatten_args(*args)


def test_what_is_taken_approximately_is_taken_exactly():
    """XLA's custom call names a function that no op of StableHLO shows."""

    def step(w, x, aggregate_to_topk=True):
        values, _ = jax.lax.approx_max_k(x @ w, 2, aggregate_to_topk=aggregate_to_topk)
        return w, values.sum()

    example = jnp.ones((8, 8)), jnp.ones((4, 8))
    text = trace(step, *example).as_text()
    assert "chlo.top_k" in text
    assert "ApproxTopK" not in text
    message = r"more .* than it says \(approx_top_k\) at .*test_trace.py.*; fix: leave out aggre"
    with pytest.raises(TraceError, match=message):
        trace(functools.partial(step, aggregate_to_topk=False), *example)
