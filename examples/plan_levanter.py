"""Plan a Llama of Levanter, by Levanter's own trainer, on this machine, for any cluster.

Levanter's code is not touched: the model, the optimizer and the step are those of its `Trainer`,
on a mesh of one device. State and batch are shapes.

    python examples/plan_levanter.py llama3-8b --cluster dgx-h100:8 --length 8192 --rows 128
    python examples/plan_levanter.py llama3-8b --attention vanilla

docs/examples.md says how to make an environment for it.
"""

# pyright: basic, reportMissingImports=false
# Levanter is not in this project's environment.

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import numpy as np
from common import run_or_exit

# Sizes of Llama 2 and 3 (Meta), as keywords of Levanter's LlamaConfig, and the vocabulary.
MODELS = {
    "llama2-7b": ({}, 32000),
    "llama3-8b": ({"intermediate_dim": 14336, "num_kv_heads": 8}, 128256),
    "llama3-70b": (
        {
            "hidden_dim": 8192,
            "intermediate_dim": 28672,
            "num_layers": 80,
            "num_heads": 64,
            "num_kv_heads": 8,
        },
        128256,
    ),
}


@dataclass(frozen=True)
class Program:
    """A train step of Levanter.

    Attributes:
        step: `(state, batch) -> (state, loss)`, to be called within `trainer`.
        init: `() -> state`.
        shapes: of the state and of the batch.
        trainer: Levanter's; a context, which sets its mesh and its names of axes.
        params: number of weights.
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    init: Callable[[], Any]
    shapes: tuple[Any, dict[str, jax.ShapeDtypeStruct]]
    trainer: Any
    params: int


def program(
    sizes: dict[str, Any], vocab: int, rows: int, precision: str, optimizer: dict[str, Any]
) -> Program:
    """The step of Levanter's `Trainer` for a Llama.

    Args:
        sizes: keywords of its `LlamaConfig`, of which `attn_backend` is a word.
        rows: sequences of a batch.
        precision: a policy of jmp, such as `p=f32,c=bf16`.
        optimizer: keywords of its `AdamConfig`.
    """
    import equinox as eqx
    import haliax
    import jmp
    from levanter.layers.attention import AttentionBackend
    from levanter.models.llama import LlamaConfig
    from levanter.models.lm_model import LmExample, compute_next_token_loss
    from levanter.optim import AdamConfig
    from levanter.tracker import NoopConfig
    from levanter.trainer import Trainer, TrainerConfig

    class OneDevice(TrainerConfig):
        @property
        def device_mesh(self) -> jax.sharding.Mesh:
            one = np.array(jax.devices()[:1]).reshape(1, 1, 1)
            return jax.sharding.Mesh(one, ("replica", "data", "model"))

    def loss_fn(model: Any, example: Any, key: Any = None) -> Any:
        # Levanter's mean hands jnp.mean a mask of floats, which newer JAX refuses.
        losses = compute_next_token_loss(model, example, key=key, reduction=None)
        return haliax.sum(losses) / haliax.sum(example.loss_mask)

    attention = AttentionBackend(sizes.get("attn_backend", "default"))
    model = LlamaConfig(**{**sizes, "attn_backend": attention})
    config = OneDevice(
        id="plan",
        tracker=NoopConfig(),
        train_batch_size=rows,
        mp=jmp.get_policy(precision),
        load_checkpoint=False,
    )
    tx = AdamConfig(**optimizer).build(config.num_train_steps)
    trainer = Trainer(config, tx, loss_fn, add_default_hooks=False)

    def train_state() -> Any:
        build = lambda: model.build(haliax.Axis("vocab", vocab), key=jax.random.PRNGKey(1))  # noqa: E731
        return trainer.initial_state(jax.random.PRNGKey(0), model_init=build)

    with trainer:
        whole = eqx.filter_eval_shape(train_state)
    state, static = eqx.partition(whole, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        axes = (config.TrainBatch, model.Pos)
        example = LmExample(
            tokens=haliax.named(batch["tokens"], axes),
            loss_mask=haliax.named(batch["loss_mask"], axes),
        )
        result = trainer._train_step(eqx.combine(state, static), (example,), {}, _no_hooks=True)
        return eqx.filter(result.new_state, eqx.is_array), result.loss

    tokens = jax.ShapeDtypeStruct((rows, model.Pos.size), np.int32)
    return Program(
        step,
        lambda: eqx.filter(train_state(), eqx.is_array),
        (state, {"tokens": tokens, "loss_mask": tokens}),
        trainer,
        sum(leaf.size for leaf in jax.tree.leaves(state.model)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", choices=list(MODELS), help="sizes of the model")
    add("--cluster", default="dgx-h100:8", help="YAML file or preset (%(default)s)")
    add("--length", type=int, default=8192, help="tokens of a sequence (%(default)s)")
    add("--rows", type=int, default=128, help="sequences of a batch (%(default)s)")
    add("--micro-batches", type=int, nargs="+", help="numbers to try (all that divide the batch)")
    add("--attention", default="default", help="Levanter's attn_backend (%(default)s)")
    add("--output", type=Path, help="write the plan to this folder")
    run_or_exit(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    sizes, vocab = MODELS[options.model]
    sizes = {**sizes, "seq_len": options.length, "attn_backend": options.attention}
    made = program(sizes, vocab, options.rows, "p=f32,c=bf16", {})
    print(f"{made.params / 1e9:.1f} billion parameters on {cluster.num_devices} devices")

    begin = time.perf_counter()
    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    parallel = alpa_mlir.parallelize(made.step, cluster=cluster, method=method, cache=False)
    with made.trainer:
        planned = parallel.plan(*made.shapes)
    print(planned.as_text())
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"planned in {seconds:.1f} s with at most {peak:.1f} GiB of memory")
    tokens = options.rows * options.length / planned.predicted_seconds / cluster.num_devices
    print(f"predicted: {tokens:,.0f} tokens/s on each device")
    if options.output:
        print(f"plan written to {planned.save(options.output)}")


if __name__ == "__main__":
    main()
