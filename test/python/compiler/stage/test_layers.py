"""Layers of models follow the blocks that the models repeat: interior ones do the same work."""

from __future__ import annotations

import re
from collections import Counter

import alpa_mlir
import jax
import pytest
import zoo
from alpa_mlir import AutoParallel
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
    model = zoo.make_gpt(zoo.GPTConfig(layers=16, remat=remat))
    layers = layers_of(model, "max-layers=64")
    assert len(layers) in (16, 17)  # The output projection may be one of its own.
    assert all(layer == layers[1] for layer in layers[2:15])


@pytest.mark.parametrize(("options", "blocks"), [("max-layers=8", 2), ("layers=4", 4)])
def test_equally_many_blocks_in_each(options, blocks):
    model = zoo.make_gpt(zoo.GPTConfig(layers=16))
    single = layers_of(model, "max-layers=64")[1]
    layers = layers_of(model, options)
    dots = {(phase): single["dot_general", phase] for phase in ("forward", "backward")}
    for layer in layers[1 : 16 // blocks - 1]:
        assert layer == layers[1]
        for phase, count in dots.items():
            assert layer["dot_general", phase] == blocks * count


def test_fewer_blocks_than_enough_are_cut_into_parts():
    model = zoo.make_gpt(zoo.GPTConfig(layers=3))
    layers = layers_of(model, "max-layers=8")
    assert 6 <= len(layers) <= 8
    assert any(layers[i] == layers[i + 2] for i in range(1, len(layers) - 2))


@pytest.mark.parametrize("blocks", [8, 15])
def test_few_blocks_are_cut_into_halves(blocks):
    model = zoo.make_gpt(zoo.GPTConfig(layers=blocks))
    layers = layers_of(model, "max-layers=64")
    assert len(layers) in (2 * blocks, 2 * blocks + 1)
    products = [layer["dot_general", "forward"] for layer in layers]
    assert all(products[i] == products[i + 2] > 0 for i in range(1, 2 * blocks - 3))
    # Not if there may not be so many.
    assert len(layers_of(model, f"max-layers={blocks + 1}")) in (blocks, blocks + 1)


def test_stages_of_few_blocks_are_even_beside_a_large_vocabulary():
    """As even as those that are cut inside blocks by hand."""

    def seconds(**options):
        config = zoo.GPTConfig(layers=8, hidden=2048, heads=16, vocab=32000, seq=1024)
        model = zoo.make_gpt(config)
        method = AutoParallel(num_micro_batches=8, **options)
        parallel = alpa_mlir.parallelize(model.step, cluster="dgx-a100", method=method, cache=False)
        return parallel.plan(*jax.eval_shape(lambda: model.init(64))).predicted_seconds

    assert seconds() <= 1.005 * min(seconds(layers=18), seconds(layers=20))
