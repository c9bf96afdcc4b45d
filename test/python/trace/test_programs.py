"""Training steps of other projects' own code give what they give with `jax.jit`.

They ask for more packages than the tests of this one; docs/examples.md says how to install them.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import alpa_mlir
import jax
import numpy as np
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel
from alpa_mlir.errors import MicroBatchError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CLUSTER = alpa_mlir.Cluster.nominal("hosts", "cpu", (4, 4), 1 << 30)
METHODS = [
    AutoParallel(num_micro_batches=1, pipeline="intra-only"),
    AutoParallel(num_micro_batches=4, pipeline="intra-only"),
    PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=1),
    PipeshardParallel(submeshes=[(1, 4), (1, 4)], num_micro_batches=4),
]
VOCAB, LENGTH, ROWS = 256, 32, 16
SMALL = {
    "override_model_config": True,
    "base_emb_dim": 64,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 4,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_target_length": LENGTH,
    "dtype": "float32",
    "weight_dtype": "float32",
    "hardware": "cpu",
    "attention": "dot_product",
    "learning_rate": 1e-2,
    "warmup_steps_fraction": 0.0,
    # With less, Adam makes full steps of the rounding of gradients that are nearly zero.
    "adam_eps": 1e-3,
}
DEEPSEEK = {
    "base_num_kv_heads": 4,
    "base_moe_mlp_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


@pytest.fixture
def maxtext(monkeypatch, tmp_path):
    pytest.importorskip("maxtext", reason="MaxText is not installed: see docs/examples.md")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)  # MaxText makes a folder for its logs.
    return importlib.import_module("plan_maxtext").program


def tokens(rows=ROWS):
    """A batch as MaxText's loaders make it; some rows are shorter than others."""
    rng = np.random.default_rng(0)
    text = rng.integers(1, VOCAB, (rows, LENGTH + 1)).astype(np.int32)
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (rows, LENGTH))
    used = (places < rng.integers(LENGTH // 2, LENGTH + 1, (rows, 1))).astype(np.int32)
    return {
        "inputs": text[:, :-1],
        "inputs_position": places,
        "inputs_segmentation": used,
        "targets": text[:, 1:],
        "targets_position": places,
        "targets_segmentation": used,
    }


def train(step, state, rows, steps=3):
    losses = []
    for _ in range(steps):
        state, metrics = step(state, tokens(rows))
        losses.append(float(metrics["scalar"]["learning/loss"]))
    return state, losses


def data(leaf):
    keys = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if keys else leaf)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of MaxText and of what it imports.
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama3.1-8b", {}),
        ("llama3.1-8b", {"gradient_accumulation_steps": 4}),
        ("gemma-2b", {"remat_policy": "minimal"}),
        (
            "mixtral-8x7b",
            {"sparse_matmul": False, "base_moe_mlp_dim": 128, "load_balance_loss_weight": 0.01},
        ),
        ("mixtral-8x7b", {"megablox": False, "base_moe_mlp_dim": 128}),
        ("mixtral-8x7b", {"megablox": True, "base_moe_mlp_dim": 128}),
        ("deepseek2-16b", {"sparse_matmul": False, **DEEPSEEK}),
        ("deepseek2-16b", {"megablox": False, "remat_policy": "minimal_flash", **DEEPSEEK}),
    ],
)
def test_maxtext(maxtext, model, settings, axis):
    """MaxText's `train_step` with its models, stacks along either dimension."""
    everything = {**SMALL, "model_name": model, "param_scan_axis": axis, **settings}
    made = maxtext(everything, ROWS)
    rows = ROWS * settings.get("gradient_accumulation_steps", 1)
    assert {leaf.shape for leaf in made.shapes[1].values()} == {(rows, LENGTH)}
    with made.context():
        state = jax.jit(made.init)()
        wanted, losses = train(jax.jit(made.step), state, rows)
        assert losses[-1] < losses[0] - 1e-3
        for number, method in enumerate(METHODS):
            parallel = alpa_mlir.parallelize(made.step, cluster=CLUSTER, method=method)
            if settings.get("megablox") and number % 2:  # Sorts all tokens for its kernels.
                with pytest.raises(MicroBatchError, match=r"`stablehlo.sort` needs all examples"):
                    parallel.plan(*made.shapes)
                continue
            found, same = train(parallel, state, rows)
            np.testing.assert_allclose(same, losses, rtol=1e-5)
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
            for a, b in pairs:
                np.testing.assert_allclose(data(a), data(b), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of Levanter and of what it imports.
def test_levanter(monkeypatch, tmp_path):
    """The step of Levanter's `Trainer` with its Llama."""
    pytest.importorskip("levanter", reason="Levanter is not installed: see docs/examples.md")
    if not hasattr(jax.core, "is_constant_dim"):
        pytest.skip("Levanter's array library asks for a JAX before 0.12")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    sizes = {
        "seq_len": LENGTH,
        "hidden_dim": 64,
        "intermediate_dim": 128,
        "num_layers": 4,
        "num_heads": 4,
        "num_kv_heads": 2,
    }
    adam = {"learning_rate": 1e-2, "warmup": 0.0, "epsilon": 1e-3}
    made = importlib.import_module("plan_levanter").program(sizes, VOCAB, ROWS, "f32", adam)
    mask = np.ones((ROWS, LENGTH), np.int32)
    mask[::2, LENGTH // 2 :] = 0
    mask[:, -1] = 0
    batch = {"tokens": tokens()["inputs"], "loss_mask": mask}

    def run(step, state):
        losses = []
        for _ in range(3):
            state, loss = step(state, batch)
            losses.append(float(loss))
        return state, losses

    with made.trainer:
        state = jax.jit(made.init)()
        wanted, losses = run(jax.jit(made.step), state)
        assert losses[-1] < losses[0] - 1e-3
        for method in METHODS:
            parallel = alpa_mlir.parallelize(made.step, cluster=CLUSTER, method=method)
            found, same = run(parallel, state)
            np.testing.assert_allclose(same, losses, rtol=1e-5)
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
            for a, b in pairs:
                np.testing.assert_allclose(data(a), data(b), rtol=1e-5, atol=1e-5)
