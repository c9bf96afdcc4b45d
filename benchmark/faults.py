"""A run whose workers are killed again and again: does it lose anything?

A small model is trained on two workers, once undisturbed, once with workers that die before random
instructions and while random messages are on their way (of Ray's, at random moments). Its losses
must be those of the undisturbed run, bit for bit, and nothing may be left of it: no process, no
shared memory.

Run: python benchmark/faults.py [--kills 50] [--steps 500] [--hosts processes|ray] [--spanning]
     [--spares 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import jax.numpy
import numpy as np
from alpa_mlir import Cluster, PipeshardParallel, Plan, training
from alpa_runtime.hosts.process import start_ticks
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import Placement

_jax: Any = jax
jnp: Any = jax.numpy
Json = dict[str, Any]

WIDTH, LAYERS, ROWS = 256, 4, 512
LAST = 5  # Steps at the end in which nobody dies: the run might be over before.
PLACEMENTS = {"hosts": Placement(((0, 1), (2, 3))), "spanning": Placement(((0, 2), (1, 3)))}


def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
    """Gradient descent with momentum on a few dense layers."""

    def loss(weights: Any) -> Any:
        x = batch["x"]
        for w in weights:
            x = x + jnp.tanh(x @ w)
        return jnp.mean((x - batch["y"]) ** 2)

    value, gradients = _jax.value_and_grad(loss)(state["w"])
    speed = [0.9 * v + g for v, g in zip(state["v"], gradients, strict=True)]
    weights = [w - 0.05 * v for w, v in zip(state["w"], speed, strict=True)]
    return {"w": weights, "v": speed}, value


def first_state() -> Json:
    """Weights and momentum, the same each time."""
    rng = np.random.default_rng(0)
    weights = [
        (rng.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32) for _ in range(LAYERS)
    ]
    return {"w": weights, "v": [np.zeros_like(w) for w in weights]}


def batch_of(number: int) -> Json:
    """The batch of a step."""
    rng = np.random.default_rng(number + 1)
    return {k: rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for k in ("x", "y")}


def make_plan() -> Plan:
    """Two stages on two hosts of two devices, four micro-batches."""
    cluster = Cluster.from_dict(
        {
            "name": "two-hosts",
            "device_types": {
                "cpu": {
                    "memory_bytes": "4GiB",
                    "memory_bandwidth": 1e10,
                    "peak_flops": {"float32": 2e10},
                }
            },
            "hosts": {"count": 2, "devices": 2, "device_type": "cpu"},
            "links": {
                "intra_host": {"bandwidth": 4e9, "latency": 2e-5},
                "inter_host": {"bandwidth": 1e9, "latency": 1e-4},
            },
        }
    )
    method = PipeshardParallel(submeshes=[(1, 2), (1, 2)], num_micro_batches=4)
    function = alpa_mlir.parallelize(train_step, cluster=cluster, method=method)
    return function.plan(first_state(), batch_of(0)).plan


def choose_kills(count: int, steps: int, seed: int) -> list[Json]:
    """When, who and where."""
    rng = random.Random(seed)
    return [
        {
            "step": step,
            "rank": rng.randrange(2),
            "at": rng.choice(["instruction", "transfer"]),
            "part": rng.random(),
            "delay": rng.random() * 3e-4,
        }
        for step in sorted(rng.sample(range(1, steps - LAST), count))
    ]


class Disturbed:
    """Runs the training, and remembers its processes and times."""

    def __init__(self, given: argparse.Namespace, plan: Plan, folder: Path, kills: list[Json]):
        self.given, self.plan, self.folder = given, plan, folder
        self.kills = {kill["step"]: kill for kill in kills}
        self.pids: dict[int, int | None] = {}  # And when each of them started.
        self.up: list[float] = []  # When workers were up.
        self.deaths: list[float] = []  # Of Ray's workers; others write theirs down.
        self.losses: dict[int, float] = {}
        self.group: Any = None
        folder.mkdir()
        (folder / "kills.json").write_text(json.dumps(kills))
        placement = PLACEMENTS["spanning" if given.spanning else "hosts"]
        limits = Limits(frozen_seconds=20)
        self.workers: Any
        if given.hosts == "ray":
            self.workers = RayWorkers(
                placement=placement, platform="cpu", spares=given.spares, limits=limits
            )
        else:
            program = [str(Path(__file__).with_name("faults_worker.py")), str(folder)]
            self.workers = ProcessWorkers(
                placement, platform="cpu", spares=given.spares, limits=limits, program=program
            )

    def load(self) -> Any:
        checkpoint = alpa_mlir.latest_checkpoint(self.folder / "checkpoints")
        (self.folder / "base").write_text(str(checkpoint or 0))
        step: Any = alpa_mlir.load(self.plan, workers=self.workers)
        self.up.append(time.monotonic())
        self.group = step.loaded.group
        self.pids.update({pid: start_ticks(pid) for pid in self.group.pids})
        return step

    def heard(self, number: int, loss: Any) -> None:
        self.losses[number] = float(loss)
        if self.given.hosts == "ray" and number in self.kills:
            kill, pid = self.kills[number], self.group.pids[self.kills[number]["rank"]]
            threading.Timer(kill["part"] * 0.05, self.kill, [pid]).start()
        if not self.given.json and number % 10 == 9:
            print(f"\r{number + 1} steps, {len(self.up)} groups", end="", file=sys.stderr)

    def kill(self, pid: int) -> None:
        if start_ticks(pid) is not None:
            self.deaths.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

    def run(self) -> None:
        resume = training.Resume(self.folder / "checkpoints", every=self.given.every, attempts=20)
        training.run(
            self.load, first_state, batch_of, self.given.steps, resume, on_result=self.heard
        )
        self.group.close()
        self.workers.close()

    def recoveries(self) -> list[float]:
        """Seconds from each death until workers were up again."""
        deaths = self.deaths + [float(p.read_text()) for p in self.folder.glob("killed-*")]
        later = [[t for t in self.up if t > death] for death in sorted(deaths)]
        return [min(up) - death for up, death in zip(later, sorted(deaths), strict=True) if up]

    def orphans(self) -> list[int]:
        """Processes that are still there: known workers, and whatever names the folder."""
        found = {pid for pid, began in self.pids.items() if began and start_ticks(pid) == began}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in entry.read_bytes():
                    found.add(int(entry.parent.name))
            except OSError:
                pass
        return sorted(found - {os.getpid()})


def shared_memory() -> set[str]:
    """Names of ours and of Ray's; memory without a name ends with its processes."""
    return {name for name in os.listdir("/dev/shm") if "alpa" in name or "plasma" in name}


def measure(given: argparse.Namespace) -> Json:
    """Both runs, and what is different between them."""
    shared = shared_memory()
    plan = make_plan()
    with tempfile.TemporaryDirectory(prefix="alpa-mlir-faults-") as name:
        kills = choose_kills(given.kills, given.steps, given.seed)
        calm = Disturbed(given, plan, Path(name) / "calm", [])
        calm.run()
        wild = Disturbed(given, plan, Path(name) / "wild", kills)
        begin = time.monotonic()
        wild.run()
        seconds = time.monotonic() - begin
        time.sleep(1.0)
        recoveries = wild.recoveries()
        steps = range(given.steps)
        differences = [abs(calm.losses[i] - wild.losses[i]) for i in steps]
        return {
            "hosts": given.hosts,
            "spanning": given.spanning,
            "spares": given.spares,
            "steps": given.steps,
            "kills": len(recoveries),
            "groups": len(wild.up),
            "losses_equal": sum(d == 0.0 for d in differences),
            "largest_difference": max(differences),
            "first_and_last_loss": [wild.losses[0], wild.losses[given.steps - 1]],
            "recovery_seconds": {
                "median": statistics.median(recoveries) if recoveries else None,
                "max": max(recoveries, default=None),
            },
            "seconds": seconds,
            "orphans": calm.orphans() + wild.orphans(),
            "shared_memory_left": sorted(shared_memory() - shared),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="default: 50")
    parser.add_argument("--steps", type=int, default=500, help="default: 500")
    parser.add_argument("--every", type=int, default=10, help="steps of a checkpoint; default: 10")
    parser.add_argument("--seed", type=int, default=0, help="of the kills; default: 0")
    parser.add_argument("--hosts", choices=["processes", "ray"], default="processes")
    parser.add_argument(
        "--spanning", action="store_true", help="every mesh spans both workers (jax.distributed)"
    )
    parser.add_argument("--spares", type=int, default=2, help="processes kept ready; default: 2")
    parser.add_argument("--log", action="store_true", help="say what happens")
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    given = parser.parse_args(arguments)
    if not 0 <= given.kills < given.steps - LAST or given.every < 1:
        parser.error(f"--kills must be fewer than --steps less {LAST}, --every at least 1")
    logging.basicConfig(level=logging.INFO if given.log else logging.ERROR)
    _jax.config.update("jax_platforms", "cpu")
    result = measure(given)
    print(json.dumps(result) if given.json else "\n" + json.dumps(result, indent=1))
    wrong = result["losses_equal"] < given.steps or result["kills"] < given.kills
    sys.exit(1 if wrong or result["orphans"] or result["shared_memory_left"] else 0)


if __name__ == "__main__":
    main()
