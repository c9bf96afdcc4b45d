"""What plans gain from the memory of the devices' hosts, for the optimizer's state and activations.

    python benchmark/host_memory.py                        # the largest GPT on 8 H100
    python benchmark/host_memory.py --cluster gb200-nvl72 --hidden 12288
    python benchmark/host_memory.py --tokens 131072 262144 524288 1048576
    python benchmark/host_memory.py --layers 72 --cluster gb200-nvl72 --hosts 2 --sequences 128

A GPT whose layers are `--hidden` wide, in bfloat16 with float32 weights and AdamW, is planned with
all layers computed again, for `--sequences` of 2,048 tokens in `--micro-batches`; its number of
layers is found by halving, with state on devices and on hosts. With `--layers` it has so many, and
the search chooses what is computed again, or waits on the hosts. With `--tokens` that is done for
Llama-3 8B and batches of `--batch-tokens`, at least one sequence. Run those where fewer devices are
than they plan for. Seconds are predictions.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import alpa_mlir
import models
from alpa_mlir import AutoParallel, InfeasiblePlanError
from alpa_mlir.cluster import Cluster
from alpa_runtime.plan import Plan
from alpa_runtime.plan.text import bytes_text, seconds_text
from long_context import llama_8b


def gpt(layers: int, options: argparse.Namespace) -> tuple[str, tuple[Any, Any, Any]]:
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
    words = f"{layers:>4} layers {model.parameters / 1e9:>6.1f}B"
    return words, (model.step, model.state, model.batch)


def cluster_of(options: argparse.Namespace) -> Cluster:
    cluster = Cluster.load(options.cluster)
    return cluster.with_hosts(0, options.hosts) if options.hosts else cluster


def planned(
    words: str, step: tuple[Any, Any, Any], remat: str, offload: str, options: argparse.Namespace
) -> Plan | None:
    """None if it does not fit; `step` is the function, its state and its batch."""
    function, state, batch = step
    method = AutoParallel(
        num_micro_batches=options.micro_batches,
        pipeline="intra-only",
        remat=remat,
        offload=offload,
        padding="none",
    )
    parallel = alpa_mlir.parallelize(
        function, cluster=cluster_of(options), method=method, cache=False
    )
    start = time.perf_counter()
    try:
        plan = parallel.plan(state, batch).plan
    except InfeasiblePlanError:
        plan = None
    text = "does not fit"
    if plan is not None:
        (stage,) = plan.stages
        seen = stage.predicted
        text = (
            f"{seconds_text(plan.predicted['step_seconds'])} a step in {plan.num_micro_batches} "
            f"micro-batches, {seen['rematerialized_layers']:.0f} layers again, "
            f"{bytes_text(seen['peak_bytes'])} a device, "
            f"{bytes_text(seen.get('host_bytes', 0))} on host, copies "
            f"{seconds_text(seen.get('host_seconds', 0))} and "
            f"{seconds_text(seen.get('hidden_host_seconds', 0))} hidden"
        )
    took = time.perf_counter() - start
    print(f"{offload:>11} {words}: {text}  ({took:.0f} s)", flush=True)
    return plan


def fits(layers: int, offload: str, options: argparse.Namespace) -> bool:
    return planned(*gpt(layers, options), "all", offload, options) is not None


def largest(offload: str, options: argparse.Namespace) -> int:
    known, above = 0, options.first
    while fits(above, offload, options):
        known, above = above, 2 * above
    while above - known > options.resolution:
        middle = (known + above) // 2
        if fits(middle, offload, options):
            known = middle
        else:
            above = middle
    return known


def llama(tokens: int, options: argparse.Namespace) -> tuple[str, tuple[Any, Any, Any]]:
    model = llama_8b(tokens, layers=32, window=0, packed=1)
    step = model.training_step(max(1, options.batch_tokens // tokens))
    return f"{tokens:>8} tokens", step


def main() -> None:
    parser = argparse.ArgumentParser(description="The largest GPT that fits.")
    parser.add_argument("--cluster", default="dgx-h100")
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4])
    parser.add_argument("--first", type=int, default=32, help="layers to begin with")
    parser.add_argument("--resolution", type=int, default=2)
    parser.add_argument("--hosts", type=int, help="of the cluster; by default all")
    parser.add_argument("--layers", type=int, nargs="+", default=[])
    parser.add_argument("--tokens", type=int, nargs="+", default=[])
    parser.add_argument("--batch-tokens", type=int, default=2**19)
    options = parser.parse_args()
    steps = [gpt(layers, options) for layers in options.layers]
    steps += [llama(tokens, options) for tokens in options.tokens]
    for words, step in steps:
        for offload in ("none", "activations", "auto"):
            planned(words, step, "auto", offload, options)
    if steps:
        return
    for offload in ("none", "optimizer"):
        print(f"{offload}: {largest(offload, options)} layers fit")


if __name__ == "__main__":
    main()
