"""Which results are the next values of which state arguments."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir.errors import TraceError
from alpa_mlir.trace.tracing import trace
from hypothesis import given, settings

_PARAMS = {"w": jnp.ones((4, 3)), "b": jnp.zeros(3)}
_BATCH = jnp.ones((8, 4))


def _loss(params, batch):
    return jnp.mean((batch @ params["w"] + params["b"]) ** 2)


def _grads(params, batch):
    return jax.value_and_grad(_loss)(params, batch)


def _descend(params, grads, rate=0.1):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def _carried(step, *args, **options):
    signature = trace(step, *args, **options).signature
    return {
        i.name: signature.outputs[i.carried_by].name
        for i in signature.inputs
        if i.carried_by is not None
    }


def test_order_of_results_does_not_matter_for_trees():
    moments = {"m": _PARAMS, "count": jnp.int32(0)}

    def step(params, moments, batch):
        loss, grads = _grads(params, batch)
        moments = {"m": _descend(moments["m"], grads), "count": moments["count"] + 1}
        return loss, moments, _descend(params, moments["m"])

    carried = _carried(step, _PARAMS, moments, _BATCH)
    assert carried == {
        "params['b']": "result[2]['b']",
        "params['w']": "result[2]['w']",
        "moments['count']": "result[1]['count']",
        "moments['m']['b']": "result[1]['m']['b']",
        "moments['m']['w']": "result[1]['m']['w']",
    }


def test_gradients_are_no_state():
    assert _carried(jax.value_and_grad(_loss), _PARAMS, _BATCH) == {}
    assert _carried(jax.jit(jax.value_and_grad(_loss)), _PARAMS, _BATCH) == {}

    def step(params, batch):
        loss, grads = _grads(params, batch)
        return loss, grads, _descend(params, grads)

    assert set(_carried(step, _PARAMS, _BATCH).values()) == {"result[2]['b']", "result[2]['w']"}


def test_loss_is_no_learning_rate():
    def step(params, rate, batch):
        loss, grads = _grads(params, batch)
        return _descend(params, grads, rate), loss

    assert set(_carried(step, _PARAMS, jnp.float32(0.1), _BATCH)) == {"params['b']", "params['w']"}


def test_single_arrays_in_order():
    def loss(w, b, batch):
        return jnp.mean((batch @ w + b) ** 2)

    def step(w, b, batch):
        value, (gw, gb) = jax.value_and_grad(loss, (0, 1))(w, b, batch)
        return value, w - gw, b - gb

    args = (jnp.ones(4), jnp.float32(0), _BATCH)
    assert _carried(step, *args) == {"w": "result[1]", "b": "result[2]"}


def test_many_single_arrays():
    def step(*args):
        *weights, batch = args
        loss = lambda ws: jnp.mean(sum(batch * w for w in ws) ** 2)  # noqa: E731
        value, grads = jax.value_and_grad(loss)(weights)
        return [w - g for w, g in zip(weights, grads, strict=True)], value

    def flat(*args):
        weights, value = step(*args)
        return (*weights, value)

    weights = [jnp.full(4, float(i)) for i in range(40)]
    assert _carried(flat, *weights, _BATCH) == {f"args[{i}]": f"result[{i}]" for i in range(40)}
    # As one list among the results, the arrays are still found in order.
    assert _carried(step, *weights, _BATCH)["args[7]"] == "result[0][7]"


def test_equal_trees_by_position_else_ambiguous():
    def average(params, mean, batch):
        loss, grads = _grads(params, batch)
        new = _descend(params, grads)
        return new, jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, mean, new), loss

    carried = _carried(average, _PARAMS, _PARAMS, _BATCH)
    assert carried["params['w']"] == "result[0]['w']"
    assert carried["mean['w']"] == "result[1]['w']"

    def two(params, batch):
        loss, grads = _grads(params, batch)
        return loss, _descend(params, grads), _descend(params, grads, 0.2)

    with pytest.raises(
        TraceError, match=r"params: several .* result\[1\], result\[2\]; .*place of its argument"
    ):
        _carried(two, _PARAMS, _BATCH)
    assert _carried(two, _PARAMS, _BATCH, carried={0: 2})["params['w']"] == "result[2]['w']"
    assert _carried(two, _PARAMS, _BATCH, carried={0: None}) == {}

    def in_place(params, batch):
        loss, first, second = two(params, batch)
        return first, loss, second

    assert _carried(in_place, _PARAMS, _BATCH)["params['w']"] == "result[0]['w']"


def test_one_result_for_two_arguments_is_ambiguous():
    def step(w, x, y):
        return w - jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)

    args = [jnp.ones((8, 8))] * 3
    with pytest.raises(TraceError, match=r"result: one .* of w or of x; .*batch_argnums"):
        _carried(step, *args)
    assert _carried(step, *args, carried={0: 0}) == {"w": "result"}
    assert _carried(step, *args, batch_argnums=(1, 2)) == {"w": "result"}

    def first_of_two(w, x, y):
        return step(w, x, y), jnp.float32(1)

    assert _carried(first_of_two, *args) == {"w": "result[0]"}


_LAYERS = {"w0": jnp.ones((4, 4)), "w1": jnp.ones((4, 4)), "scale": jnp.ones((8, 4))}
_ROWS, _OTHERS = jnp.ones((8, 4)), jnp.zeros((8, 4))


def _predicted(params, x):
    return jnp.tanh(jnp.tanh(x @ params["w0"]) @ params["w1"])


def _trained(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((_predicted(p, x) - y) ** 2))(params)
    return _descend(params, grads), loss


def _normalized(x):
    return (x - x.mean(0)) / (x.std(0) + 1)


# Results of inputs x, targets y, the parameters and the new ones.
_OF_EXAMPLES = {
    "prediction": lambda p, n, x, y: _predicted(p, x),
    "prediction after the update": lambda p, n, x, y: _predicted(n, x),
    "both": lambda p, n, x, y: {"before": _predicted(p, x), "after": _predicted(n, x)},
    "of inputs and of targets": lambda p, n, x, y: (_predicted(p, x), _predicted(p, y)),
    "reconstruction with noise": lambda p, n, x, y: _predicted(p, x + y),
    "filled in by a mask": lambda p, n, x, y: jnp.where(y > 0, x, _predicted(p, x)),
    "normalized": lambda p, n, x, y: _normalized(x),
    "denoised": lambda p, n, x, y: x - _predicted(p, x),
    "denoised after the update": lambda p, n, x, y: x - _predicted(n, x),
}


@pytest.mark.parametrize("kind", _OF_EXAMPLES)
def test_what_is_made_of_inputs_is_no_state(kind):
    """Inputs before targets that a result has the shape of."""

    def step(params, x, y):
        new, loss = _trained(params, x, y)
        return new, loss, _OF_EXAMPLES[kind](params, new, x, y)

    signature = trace(step, _LAYERS, _ROWS, _OTHERS).signature
    assert [i.name for i in signature.inputs if i.kind == "batch"] == ["x", "y"]


def test_prediction_in_the_place_of_inputs():
    def step(params, x, y):
        new, loss = _trained(params, x, y)
        return new, _predicted(params, x), loss

    signature = trace(step, _LAYERS, _ROWS, _OTHERS).signature
    assert [i.name for i in signature.inputs if i.kind == "batch"] == ["x", "y"]


# Next values of an array h with as many rows as the batch y.
_NEXT_IN_PLACE = {
    "average": lambda p, n, h, y: 0.9 * h + 0.1 * p["scale"],
    "recurrent": lambda p, n, h, y: jnp.tanh(h @ p["w0"] + y),
    "cache": lambda p, n, h, y: jax.lax.dynamic_update_slice(h, y[:, :1] @ p["w0"][:1, :1], (0, 1)),
    "residual": lambda p, n, h, y: h + _predicted(p, h),
}
_NEXT_ANYWHERE = {
    "average of new": lambda p, n, h, y: 0.9 * h + 0.1 * n["scale"],
    "average": _NEXT_IN_PLACE["average"],
}


@pytest.mark.parametrize("kind", [*_NEXT_IN_PLACE, *_NEXT_ANYWHERE])
def test_next_values_with_rows_are_state(kind):
    def step(params, h, y):
        new, loss = _trained(params, h + y, y)
        after = {**_NEXT_IN_PLACE, **_NEXT_ANYWHERE}[kind](params, new, h, y)
        return (new, loss, after) if kind in _NEXT_ANYWHERE else (new, after, loss)

    assert "h" in _carried(step, _LAYERS, _ROWS, _OTHERS)


def test_weights_with_rows_that_come_behind_the_loss_are_state():
    def step(params, w, y):
        def loss(params, w):
            return jnp.mean((_predicted(params, y) * w) ** 2)

        value, (grads, of_w) = jax.value_and_grad(loss, (0, 1))(params, w)
        return value, _descend(params, grads), w - 0.1 * of_w

    assert _carried(step, _LAYERS, _ROWS, _OTHERS)["w"] == "result[2]"


@pytest.mark.parametrize("returned_first", [False, True])
def test_weights_with_as_many_rows_behind_the_batch(returned_first):
    """A single array that the step changes by a gradient is no batch, though it is the last."""

    def step(x, w):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        new = w - 0.1 * grad
        return (new, loss) if returned_first else (loss, new)

    signature = trace(step, jnp.ones((4, 4)), jnp.ones((4, 4))).signature
    assert [i.kind for i in signature.inputs] == ["batch", "state"]


def test_of_numbers_of_rows_the_largest_array_decides():
    """An array beside the examples does not say how many there are, though its key comes first."""

    def step(params, batch):
        loss, grads = _grads(params, batch["x"])
        return _descend(params, grads), loss + jnp.sum(batch["flags"])

    signature = trace(step, _PARAMS, {"flags": jnp.ones(3), "x": _BATCH}).signature
    assert [i.name for i in signature.inputs if i.kind == "batch"] == ["batch['x']"]


def test_state_returned_in_pieces():
    def step(state, batch):
        params, count = state["params"], state["count"]
        loss, grads = _grads(params, batch)
        return {"params": _descend(params, grads), "count": count + 1, "loss": loss}

    state = {"params": _PARAMS, "count": jnp.int32(0)}
    carried = _carried(step, state, _BATCH)
    assert carried["state['count']"] == "result['count']"
    assert len(carried) == 3


def test_state_that_changes_its_form():
    def step(params, batch):
        loss, grads = _grads(params, batch)
        new = _descend(params, grads)
        return {**new, "b": new["b"].astype(jnp.bfloat16)}, loss

    with pytest.raises(TraceError, match=r"params\['b'\]: .* float32\[3\] .* bfloat16\[3\]"):
        _carried(step, _PARAMS, _BATCH)


def test_state_that_passes_through_and_whole_result():
    assert _carried(lambda p, batch: p, _PARAMS, _BATCH) == {
        "p['b']": "result['b']",
        "p['w']": "result['w']",
    }
    assert _carried(lambda p, batch: p * batch.sum(), jnp.ones(3), _BATCH) == {"p": "result"}


_LEAVES = st.sampled_from([(), (2,), (3,), (2, 3)]).map(lambda s: jnp.zeros(s))
_TREES = st.recursive(
    _LEAVES | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_TREES, min_size=1, max_size=4), st.integers(0, 2), st.booleans())
def test_states_first_then_metrics(states, metrics, nested):
    """`(s0', s1', .., metrics..)` is always understood, whatever the trees look like."""

    def step(*args):
        *old, batch = args
        total = batch.sum() + sum(jnp.sum(x) for x in jax.tree.leaves(old))
        new = [jax.tree.map(lambda x: x * 2 + total, s) for s in old]
        extra = [total * i for i in range(metrics)]
        return (*new, {"m": extra}) if nested else (*new, *extra)

    signature = trace(step, *states, _BATCH).signature
    for item in signature.inputs:
        if item.kind == "state":
            want = item.name.replace("args", "result", 1)
            assert item.carried_by is not None
            assert signature.outputs[item.carried_by].name == want
