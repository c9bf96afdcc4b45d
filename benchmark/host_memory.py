"""The largest GPT that fits, with the optimizer's state on devices and in their hosts' memory.

    python benchmark/host_memory.py                        # 8 H100
    python benchmark/host_memory.py --cluster gb200-nvl72 --hidden 12288

A GPT whose layers are `--hidden` wide, in bfloat16 with float32 weights and AdamW, is planned with
all layers computed again, for `--sequences` of 2,048 tokens in `--micro-batches`; its number of
layers is found by halving. Seconds are predictions.
"""

from __future__ import annotations

import argparse
import time

import alpa_mlir
import models
from alpa_mlir import AutoParallel, InfeasiblePlanError
from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import bytes_text, seconds_text


def planned(layers: int, offload: str, options: argparse.Namespace) -> Plan | None:
    """None if it does not fit."""
    model = models.gpt(
        layers,
        hidden=options.hidden,
        heads=options.hidden // 128,
        vocab=51200,
        seq=2048,
        batch_size=options.sequences,
        dtype="bfloat16",
        scan=True,
    )
    method = AutoParallel(
        num_micro_batches=options.micro_batches,
        pipeline="intra-only",
        remat="all",
        offload=offload,
        padding="none",
    )
    parallel = alpa_mlir.parallelize(
        model.step, cluster=options.cluster, method=method, cache=False
    )
    start = time.perf_counter()
    try:
        plan = parallel.plan(model.state, model.batch).plan
    except InfeasiblePlanError:
        plan = None
    text = "does not fit"
    if plan is not None:
        (stage,) = plan.stages
        text = (
            f"{seconds_text(plan.predicted['step_seconds'])} a step, "
            f"{bytes_text(stage.predicted['peak_bytes'])} a device, "
            f"{bytes_text(stage.predicted.get('host_bytes', 0))} on host, "
            f"copies {seconds_text(stage.predicted.get('host_seconds', 0))}"
        )
    billions = model.parameters / 1e9
    took = time.perf_counter() - start
    print(f"{offload:>9} {layers:>4} layers {billions:>6.1f}B: {text}  ({took:.0f} s)", flush=True)
    return plan


def largest(offload: str, options: argparse.Namespace) -> int:
    fits, above = 0, options.first
    while planned(above, offload, options) is not None:
        fits, above = above, 2 * above
    while above - fits > options.resolution:
        middle = (fits + above) // 2
        if planned(middle, offload, options) is None:
            above = middle
        else:
            fits = middle
    return fits


def main() -> None:
    parser = argparse.ArgumentParser(description="The largest GPT that fits.")
    parser.add_argument("--cluster", default="dgx-h100")
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--first", type=int, default=32, help="layers to begin with")
    parser.add_argument("--resolution", type=int, default=2)
    options = parser.parse_args()
    for offload in ("none", "optimizer"):
        print(f"{offload}: {largest(offload, options)} layers fit")


if __name__ == "__main__":
    main()
