"""The demo's GPT on torch.distributed.pipelining: two stages in two processes, gloo, 1F1B.

Started by benchmark/runtime/steps.py with an interpreter that has torch, once for each rank. It
reads numbers of steps from its standard input, and rank 0 writes the seconds that they took.

Run: torch_pipelining.py RANK RENDEZVOUS_FILE CORE SETTINGS_AS_JSON
"""

# pyright: basic, reportMissingImports=false
# torch is not among this project's packages.

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """One rank."""
    rank, core = int(sys.argv[1]), int(sys.argv[3])
    setting = json.loads(sys.argv[4])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    if setting["realtime"]:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    import torch.nn.functional as functional
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    hidden, heads, length = setting["hidden"], 4, setting["length"]

    seen = torch.ones(length, length, dtype=torch.bool).tril()

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            for name in ("query", "key", "value", "out"):
                setattr(self, name, nn.Linear(hidden, hidden, bias=False))
            self.up = nn.Linear(hidden, 4 * hidden, bias=False)
            self.down = nn.Linear(4 * hidden, hidden, bias=False)

        def forward(self, x):
            rows = x.shape[0]
            h = self.norm_1(x)
            q, k, v = (
                layer(h).view(rows, length, heads, hidden // heads).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            scores = q @ k.transpose(2, 3) / (hidden // heads) ** 0.5
            mixed = torch.where(seen, scores, -1e9).softmax(-1) @ v
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, hidden))
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class First(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.embed = nn.Embedding(setting["characters"], hidden)
            self.place = nn.Parameter(torch.randn(length, hidden) * 0.02)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])

        def forward(self, tokens):
            return self.blocks(self.embed(tokens) + self.place)

    class Last(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, setting["characters"], bias=False)

        def forward(self, x):
            return self.head(self.norm(self.blocks(x)))

    half = setting["layers"] // 2
    module = First(half) if rank == 0 else Last(setting["layers"] - half)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))

    def loss_fn(logits, targets):
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    schedule = Schedule1F1B(stage, setting["micro_batches"], loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(0)
    shape = (setting["batch"], length)
    tokens = torch.randint(setting["characters"], shape, generator=generator)
    targets = torch.randint(setting["characters"], shape, generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=[])
        optimizer.step()

    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        dist.barrier()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
