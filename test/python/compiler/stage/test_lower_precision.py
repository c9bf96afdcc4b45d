"""A module of lower precision, from which plans are estimated, has narrow numbers only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.errors import PrecisionError
from alpa_mlir.trace.tracing import trace


def imported(step, state, batch) -> Module:
    traced = trace(step, state, batch)
    module = Module(traced.text)
    return module.annotate(traced.signature.to_json()).run("alpa-import")


def regression(w, x):
    return w - jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@pytest.mark.parametrize("name", ["gpt", "dropout", "wide_resnet", "moe", "lstm"])
@pytest.mark.parametrize("before", ["", "alpa-split-batch{micro-batches=2},"])
def test_lower_precision(name, before):
    model = zoo.get(name)
    state, batch = jax.eval_shape(lambda: model.init(24))
    split = "" if name == "wide_resnet" else before  # Its statistics are of the whole batch.
    module = imported(model.step, state, batch)
    module.run(f"{split}alpa-lower-precision{{dtype=bfloat16}}")
    text = module.as_text()
    assert "f32" not in text.split("module", 1)[1].replace("dense<", "")
    assert "bf16" in text
    Module(text).run("alpa-cluster-layers")


def test_no_complex_numbers_in_lower_precision():
    model = zoo.get("fft")
    state, batch = jax.eval_shape(lambda: model.init(24))
    with pytest.raises(PrecisionError, match="complex numbers have no form in bfloat16"):
        imported(model.step, state, batch).run("alpa-lower-precision{dtype=bfloat16}")


def test_bad_options():
    message = "dtype must be bfloat16 or float16, got 'int8'"
    with pytest.raises(PrecisionError, match=message):
        imported(regression, jnp.ones((8, 8)), jnp.ones((24, 8))).run(
            "alpa-lower-precision{dtype=int8}"
        )
