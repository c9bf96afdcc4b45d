"""Train on from a checkpoint in the layout of Hugging Face's Llamas, and write one.

Nothing is downloaded: the example writes a small checkpoint of random weights first, as they are
kept there, `config.json` and `model.safetensors` with names such as
`model.layers.0.self_attn.q_proj.weight` [out, in]. Then it does what one does with a real one:
reads the sizes, plans from shapes, maps names into the flax.nnx model of train_llama.py, trains in
parallel, compares with plain `jax.jit`, and writes the weights back by the same names.

    python examples/finetune_checkpoint.py
    python examples/finetune_checkpoint.py --checkpoint Llama-2-7b-hf --cluster dgx-h100 --plan-only
"""

# pyright: basic
# flax and optax leave most of their types open.

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from common import add_plan_options, run_or_exit, show_plan, train
from flax import nnx
from train_llama import SIZES, Config, Llama, batches, make_functions

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16)}
DTYPES["BF16"] = np.dtype(ml_dtypes.bfloat16)

# Where a weight of the model lies in the checkpoint; kernels are stored as [out, in] there.
TOP = {
    ("embed", "embedding"): "model.embed_tokens.weight",
    ("norm", "scale"): "model.norm.weight",
    ("head", "kernel"): "lm_head.weight",
}
LAYER = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("query", "kernel"): "self_attn.q_proj.weight",
    ("key", "kernel"): "self_attn.k_proj.weight",
    ("value", "kernel"): "self_attn.v_proj.weight",
    ("out", "kernel"): "self_attn.o_proj.weight",
    ("mlp_norm", "scale"): "post_attention_layernorm.weight",
    ("gate", "kernel"): "mlp.gate_proj.weight",
    ("up", "kernel"): "mlp.up_proj.weight",
    ("down", "kernel"): "mlp.down_proj.weight",
}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, mapped: a length, a JSON table of names, and the bytes behind it."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(size))
    data = np.memmap(path, np.uint8, "r", offset=8 + size)
    table.pop("__metadata__", None)
    return {
        name: data[slice(*entry["data_offsets"])]
        .view(DTYPES[entry["dtype"]])
        .reshape(entry["shape"])
        for name, entry in table.items()
    }


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    names = {dtype: name for name, dtype in DTYPES.items()}
    table, at = {}, 0
    for name, array in arrays.items():
        end = at + array.nbytes
        table[name] = {
            "dtype": names[array.dtype],
            "shape": array.shape,
            "data_offsets": [at, end],
        }
        at = end
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


# What the model of train_llama.py does not have; a checkpoint that says otherwise is refused.
EXPECTED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


def read_config(folder: Path, most_tokens: int) -> Config:
    """The sizes in `config.json`; half precision asks for the attention of GPUs, too."""
    found = json.loads((folder / "config.json").read_text())
    for name, value in EXPECTED.items():
        if found.get(name, value) != value:
            sys.exit(f"error: {folder}: {name} {found[name]!r}, the example knows {value!r}")
    half = found.get("torch_dtype", found.get("dtype")) in ("bfloat16", "float16")
    return Config(
        found["num_hidden_layers"],
        found["hidden_size"],
        found["num_attention_heads"],
        found.get("num_key_value_heads", found["num_attention_heads"]),
        found["intermediate_size"],
        found["vocab_size"],
        min(found["max_position_embeddings"], most_tokens),
        "bfloat16" if half else "float32",
        "cudnn" if half else "xla",
        found.get("rope_theta", 1e4),
        found["rms_norm_eps"],
    )


def write_config(folder: Path, config: Config) -> None:
    fields = {
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "intermediate_size": config.inner,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.length,
        "torch_dtype": config.dtype,
        "rope_theta": config.theta,
        "rms_norm_eps": config.epsilon,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))


def from_checkpoint(folder: Path, config: Config) -> dict[str, Any]:
    """The weights as `nnx.to_pure_dict` has them: layers one behind another, kernels [in, out]."""
    stored: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):  # Large models have several.
        stored |= read_safetensors(path)

    def read(name: str, part: str) -> np.ndarray:
        array = stored[name]
        return np.asarray(array.T if part == "kernel" else array, np.float32)

    weights: dict[str, Any] = {"blocks": {}}
    for (module, part), name in TOP.items():
        weights[module] = {part: read(name, part)}
    for (module, part), name in LAYER.items():
        rows = [read(f"model.layers.{i}.{name}", part) for i in range(config.layers)]
        weights["blocks"][module] = {part: np.stack(rows)}
    return weights


def to_checkpoint(folder: Path, config: Config, weights: Mapping[str, Any]) -> None:
    """The inverse of `from_checkpoint`, in one file and float32."""

    def stored(array: Any, part: str) -> np.ndarray:
        array = np.asarray(array, np.float32)
        return array.T if part == "kernel" else array

    arrays = {name: stored(weights[m][part], part) for (m, part), name in TOP.items()}
    for (module, part), name in LAYER.items():
        rows = np.asarray(weights["blocks"][module][part])
        arrays |= {f"model.layers.{i}.{name}": stored(row, part) for i, row in enumerate(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    write_safetensors(folder / "model.safetensors", arrays)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--checkpoint", type=Path, help="a folder with config.json and *.safetensors")
    add("--output", type=Path, help="where to write the trained weights, by the same names")
    add("--length", type=int, default=4096, help="tokens of a sequence, at most (%(default)s)")
    add("--rows", type=int, default=16, help="sequences of a batch (%(default)s)")
    add("--micro-batches", type=int, nargs="+", help="numbers to try (all that divide the batch)")
    add("--steps", type=int, default=20, help="training steps (%(default)s)")
    add_plan_options(parser)
    run_or_exit(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    if options.devices == "virtual" and not options.plan_only:
        alpa_mlir.use_virtual_devices(cluster.num_devices)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.checkpoint or Path(scratch)
        if not options.checkpoint:
            drawn = nnx.state(Llama(SIZES["tiny"], nnx.Rngs(7)), nnx.Param)
            to_checkpoint(folder, SIZES["tiny"], nnx.to_pure_dict(drawn))
        config = read_config(folder, options.length)
        weights = {} if options.plan_only else from_checkpoint(folder, config)

    create_state, step = make_functions(config)
    tokens = jax.ShapeDtypeStruct((options.rows, config.length), jnp.int32)
    shapes = jax.eval_shape(create_state), {"tokens": tokens, "targets": tokens}
    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    planned = alpa_mlir.parallelize(step, cluster=cluster, method=method).plan(*shapes)
    show_plan(planned, options)
    if options.plan_only:
        return

    workers = alpa_mlir.RayWorkers() if options.devices == "ray" else None
    parallel = planned.load(workers=workers, progress=sys.stderr.isatty())
    data = islice(batches(config, options.rows), options.steps)
    state = train(parallel, step, jax.jit(create_state)(weights), data)
    if options.output:
        trained: Any = nnx.to_pure_dict(state)  # Of the model, and of the optimizer.
        to_checkpoint(options.output, config, trained[0])
        print(f"weights written to {options.output}")
    parallel.close()


if __name__ == "__main__":
    main()
