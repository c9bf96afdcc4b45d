"""Plan a model of MaxText by its own configuration file, on this machine, for any cluster.

MaxText's code is not touched: the model, the optimizer and `train_step` are those of the package,
built as its `train_compile.py` builds them, for a mesh of one device. State and batch are shapes.

    python examples/plan_maxtext.py llama3.1-8b --cluster dgx-h100:8 --length 8192 --rows 128
    python examples/plan_maxtext.py gemma-7b --cluster gb200-nvl72 --rows 72 --micro-batches 1 2 4
    python examples/plan_maxtext.py llama3.1-8b --set remat_policy=full

MaxText asks for hundreds of packages; docs/examples.md says how to make an environment for it.
"""

# pyright: basic, reportMissingImports=false
# MaxText is not in this project's environment.

from __future__ import annotations

import argparse
import contextlib
import resource
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import numpy as np
from common import run_or_exit

# Its defaults are a TPU's and recompute whole layers.
SETTINGS = {
    "hardware": "gpu",
    "attention": "cudnn_flash_jax",
    "remat_policy": "minimal_flash",
}


@dataclass(frozen=True)
class Program:
    """A train step of MaxText.

    Attributes:
        step: `(state, batch) -> (state, metrics)`, to be called within `context`.
        init: `() -> state`.
        shapes: of the state and of the batch.
        context: MaxText's mesh of one device and its rules for names of axes.
        params: number of weights.
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    init: Callable[[], Any]
    shapes: tuple[Any, dict[str, jax.ShapeDtypeStruct]]
    context: Callable[[], contextlib.AbstractContextManager[None]]
    params: int


def program(settings: dict[str, Any], rows: int) -> Program:
    """The step that MaxText trains with.

    Args:
        settings: over those of its `base.yml`, such as `model_name`.
        rows: sequences of a batch.
    """
    import maxtext
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.common.train_state_nnx import TrainStateNNX
    from maxtext.configs import pyconfig
    from maxtext.optimizers import optimizers
    from maxtext.trainers.pre_train import train
    from maxtext.utils import maxtext_utils, model_creation_utils

    base = Path(next(iter(maxtext.__path__))) / "configs" / "base.yml"
    everything = {
        "run_name": "plan",
        "enable_checkpointing": False,
        "skip_jax_distributed_system": True,
        "log_config": False,
        # Its batch is a multiple of the devices that JAX sees.
        "per_device_batch_size": rows / jax.device_count(),
        **settings,
    }
    config = pyconfig.initialize(
        ["train", str(base), *(f"{name}={value}" for name, value in everything.items())]
    )
    one = np.array(jax.devices()[:1]).reshape([1] * len(config.mesh_axes))
    mesh = jax.sharding.Mesh(one, config.mesh_axes)

    @contextlib.contextmanager
    def context() -> Generator[None]:
        with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
            yield

    create, model = model_creation_utils.create_nnx_abstract_model(config, mesh)
    rate = maxtext_utils.create_learning_rate_schedule(config)
    tx = optimizers.get_optimizer(config, rate, model, mesh=mesh)

    def train_state() -> Any:
        made = create()
        return TrainStateNNX(made, nnx.Optimizer(made, tx, wrt=nnx.Param))

    with context():
        graph, state = nnx.split(nnx.eval_shape(train_state))

    params = nnx.state(nnx.merge(graph, state).model, nnx.Param)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = jax.tree.map(lambda _: whole, params)  # Read where gradients are accumulated.

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return train.train_step(graph, config, None, places, state, dict(batch))

    weights = jax.tree.leaves(params)
    return Program(
        step,
        lambda: nnx.split(train_state())[1],
        (state, maxtext_utils.get_shaped_batch(config)),
        context,
        sum(leaf.size for leaf in weights),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", help="one of MaxText's configs/models, such as llama3.1-8b, gemma-7b")
    add("--cluster", default="dgx-h100:8", help="YAML file or preset (%(default)s)")
    add("--length", type=int, default=8192, help="tokens of a sequence (%(default)s)")
    add("--rows", type=int, default=128, help="sequences of a batch (%(default)s)")
    add("--micro-batches", type=int, nargs="+", help="numbers to try (all that divide the batch)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another setting of MaxText; beside its files: "
        + ", ".join(f"{name}={value}" for name, value in SETTINGS.items()),
    )
    add("--output", type=Path, help="write the plan to this folder")
    run_or_exit(run, parser.parse_args(arguments))


def run(options: argparse.Namespace) -> None:
    cluster = alpa_mlir.Cluster.load(options.cluster)
    settings = {"model_name": options.model, "max_target_length": options.length, **SETTINGS}
    settings |= dict(item.split("=", 1) for item in options.set)
    made = program(settings, options.rows)
    print(f"{made.params / 1e9:.1f} billion parameters on {cluster.num_devices} devices")

    begin = time.perf_counter()
    method = alpa_mlir.AutoParallel(num_micro_batches=options.micro_batches)
    parallel = alpa_mlir.parallelize(made.step, cluster=cluster, method=method, cache=False)
    with made.context():
        planned = parallel.plan(*made.shapes)
    print(planned.as_text())
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"planned in {seconds:.1f} s with at most {peak:.1f} GiB of memory")
    rows = made.shapes[1]["inputs"].shape[0]  # Of all rounds of its gradient accumulation.
    tokens = rows * options.length / planned.predicted_seconds / cluster.num_devices
    print(f"predicted: {tokens:,.0f} tokens/s on each device")
    if options.output:
        print(f"plan written to {planned.save(options.output)}")


if __name__ == "__main__":
    main()
