"""Layers of models follow the blocks that the models repeat: interior ones do the same work."""

from __future__ import annotations

import re
from collections import Counter

import jax
import pytest
import zoo
from alpa_mlir.compiler import Module
from alpa_mlir.trace.tracing import trace

OP = re.compile(r'stablehlo\.(\w+).*alpa\.layer = (\d+) : i64, alpa\.phase = "(\w+)"')


def layers_of(model, options) -> list[Counter]:
    """Ops of each layer by name and phase."""
    state, batch = jax.eval_shape(model.init)
    traced = trace(model.step, state, batch)
    module = Module(traced.text).annotate(traced.signature.to_json())
    module.run(f"alpa-import,alpa-split-batch{{micro-batches=2}},alpa-cluster-layers{{{options}}}")
    found: dict[int, Counter] = {}
    for name, layer, phase in OP.findall(module.as_text()):
        found.setdefault(int(layer), Counter())[name, phase] += 1
    return [found[layer] for layer in sorted(found)]


@pytest.mark.parametrize("remat", [False, True])
def test_a_layer_for_each_block(remat):
    model = zoo.make_gpt(zoo.GPTConfig(layers=12, remat=remat))
    layers = layers_of(model, "max-layers=64")
    assert len(layers) in (12, 13)  # The output projection may be one of its own.
    assert all(layer == layers[1] for layer in layers[2:11])


@pytest.mark.parametrize(("options", "blocks"), [("max-layers=8", 2), ("layers=4", 3)])
def test_equally_many_blocks_in_each(options, blocks):
    model = zoo.make_gpt(zoo.GPTConfig(layers=12))
    single = layers_of(model, "max-layers=64")[1]
    layers = layers_of(model, options)
    dots = {(phase): single["dot_general", phase] for phase in ("forward", "backward")}
    for layer in layers[1 : 12 // blocks - 1]:
        assert layer == layers[1]
        for phase, count in dots.items():
            assert layer["dot_general", phase] == blocks * count


def test_fewer_blocks_than_enough_are_cut_into_parts():
    model = zoo.make_gpt(zoo.GPTConfig(layers=3))
    layers = layers_of(model, "max-layers=8")
    assert 6 <= len(layers) <= 8
    assert any(layers[i] == layers[i + 2] for i in range(1, len(layers) - 2))
