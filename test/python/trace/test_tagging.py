"""Tags of forward equations reach the forward and the backward ops, and change no number."""

from __future__ import annotations

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo
from alpa_mlir.trace import tagging
from alpa_mlir.trace.dependencies import phase_of
from alpa_runtime import jax_internals
from flax import nnx
from module_walk import main_ops, tag_of


def _loss(params, x):
    h = jnp.tanh(x @ params["a"])
    return jnp.mean(jax.nn.relu(h @ params["b"]) ** 2)


@pytest.fixture
def inputs():
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    params = {"a": jax.random.normal(keys[0], (4, 5)), "b": jax.random.normal(keys[1], (5, 3))}
    return params, jax.random.normal(keys[2], (6, 4))


def _stacks(fn, *args, hook=True):
    with tagging.tag_gradients(hook) as session:
        lowered = jax.jit(fn).lower(*args)
    return [str(op.location) for op in main_ops(lowered)], session


def _covered(stacks):
    """Tags of forward and of backward ops."""
    tags = {"forward": set(), "backward": set(), "update": set()}
    for stack in stacks:
        tags[phase_of(stack)].add(tag_of(stack))
    return tags["forward"], tags["backward"]


def test_hook_tags_plain_grad(inputs):
    stacks, session = _stacks(jax.value_and_grad(_loss), *inputs)
    forward, backward = _covered(stacks)
    assert session.hooked
    assert session.functions == 1
    assert None not in forward | backward
    assert backward <= set(range(session.equations))
    assert {0, 1} <= backward  # the first dot and tanh


def test_backward_op_carries_the_tag_of_its_forward_op(inputs):
    stacks, _ = _stacks(jax.value_and_grad(_loss), *inputs)
    dots = [s for s in stacks if "dot_general" in s]
    forward = [tag_of(s) for s in dots if phase_of(s) == "forward"]
    backward = [tag_of(s) for s in dots if phase_of(s) == "backward"]
    assert len(forward) == len(set(forward)) == 2
    # The second dot has two gradients, the first one only that of its weights.
    assert sorted(backward) == sorted([forward[0], forward[1], forward[1]])


def test_hook_is_removed_and_does_nothing_outside(inputs):
    from jax._src import api

    before = (api.vjp, jax.vjp)
    with tagging.tag_gradients():
        assert api.vjp is not before[0]
    assert (api.vjp, jax.vjp) == before
    stacks = [str(op.location) for op in main_ops(jax.jit(jax.grad(_loss)).lower(*inputs))]
    assert all(tag_of(stack) is None for stack in stacks)


def test_hook_is_removed_after_an_error(inputs):
    before = jax.vjp
    with pytest.raises(ZeroDivisionError), tagging.tag_gradients():
        raise ZeroDivisionError
    assert jax.vjp is before


def test_hook_leaves_other_threads_alone(inputs):
    seen = []

    def other():
        lowered = jax.jit(jax.grad(_loss)).lower(*inputs)
        seen.extend(tag_of(str(op.location)) for op in main_ops(lowered))

    with tagging.tag_gradients() as session:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert session.equations == 0
    assert seen
    assert set(seen) == {None}


def test_threads_trace_at_the_same_time(inputs):
    before = jax.vjp
    results = []

    def work():
        for _ in range(5):
            stacks, session = _stacks(jax.value_and_grad(_loss), *inputs)
            results.append((session.equations, {tag_of(s) for s in stacks} - {None}))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 15
    assert all(result == results[0] for result in results)
    assert results[0][0] > 0
    assert jax.vjp is before


def test_without_the_private_door_nothing_breaks(inputs, monkeypatch):
    monkeypatch.setattr(jax_internals, "_ENTRY", "no_such_function")
    told = rf"jax\.grad of JAX {re.escape(jax.__version__)} .*; fix: call alpa_mlir\.grad "
    with pytest.warns(UserWarning, match=told):
        _, session = _stacks(jax.value_and_grad(_loss), *inputs)
    assert not session.hooked
    assert session.equations == 0
    _, session = _stacks(tagging.value_and_grad(_loss), *inputs)
    assert session.equations > 0


@pytest.mark.parametrize("hook", [True, False])
def test_drop_in_tags_once(inputs, hook):
    stacks, session = _stacks(tagging.value_and_grad(_loss), *inputs, hook=hook)
    forward, backward = _covered(stacks)
    assert session.functions == 1
    assert None not in forward | backward


def test_drop_in_equals_jax_outside_and_inside(inputs):
    params, x = inputs

    def aux(params, x, scale, flag):
        value = _loss(params, x) * scale
        return value, {"x": x, "flag": flag, "none": None}

    for argnums in (0, (0, 2), -4):
        want = jax.value_and_grad(aux, argnums, has_aux=True)(params, x, 2.0, "text")
        got = tagging.value_and_grad(aux, argnums, has_aux=True)(params, x, 2.0, "text")
        with tagging.tag_gradients(hook=False) as session:
            inside = tagging.value_and_grad(aux, argnums, has_aux=True)(params, x, 2.0, "text")
        assert session.equations > 0
        for result in (got, inside):
            assert jax.tree.structure(result) == jax.tree.structure(want)
            assert result[0][1]["flag"] == "text"
            jax.tree.map(np.testing.assert_array_equal, result[1], want[1])
    grads, extra = tagging.grad(aux, has_aux=True)(params, x, 2.0, "text")
    assert set(grads) == {"a", "b"}
    assert extra["none"] is None


def test_nested_jit_that_was_traced_before_is_tagged(inputs):
    inner = jax.jit(jax.value_and_grad(_loss))
    inner(*inputs)
    with tagging.tag_gradients() as session:
        jax.jit(lambda p, x: inner(p, x)).lower(*inputs)
    assert session.equations > 0


def test_ops_of_functions_that_jax_jits_have_the_line_of_their_call(inputs):
    def loss(params, x):
        shifted = jnp.roll(x, 1, 0)
        return jnp.sum(shifted @ params["a"])

    line = loss.__code__.co_firstlineno + 1
    stacks, _ = _stacks(jax.grad(loss), *inputs)
    slices = [stack for stack in stacks if "_roll_static" in stack and "slice" in stack]
    assert slices
    for stack in slices:
        assert re.search(r'test_tagging\.py":(\d+)', stack)[1] == str(line)


def test_nested_gradient_is_tagged_at_the_outer_level_only(inputs):
    params, x = inputs

    def outer(params):
        inner = jax.grad(lambda p: _loss(p, x))(params)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(inner))

    stacks, session = _stacks(jax.grad(outer), params)
    assert session.functions == 1
    assert all(str(s).count(tagging.TAG_PREFIX) <= 1 for s in stacks)
    want = jax.jit(jax.grad(outer))(params)
    with tagging.tag_gradients():
        got = jax.jit(jax.grad(outer))(params)
    jax.tree.map(np.testing.assert_array_equal, got, want)


_COMPUTED = """
    checkpoint custom_vjp dropout_typed_key fft gpt gpt_nnx_scan_remat lstm moe nnx_dropout
    sort_top_k while_cond wide_resnet
"""


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", _COMPUTED.split())
def test_numbers_do_not_change(name):
    model = zoo.get(name)
    state, batch = model.init()
    want = jax.jit(model.step)(state, batch)
    with tagging.tag_gradients() as session:
        got = jax.jit(model.step)(state, batch)
    assert session.equations > 0
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_weak_types_and_python_scalars_survive():
    def loss(w, factor):
        assert jax.typeof(factor).weak_type
        return jnp.sum(w.astype(jnp.bfloat16) * factor).astype(jnp.float32)

    def step(w, factor):
        return jax.value_and_grad(lambda w: loss(w, factor))(w)

    w = jnp.arange(4.0)
    with tagging.tag_gradients() as session:
        got = jax.jit(step)(w, 2.0)
    want = jax.jit(step)(w, 2.0)
    assert session.equations > 0
    jax.tree.map(np.testing.assert_array_equal, got, want)


def _constants():
    """What JAX keeps as literals: of each kind, strong and weak, computed and not."""
    dtypes = "bool int8 uint8 int32 uint32 float16 bfloat16 float32 complex64 float8_e4m3fn int4"
    strong = [jnp.ones((), dtype) for dtype in dtypes.split()]
    weak = [jnp.asarray(x) for x in (3, 0.5, 1j)]
    python = [True, 3, 0.5, 1j, np.bool_(True), np.int8(3), np.float32(0.5)]
    return [strong, weak, python, jnp.array(True), jnp.isfinite(1.0), jnp.zeros((0, 2))]


_GRADIENTS = {
    "value_and_grad": lambda f, w: jax.value_and_grad(f, has_aux=True)(w)[0][1],
    "grad": lambda f, w: jax.grad(f, has_aux=True)(w)[1],
    "vjp": lambda f, w: jax.vjp(f, w, has_aux=True)[2],
    "ours": lambda f, w: tagging.value_and_grad(f, has_aux=True)(w)[0][1],
    "jitted": lambda f, w: jax.value_and_grad(jax.jit(f), has_aux=True)(w)[0][1],
    "module": lambda f, w: nnx.value_and_grad(
        lambda m: f(m[...]), has_aux=True, graph_updates=False
    )(nnx.Param(w))[0][1],
}


@pytest.mark.parametrize("form", _GRADIENTS)
def test_constants_come_back_as_what_jax_makes_of_them(form):
    def step(w):
        aux = _GRADIENTS[form](lambda w: (jnp.sum(w**2), _constants()), w)
        found.append([(type(x), jax.typeof(x)) for x in jax.tree.leaves(aux)])
        return ~aux[3], aux[3] + aux[3], aux[0][1] + aux[0][1].astype(jnp.float16)

    found = []
    with tagging.tag_gradients() as session:
        got = jax.jit(step)(jnp.ones(2))
    want = jax.jit(step)(jnp.ones(2))
    assert session.equations > 0
    tagged, plain = found
    assert tagged == plain
    assert [x.dtype for x in got] == [x.dtype for x in want]
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_several_gradients_get_different_tags(inputs):
    params, x = inputs

    def step(params, x):
        first = jax.grad(_loss)(params, x)
        return jax.grad(_loss)(optax.tree.sub(params, first), x)

    _, session = _stacks(step, params, x)
    _, once = _stacks(jax.grad(_loss), params, x)
    assert session.equations == 2 * once.equations
    assert session.functions == 2
