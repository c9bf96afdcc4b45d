"""The examples run, check themselves, and end with one line when input is bad."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import alpa_mlir
import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    command = [sys.executable, str(EXAMPLES / "train_gpt.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def example(monkeypatch, capsys):
    """Imports an example and runs it in this process, which saves starting JAX again.

    Called with the file's name and its options, gives the lines that it prints.
    """
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def call(name: str, *arguments: str) -> list[str]:
        importlib.import_module(name).main(arguments)
        return capsys.readouterr().out.splitlines()

    return call


def numbers(lines: list[str], start: str, pattern: str) -> list[float]:
    """The numbers of the one line that begins so."""
    (line,) = (line for line in lines if line.startswith(start))
    found = re.fullmatch(re.escape(start) + pattern, line)
    assert found is not None, line
    return [float(number) for number in found.groups()]


def difference(lines: list[str]) -> float:
    return numbers(lines, "check: ", r"max relative difference (\S+)")[0]


IMAGES = ("--image", "8", "--rows", "16", "--steps", "10")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "most"),
    [
        # The first steps of Adam are as large for gradients that are hardly more than rounding.
        pytest.param(("--model", "vit", "--depth", "2"), 5e-3, id="vit"),
        pytest.param((), 1e-4, id="wide-resnet"),
    ],
)
def test_classifies_images(example, tmp_path, options, most):
    lines = example("train_images", *IMAGES, *options, "--save-plan", str(tmp_path / "plan"))
    assert difference(lines) < most
    first, last = numbers(lines, "loss: ", r"(\S+) -> (\S+)")
    assert last < first
    assert alpa_mlir.Plan.load(tmp_path / "plan").num_micro_batches == 2


TINY = ("--hidden", "16", "--length", "16", "--rows", "8", "--first-steps", "5", "--steps", "5")


def test_frozen_layers_stay_and_have_no_optimizer_state(example, tmp_path):
    lines = example("finetune_gpt", *TINY, "--layers", "2", "--save-plan", str(tmp_path / "plan"))
    assert difference(lines) < 1e-3
    assert "as before: block_0, embed, place" in lines
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    optimized = {x.name for x in plan.inputs if "opt_state" in x.name and len(x.shape) == 2}
    assert optimized
    assert all("block_1" in name or "head" in name for name in optimized)


@pytest.mark.slow
def test_experts_are_split_as_asked(example, tmp_path):
    sizes = "--layers 2 --hidden 32 --experts 4 --length 16 --rows 8 --steps 10"
    options = ("--shardings", "expert-parallel", "--save-plan", str(tmp_path / "plan"))
    lines = example("train_moe", *sizes.split(), *options)
    assert difference(lines) < 1e-3
    first, last = numbers(lines, "loss: ", r"(\S+) -> (\S+)")
    assert last < first
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    experts = [w for stage in plan.stages for w in stage.weights if "experts_1']['up" in w.name]
    assert experts
    assert all(w.shape[0] == 4 and w.spec[0] and not any(w.spec[1:]) for w in experts)


@pytest.mark.slow
def test_adapters_learn_beside_weights_that_stay(example, tmp_path):
    lines = example("lora_gpt", *TINY, "--layers", "2", "--save-plan", str(tmp_path / "plan"))
    assert difference(lines) < 1e-3
    assert numbers(lines, "merged: ", r"max relative difference (\S+)")[0] < 1e-5
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    carried = {x.name.partition("[")[0] for x in plan.inputs if x.carried_by is not None}
    assert carried == {"state"}
    assert sum(x.name.startswith("base") for x in plan.inputs) > 10


def test_a_llama_trains_and_checks_itself(example, tmp_path):
    options = ("--rows", "8", "--steps", "12", "--micro-batches", "2")
    lines = example("train_llama", *options, "--save-plan", str(tmp_path / "plan"))
    assert difference(lines) < 1e-5
    first, last = numbers(lines, "loss: ", r"(\S+) -> (\S+)")
    assert last < first - 0.5
    assert alpa_mlir.Plan.load(tmp_path / "plan").num_micro_batches == 2


def test_llamas_have_their_sizes(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("train_llama")
    published = {"7b": 6_738_415_616, "8b": 8_030_261_248, "70b": 70_553_706_496}
    for size, expected in published.items():
        _, (state, batch), _ = module.entry(size=size)
        assert sum(leaf.size for leaf in jax.tree.leaves(state[0])) == expected
        assert batch["tokens"].size == 2**22


def hugging_face_logits(weights: dict, config: dict, tokens: np.ndarray) -> np.ndarray:
    """A Llama in NumPy, on arrays by the names and in the layout of a checkpoint."""

    def norm(x, name):
        scale = (np.mean(x**2, -1, keepdims=True) + config["rms_norm_eps"]) ** -0.5
        return x * scale * weights[name]

    def linear(x, name):
        return x @ weights[name].T

    def rotate(x):
        size = x.shape[-1]
        inverse = 1 / config["rope_theta"] ** (np.arange(0, size, 2) / size)
        angles = np.outer(np.arange(x.shape[1]), np.concatenate([inverse, inverse]))[:, None]
        turned = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * np.cos(angles) + turned * np.sin(angles)

    x = weights["model.embed_tokens.weight"][tokens]
    rows, length, hidden = x.shape
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        h = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (
            linear(h, f"{at}.self_attn.{name}_proj.weight").reshape(rows, length, count, -1)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(part, heads // groups, axis=2) for part in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / (hidden // heads) ** 0.5
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bhqk,bkhd->bqhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + linear(mixed.reshape(rows, length, hidden), f"{at}.self_attn.o_proj.weight")
        h = norm(x, f"{at}.post_attention_layernorm.weight")
        gate, up = (linear(h, f"{at}.mlp.{name}_proj.weight") for name in ("gate", "up"))
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{at}.mlp.down_proj.weight")
    return linear(norm(x, "model.norm.weight"), "lm_head.weight")


def test_weights_go_from_a_checkpoint_and_back(example, monkeypatch, tmp_path):
    options = ("--rows", "8", "--micro-batches", "2", "--steps", "3")
    lines = example("finetune_checkpoint", *options, "--output", str(tmp_path / "saved"))
    assert difference(lines) < 1e-5
    module = importlib.import_module("finetune_checkpoint")
    arrays = module.read_safetensors(tmp_path / "saved" / "model.safetensors")
    assert arrays["model.layers.3.mlp.down_proj.weight"].shape == (128, 256)  # [out, in]
    config = module.read_config(tmp_path / "saved", 16)
    weights = module.from_checkpoint(tmp_path / "saved", config)
    module.to_checkpoint(tmp_path / "again", config, weights)
    again = module.read_safetensors(tmp_path / "again" / "model.safetensors")
    assert arrays.keys() == again.keys()
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)

    tokens = np.random.default_rng(0).integers(0, config.vocab, (2, 16))
    model = module.Llama(config, module.nnx.Rngs(1))
    module.nnx.update(model, weights)
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    wide = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    expected = hugging_face_logits(wide, fields, tokens)
    np.testing.assert_allclose(model(tokens), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("field", [{"rope_scaling": {"factor": 8}}, {"model_type": "gemma"}])
def test_checkpoints_of_other_models_are_refused(monkeypatch, tmp_path, field):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("finetune_checkpoint")
    module.write_config(tmp_path, module.SIZES["tiny"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    with pytest.raises(SystemExit, match=f"error: .*{next(iter(field))}"):
        module.read_config(tmp_path, 16)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    """Cells one after another in a process of their own, as plain Python: no magics."""
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert not any(cell.get("outputs") for cell in cells), "clear the outputs"
    for number, text in enumerate(code):
        compile(text, f"{path.name}, code cell {number}", "exec")
    (tmp_path / "cells.py").write_text("\n\n".join(code) + "\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
    process = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    found = re.findall(r"^(.*): (\S+) ms a step, predicted$", process.stdout, re.M)
    seconds = {name: float(number) for name, number in found}
    assert seconds["found"] < seconds["data parallel"]
    losses = re.search(r"loss: (\S+) -> (\S+)$", process.stdout, re.M)
    assert losses is not None
    assert float(losses[2]) < float(losses[1])
    assert "<html" in (tmp_path / "plan.html").read_text()


@pytest.mark.parametrize(
    "name", ["finetune_gpt", "lora_gpt", "train_gpt", "train_images", "train_moe"]
)
def test_entry_points_give_what_can_be_planned(monkeypatch, name):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    step, arguments, batches = importlib.import_module(name).entry(shapes_only=True)
    *_, state, batch = arguments
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))
    forms = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (batch, next(batches))]
    assert forms[0] == forms[1]
    after, _ = jax.eval_shape(step, *arguments)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)


def test_trains_and_checks_itself(tmp_path):
    result = run("--steps", "12", "--layers", "2", "--batch", "16", "--save-plan", str(tmp_path))
    assert result.returncode == 0, result.stderr
    *_, check, loss = result.stdout.strip().splitlines()
    difference = re.fullmatch(r"check: max relative difference (\S+)", check)
    assert difference is not None
    assert float(difference[1]) < 1e-4
    losses = re.fullmatch(r"loss: (\S+) -> (\S+)", loss)
    assert losses is not None
    assert float(losses[2]) < 0.9 * float(losses[1])
    plan = alpa_mlir.Plan.load(tmp_path)
    assert len(plan.stages) > 1 or any(any(w.spec) for s in plan.stages for w in s.weights)
    assert set(plan.as_text().splitlines()) <= set(result.stdout.splitlines())


def test_runs_a_file_that_is_not_from_jax(example, tmp_path):
    options = ("--stages", "2", "--micro-batches", "2", "--save-plan", str(tmp_path / "plan"))
    assert difference(example("run_stablehlo", *options)) < 1e-5
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    assert (len(plan.stages), plan.num_micro_batches) == (2, 2)


def test_plans_opt_without_memory(example, tmp_path):
    sizes = "--layers 4 --hidden 64 --heads 4 --length 32 --vocab 128 --rows 32 --stage-layers 4"
    before = len(jax.live_arrays())
    lines = example(
        "plan_opt_175b",
        *sizes.split(),
        *("--micro-batches", "4", "--cluster", "p3.16xlarge:2", "--output", str(tmp_path / "plan")),
        *("--report", str(tmp_path / "report.html")),
    )
    assert len(jax.live_arrays()) <= before
    assert lines[0] == "0.0 billion parameters on 16 devices"
    numbers(lines, "planned in ", r"(\d+) s with at most (\S+) GiB of memory")
    rate, each = numbers(lines, "rate of the model: ", r"(\S+) TFLOP/s, (\S+) on each device")
    assert 0 <= each <= rate
    assert alpa_mlir.Plan.load(tmp_path / "plan").num_micro_batches == 4
    assert "<html" in (tmp_path / "report.html").read_text()


def test_opt_has_its_size_and_its_step_works(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("plan_opt_175b")
    _, (state, _) = module.entry()
    hidden, layers = 12288, 96  # Weights, biases and norms of a layer; embeddings; the last norm.
    expected = layers * (12 * hidden**2 + 13 * hidden) + (50272 + 2048) * hidden + 2 * hidden
    assert sum(x.size for x in jax.tree.leaves(state["params"])) == expected
    step, (state, batch) = module.entry(layers=2, hidden=16, heads=2, length=8, vocab=32, rows=4)
    assert jax.tree.leaves(jax.eval_shape(step, state, batch)[0]) == jax.tree.leaves(state)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (state, batch))
    _, loss = jax.jit(step)(*zeros)  # All logits are alike.
    assert float(loss) == pytest.approx(np.log(32), rel=1e-3)


SMALL = ("--layers", "2", "--hidden", "32", "--length", "24", "--prompt", "10", "--new", "12")


def test_serves_from_caches_in_stages(example, tmp_path):
    options = ("--rows", "4", "--groups", "2", "--stages", "2", "--train-steps", "20")
    lines = example("serve_gpt", *SMALL, *options, "--save-plan", str(tmp_path / "plan"))
    assert numbers(lines, "check: ", r"(\d+) of (\d+) characters as in plain JAX") == [96, 96]
    plan = alpa_mlir.Plan.load(tmp_path / "plan")
    assert len(plan.stages) == 2
    for i, stage in enumerate(plan.stages):  # Each block's cache is where the block is.
        caches = {w.name for w in stage.weights if w.name.startswith("cache['layers']")}
        assert caches == {f"cache['layers'][{i}]['{part}']" for part in ("key", "value")}


def test_a_cache_is_written_in_place(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    step, (params, cache, _) = importlib.import_module("serve_gpt").entry(layers=1, hidden=16)
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 2)])
    decode = alpa_mlir.parallelize(step, cluster="cpu-test", method=method)
    tokens = np.arange(8, dtype=np.int32)
    cache, tokens = decode(params, cache, tokens)
    places = jax.block_until_ready(jax.tree.map(addresses, cache))
    later, _ = decode(params, cache, tokens)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(cache))
    assert jax.tree.map(addresses, later) == places


def addresses(x: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "nowhere.yaml"], r"error: cluster file 'nowhere.yaml'"),
        (["--cluster", "dgx"], r"error: cluster 'dgx': no such preset"),
        (["--micro-batches", "5"], r"error: batch\['\w+'\]: .*32.*5"),
        (["--micro-batches", "0"], r"error: AutoParallel: 0 micro-batches"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = run(*arguments, "--layers", "1")
    assert result.returncode != 0
    (line,) = result.stderr.strip().splitlines()
    assert re.match(message, line), line
