"""The models of the paper: sizes, FLOPs, scanned layers; and how figures are compared."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from paper.layers import Block, Decoder, WideResNet
from paper.models import CASES, GPT_SIZES, decoder_model, make_case
from paper.results import compare, compare_column, order, published
from planning_job import split_passes

UNITS = {"m": 1e6, "b": 1e9}


@pytest.mark.parametrize("name", CASES)
def test_sizes(name):
    model = make_case(name)
    size = name.rpartition("-")[2]
    # Names leave out the logits' weights of small models.
    assert 0.9 < model.parameters / (float(size[:-1]) * UNITS[size[-1]]) < 1.2
    assert all(model.batch_size % count == 0 for count in model.micro_batches)


@pytest.mark.parametrize("size", GPT_SIZES)
def test_gpt_flops(size):
    hidden, layers, *_ = GPT_SIZES[size]
    batch, seq, vocab = 1024, 1024, 51200
    formula = 96 * batch * seq * layers * hidden**2
    formula *= 1 + seq / (6 * hidden) + vocab / (16 * layers * hidden)
    assert make_case(f"gpt-{size}").flops == pytest.approx(formula)


def test_unknown_case():
    with pytest.raises(ValueError, match="unknown case 'gpt-1b'; use one of gpt-350m"):
        make_case("gpt-1b")
    with pytest.raises(ValueError, match="wresnet-1b has neither scanned layers"):
        make_case("wresnet-1b", scan=True)


@pytest.mark.parametrize("remat", [False, True])
def test_wide_resnet_flops(remat):
    net = WideResNet((3, 4, 6, 3), 8, 2, remat)
    weights, stats = net.weights()
    batch = {
        "image": jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32),
        "label": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    forward = jax.jit(net.loss).lower(weights, stats, batch).cost_analysis()["flops"]
    # XLA also counts what is done element by element.
    assert 0.85 < net.flops(2) / (4 if remat else 3) / forward < 1.01


def random_like(tree, key):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    made = [
        (0.1 * jax.random.normal(k, leaf.shape)).astype(leaf.dtype)
        for k, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, made)


@pytest.mark.sample(1)
@pytest.mark.parametrize("experts", [0, 4])
def test_scan_is_the_same_model(experts):
    blocks = (Block(16, 2, 32),) + ((Block(16, 2, 32, experts, group=16),) if experts else ())
    tokens = jax.random.randint(jax.random.PRNGKey(1), (4, 8), 0, 32)
    batch = {"tokens": tokens, "targets": tokens}
    losses = {}
    for scan in (False, True):
        model = decoder_model("tiny", Decoder(blocks, 3, 8, 32, scan=scan), 4)
        if not scan:
            master = random_like(model.state["master"], jax.random.PRNGKey(0))
        else:
            layers = master.pop("layers")
            master["stacked"] = jax.tree.map(lambda *parts: jnp.stack(parts), *layers)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model.state["slots"])
        state = {
            "params": jax.tree.map(lambda leaf: leaf.astype(jnp.float16), master),
            "master": master,
            "slots": zeros,
            "step": jnp.zeros(()),
        }
        step = jax.jit(model.step)
        losses[scan] = []
        for _ in range(3):
            state, metrics = step(state, batch)
            losses[scan].append(float(metrics["loss"]))
    assert losses[True] == pytest.approx(losses[False], rel=2e-3)
    assert losses[False][2] < losses[False][0]


def test_published():
    paper = published("fig7")
    assert paper.models() == ["gpt", "moe", "wresnet"]
    assert paper.gpus("gpt") == [1, 4, 8, 16, 32, 64]
    assert paper.values["moe", 64]["deepspeed"] == "OOM"
    assert paper.values["gpt", 8]["alpa"] == 61.61
    assert ("gpt", 64, "intra-op only") in paper.extrapolated


def test_order():
    assert order(100.0, 97.5) == 0
    assert order(100.0, 96.0) == 1
    assert order("OOM", 0.5) == -1
    assert order("OOM", "OOM") == 0


def test_compare_column():
    ours = {"a": 10.0, "b": 8.0, "c": "OOM", "d": 8.1}
    theirs = {"a": 9.0, "b": 10.0, "c": "OOM", "d": 5.0, "e": 1.0}
    found = compare_column(ours, theirs)
    assert found == {"pairs": 6, "reversed": [["a", "b"]], "tied_in_one": 1}


def test_compare():
    paper = published("fig9")
    cells = [
        {"model": "gpt", "gpus": 8, "system": "dp", "value": 50.0},
        {"model": "gpt", "gpus": 8, "system": "equal layer", "value": 50.1},
        {"model": "gpt", "gpus": 8, "system": "equal operator", "value": "OOM"},
    ]
    found = compare(cells, paper, ("dp",))
    assert found["memory"]["agree"] == 2
    assert [item["system"] for item in found["memory"]["differ"]] == ["equal operator"]
    assert [item["system"] for item in found["behind"]] == ["equal layer"]


def test_split_passes():
    passes = split_passes("alpa-import{keep=a,b},alpa-cluster-layers,alpa-search-stages{x=1x2,1x2}")
    assert passes[0] == "alpa-import{keep=a,b}"
    assert passes[1:] == ["alpa-cluster-layers", "alpa-search-stages{x=1x2,1x2}"]
