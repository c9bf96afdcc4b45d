"""What an 8B model's plan does with its tokens, from 4k to 1M of them: predicted, on H100s.

    python benchmark/long_context.py                     # all rows
    python benchmark/long_context.py --tokens 262144 --devices 8
    python benchmark/long_context.py --tokens 131072 --devices 64 --packed 64
    python benchmark/long_context.py --tokens 131072 --devices 64 --window 4096

A batch holds `--batch-tokens` tokens, at least one sequence. `keys round` says that keys and
values go round the devices, or to those whose windows hold them, `keys gathered` (of how many of
the calls) that all devices that share tokens get them at once. `--packed` sequences of any
lengths lie in each example; what their masks spare is not counted. Run it where fewer devices are
than it plans for: a process with as many has its steps lowered for them, and CPUs have no fused
attention.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import alpa_mlir
from alpa_mlir import AlpaError, AutoParallel, Plan
from alpa_runtime.plan.strategy import strategy_text
from published_models import Transformer


def llama_8b(tokens: int, layers: int, window: int, packed: int) -> Transformer:
    return Transformer(
        family="llama",
        hidden=4096,
        layers=layers,
        heads=32,
        kv_heads=8,
        ffn=14336,
        vocab=128256,
        seq=tokens,
        dtype="bfloat16",
        remat="none",
        fused_attention=True,
        window=window,
        packed=packed,
    )


def way_of_keys(plan: Plan) -> str:
    calls: list[str] = []
    for stage in range(len(plan.stages)):
        explanation: Mapping[str, Any] = plan.explanation(stage) or {"ops": []}
        calls += [op["specs"] for op in explanation["ops"] if "fmha" in op.get("target", "")]
    gathered = sum(specs.endswith("keys gathered") for specs in calls)
    if gathered:
        return f", keys gathered ({gathered} of {len(calls)})"
    shared = any("collective_permute" in text for text in plan.modules.values())
    return ", keys round" if shared else ""


def row(tokens: int, devices: int, options: argparse.Namespace) -> str:
    model = llama_8b(tokens, options.layers, options.window, options.packed)
    rows = max(1, options.batch_tokens // tokens)
    step, state, batch = model.training_step(rows)
    method = AutoParallel(num_micro_batches=1, remat=options.remat, pipeline="intra-only")
    start = time.perf_counter()
    words = f"{tokens:>8} {devices:>4} {rows:>5}"
    try:
        cluster = f"dgx-h100:{devices // 8}"
        planned = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
        plan = planned.plan(state, batch).plan
    except AlpaError as error:
        return f"{words}  {str(error)[:150]}"
    seconds = plan.predicted["step_seconds"]
    peak = max(stage.predicted["peak_bytes"] for stage in plan.stages)
    rate = rows * tokens / seconds / devices
    return (
        f"{words} {seconds:>9.3f} s {rate:>8.0f} tokens/s a device {peak / 2**30:>6.1f} GiB  "
        f"{strategy_text(plan)}{way_of_keys(plan)}"
        f"  (planned in {time.perf_counter() - start:.1f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2**n for n in range(12, 21)])
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--batch-tokens", type=int, default=2**19)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--packed", type=int, default=1)
    parser.add_argument("--remat", default="all", choices=["none", "all", "auto"])
    options = parser.parse_args()
    for devices in options.devices:
        for tokens in options.tokens:
            print(row(tokens, devices, options), flush=True)


if __name__ == "__main__":
    main()
