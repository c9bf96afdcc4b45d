"""A module that is rescaled has the ops and types of one traced at the new size."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.errors import AlpaError, RescaleError, TraceError
from alpa_mlir.trace import trace

BATCH = 24
# What they compute from the batch's size, or hold of it, is no dimension of the batch.
REFUSED = {"kv_cache": "state argument .*cache.* has a dimension of the batch"}
# At 4 examples, as many as it has experts, two constants in its loop (examples x experts and the
# hidden size) are one op, and a zero that is carried unused may have either's dimension.
OTHER_BATCH = {"moe_scan": 66}


def imported(step, state, batch, count) -> Module:
    traced = trace(step, state, batch, num_micro_batches=count)
    module = Module(traced.text)
    return module.annotate(traced.signature.to_json()).run("alpa-import")


def ops_and_types(module: Module) -> list[str]:
    """One line an op, without the values of constants, which may come from the size."""
    text = re.sub(r"dense<[^>]*>", "dense<>", module.as_text(generic=True))
    return [re.sub(r"%[\w#:]+", "%", line).strip() for line in text.splitlines()]


@pytest.mark.parametrize("name", sorted({*zoo.names()} - {*REFUSED}))
@pytest.mark.parametrize(("start", "end"), [(2, 6), (6, 3)])
def test_zoo(name, start, end):
    model = zoo.get(name)
    state, batch = jax.eval_shape(lambda: model.init(OTHER_BATCH.get(name, BATCH)))
    module = imported(model.step, state, batch, start)
    module.run(f"alpa-rescale{{batch={start}/{end}}}")
    assert ops_and_types(module) == ops_and_types(imported(model.step, state, batch, end))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model = zoo.get(name)
    state, batch = jax.eval_shape(lambda: model.init(BATCH))
    with pytest.raises((RescaleError, TraceError), match=REFUSED[name]):
        imported(model.step, state, batch, 1).run("alpa-rescale{batch=1/2}")


def regression(middle):
    """A step around `middle(hidden)`, hidden `[batch, 8]`."""

    def loss(w, x):
        return jnp.mean(middle(x @ w) ** 2)

    def step(w, x):
        return w - jax.grad(loss)(w, x)

    return step


W, X = jnp.ones((8, 8)), jnp.ones((BATCH, 8))


@pytest.mark.parametrize(
    "middle",
    [
        lambda h: h @ h.T,  # the batch in two dimensions
        lambda h: h.reshape(-1, 4, 2).swapaxes(0, 1).reshape(-1, 2) * 2.0,  # the minor part
        lambda h: jax.lax.stop_gradient(jnp.concatenate([h, 2 * h])).sum() * h,
        lambda h: jnp.sort(h, axis=0)[::-1],
        lambda h: h + jnp.arange(h.shape[0])[:, None],
        lambda h: h[jnp.arange(h.shape[0]), jnp.argmax(h, axis=1)],
    ],
)
def test_ways_of_the_batch(middle):
    step = regression(middle)
    module = imported(step, W, X, 2).run("alpa-rescale{batch=2/3}")
    assert ops_and_types(module) == ops_and_types(imported(step, W, X, 3))


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (lambda h: h[jnp.array([1, 3]), :4].sum(0), "picks examples of the batch by number"),
        (lambda h: h[:4], "'stablehlo.slice' takes a part of the batch"),
        (lambda h: jnp.cumsum(h, axis=0), "slides a window along the batch"),
        (lambda h: h.reshape(2, -1, 8).sum(0), "splits the batch"),
        (lambda h: jnp.concatenate([jnp.ones((1, 8)), h]), "something else|part of the batch"),
        (lambda h: jax.lax.map(jnp.sin, h), "takes a part of the batch"),
        (lambda h: jnp.pad(h, ((0, 1), (0, 0))), "'stablehlo.pad' takes a part of the batch"),
    ],
)
def test_what_cannot_be_followed(middle, message):
    with pytest.raises(RescaleError, match=message):
        imported(regression(middle), W, X, 2).run("alpa-rescale{batch=1/2}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("batch=x", "batch must be a factor such as 4 or 1/2, got 'x'"),
        ("batch=1/0", "batch must be a factor"),
        ("batch=1/5", "1/5 of 12 examples is no whole number"),
        ("dtype=int8", "dtype must be bfloat16 or float16, got 'int8'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(RescaleError, match=message):
        imported(regression(jnp.tanh), W, X, 2).run(f"alpa-rescale{{{options}}}")


def test_one_example_cannot_be_told():
    with pytest.raises(RescaleError, match="has 1 examples"):
        imported(regression(jnp.tanh), W, X, BATCH).run("alpa-rescale{batch=2}")


@pytest.mark.parametrize("name", ["gpt", "dropout", "wide_resnet", "moe", "lstm"])
def test_lower_precision(name):
    model = zoo.get(name)
    state, batch = jax.eval_shape(lambda: model.init(BATCH))
    module = imported(model.step, state, batch, 1).run("alpa-rescale{batch=1/2 dtype=bfloat16}")
    text = module.as_text()
    assert "f32" not in text.split("module", 1)[1].replace("dense<", "")
    assert "bf16" in text
    Module(text).run("alpa-cluster-layers")


def test_no_complex_numbers_in_lower_precision():
    model = zoo.get("fft")
    state, batch = jax.eval_shape(lambda: model.init(BATCH))
    with pytest.raises(AlpaError, match="complex numbers have no form in bfloat16"):
        imported(model.step, state, batch, 1).run("alpa-rescale{dtype=bfloat16}")
