"""A run that is disturbed again and again: does it lose anything?

A small model is trained on two workers, once undisturbed, once with accidents: workers that die
(before random instructions, and while random messages are on their way; of Ray's and a launch's, at
random moments) or are stopped, drivers that die and are started again, disks that are full when a
checkpoint is written, and hosts of a launch that end and come back. Its losses must be those of the
undisturbed run, bit for bit, also where a new driver reports a step again, and nothing may be left
of it: no process, no shared memory. Full disks are a tmpfs that is mounted for it, as root.

Run: python benchmark/runtime/faults.py [--kills 50] [--stops N] [--drivers N] [--disks N]
     [--lost-hosts N] [--steps 500] [--hosts processes|launched|ray] [--spanning] [--spares 2]
     [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import alpa_mlir
import jax
import jax.numpy
import numpy as np
from alpa_mlir import Cluster, PipeshardParallel, Plan, training
from alpa_runtime.hosts.launch import KEY_VARIABLE
from alpa_runtime.hosts.launched import LaunchedWorkers
from alpa_runtime.hosts.process import start_ticks
from alpa_runtime.hosts.ray_hosts import RayWorkers
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import Placement

_jax: Any = jax
jnp: Any = jax.numpy
Json = dict[str, Any]

WIDTH, LAYERS, ROWS = 256, 4, 512
LAST = 5  # Steps at the end in which nothing happens: the run might be over before.
DISK_BYTES = 24 << 20  # Of the checkpoints' disk, where it is to be full now and then.
RESTART_SECONDS = 120.0  # In which a run that was ended has to get on.
# Accidents: of a worker, a worker that stops, the driver, the disk, a launch on another host.
KINDS = ("kills", "stops", "drivers", "disks", "lost_hosts")
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


def choose_accidents(given: argparse.Namespace) -> list[Json]:
    """When, what, who and where. Disks are full for one checkpoint at a time: two end a run."""
    rng = random.Random(given.seed)
    kinds = [kind for kind in KINDS for _ in range(getattr(given, kind))]
    rng.shuffle(kinds)
    steps = sorted(rng.sample(range(1, given.steps - LAST), len(kinds)))
    free = 0  # From here on the disk may be full.
    for i, step in enumerate(steps):
        if kinds[i] == "disks" and step < free:
            later = (j for j in range(i + 1, len(kinds)) if kinds[j] != "disks")
            j = next(later, i)
            kinds[i], kinds[j] = kinds[j], kinds[i]
        if kinds[i] == "disks":
            free = step + 4 * given.every
    return [
        {
            "step": step,
            "kind": kind,
            "rank": rng.randrange(2),
            "at": rng.choice(["instruction", "transfer"]),
            "part": rng.random(),
            "delay": rng.random() * 3e-4,
        }
        for step, kind in zip(steps, kinds, strict=True)
    ]


def mark(folder: Path, accident: Json) -> None:
    """Note that it happens now."""
    (folder / f"happened-{accident['step']}").write_text(str(time.monotonic()))


class Training:
    """The run of one driver; what it has to tell goes to files of its folder."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        accidents: list[Json] = json.loads((folder / "accidents.json").read_text())
        self.accidents = {a["step"]: a for a in accidents}
        self.full_until = -1
        self.filler = folder / "checkpoints" / "filler"
        self.group: Any = None
        self.say(pid=os.getpid(), began=start_ticks(os.getpid()))
        placement = PLACEMENTS["spanning" if given.spanning else "hosts"]
        limits = Limits(frozen_seconds=given.frozen_seconds)
        self.workers: Any
        if given.hosts == "ray":
            self.workers = RayWorkers(
                placement=placement, platform="cpu", spares=given.spares, limits=limits
            )
        elif given.hosts == "launched":
            self.workers = LaunchedWorkers(placement, platform="cpu", limits=limits)
        else:
            program = [str(Path(__file__).with_name("faults_worker.py")), str(folder)]
            self.workers = ProcessWorkers(
                placement, platform="cpu", spares=given.spares, limits=limits, program=program
            )

    def say(self, **what: Any) -> None:
        """Add a line, which is there whatever happens to this process."""
        with (self.folder / "events").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def load(self) -> Any:
        self.filler.unlink(missing_ok=True)  # Twice in a row ends a run.
        checkpoint = alpa_mlir.latest_checkpoint(self.folder / "checkpoints")
        (self.folder / "base").write_text(str(checkpoint or 0))
        step: Any = alpa_mlir.load(self.folder.parent / "plan", workers=self.workers)
        self.group = step.loaded.group
        self.say(up=time.monotonic())
        for pid in self.group.pids:
            self.say(pid=pid, began=start_ticks(pid))
        return step

    def heard(self, number: int, loss: Any) -> None:
        self.say(step=number, loss=float(loss))
        if number >= self.full_until:
            self.filler.unlink(missing_ok=True)
        accident = self.accidents.get(number)
        if accident is None or (self.folder / f"happened-{number}").exists():
            return
        kind = accident["kind"]
        if kind == "disks":
            every = self.given.every
            self.full_until = (number // every + 1) * every + 1
            mark(self.folder, accident)
            fill(self.filler)
            return
        if kind in ("kills", "stops") and self.given.hosts == "processes":
            return  # Workers see to that themselves.
        rank = self.group.pids[accident["rank"]]
        pid = {"drivers": os.getpid(), "lost_hosts": launch_pid(self.folder, 1)}.get(kind, rank)
        threading.Timer(accident["part"] * 0.05, self.end, [pid, accident]).start()

    def end(self, pid: int, accident: Json) -> None:
        if start_ticks(pid) is not None:
            mark(self.folder, accident)
            number = signal.SIGSTOP if accident["kind"] == "stops" else signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def run(self) -> None:
        resume = training.Resume(self.folder / "checkpoints", every=self.given.every, attempts=20)
        training.run(
            self.load, first_state, batch_of, self.given.steps, resume, on_result=self.heard
        )
        self.group.close()
        if self.given.hosts != "launched":
            self.workers.close()


def fill(file: Path) -> None:
    """Take all that is left of a disk."""
    with file.open("wb", buffering=0) as to, contextlib.suppress(OSError):
        while True:
            to.write(bytes(1 << 16))


def launch_pid(folder: Path, rank: int) -> int:
    """The process of a launch."""
    file = folder / f"launch{rank}"
    return int(file.read_text()) if file.exists() else 0


class Run:
    """A training, the disk of its checkpoints, and whoever starts it again when it ends."""

    def __init__(self, given: argparse.Namespace, folder: Path, accidents: list[Json]) -> None:
        self.given, self.folder, self.accidents = given, folder, accidents
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "accidents.json").write_text(json.dumps(accidents))

    @contextlib.contextmanager
    def disk(self) -> Generator[None, None, None]:
        """A small one, if it is to be full."""
        if not any(a["kind"] == "disks" for a in self.accidents):
            yield
            return
        where = str(self.folder / "checkpoints")
        size = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", where], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", where], check=True)

    def go(self) -> None:
        """Until the training is through.

        Raises:
            RuntimeError: it ended in another way than by an accident.
        """
        given = self.given
        program = [sys.executable, __file__, *given.words, "--train", str(self.folder)]
        commands, variables = [program], dict[str, str]()
        if given.hosts == "launched":
            with socket.create_server(("127.0.0.1", 0)) as free:
                place = f"127.0.0.1:{free.getsockname()[1]}"
            start = [sys.executable, "-m", "alpa_mlir", "launch", "--num-hosts", "2"]
            start += ["--coordinator", place, "--restarts", str(len(self.accidents))]
            commands = [[*start, "--rank", str(r), "--", *program] for r in (0, 1)]
            variables[KEY_VARIABLE] = secrets.token_hex(16)
        environment = os.environ | variables
        log = (self.folder / "log").open("ab")
        started: list[subprocess.Popen[bytes]] = []
        try:
            with self.disk():
                for command in commands:
                    started.append(self.start(command, len(started), environment, log))
                while started[0].poll() != 0:
                    for rank, process in enumerate(started):
                        code = process.poll()
                        if code not in (None, 0, -signal.SIGKILL):
                            raise RuntimeError(f"ended with {code}: {self.log()[-3000:]}")
                        if code == -signal.SIGKILL:
                            started[rank] = self.start(commands[rank], rank, environment, log)
                    time.sleep(0.01)
                for process in started[1:]:
                    process.wait(RESTART_SECONDS)
        finally:
            for process in started:
                process.kill()
                process.wait()
            log.close()

    def start(
        self, command: list[str], rank: int, environment: dict[str, str], log: Any
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        (self.folder / f"launch{rank}").write_text(str(process.pid))
        self.say(pid=process.pid, began=start_ticks(process.pid))
        return process

    def say(self, **what: Any) -> None:
        with (self.folder / "events").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def events(self, name: str) -> list[Json]:
        lines = (self.folder / "events").read_text().splitlines()
        return [event for event in map(json.loads, lines) if name in event]

    def happened(self) -> dict[int, float]:
        """Times of accidents by their steps."""
        found = self.folder.glob("happened-*")
        return {int(file.name.partition("-")[2]): float(file.read_text()) for file in found}

    def recoveries(self) -> dict[str, list[float]]:
        """Seconds from each accident until workers were up again, by kind."""
        up = [event["up"] for event in self.events("up")]
        found: dict[str, list[float]] = {}
        happened = self.happened()
        for accident in self.accidents:
            when = happened.get(accident["step"])
            later = [t for t in up if when is not None and t > when]
            if accident["kind"] != "disks" and when is not None and later:
                found.setdefault(accident["kind"], []).append(min(later) - when)
        return found

    def orphans(self) -> list[int]:
        """Processes that are still there: known ones, and whatever names the folder."""
        known = {event["pid"]: event["began"] for event in self.events("pid")}
        found = {pid for pid, began in known.items() if began and start_ticks(pid) == began}
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in entry.read_bytes():
                    found.add(int(entry.parent.name))
        return sorted(found - {os.getpid()})


def shared_memory(hosts: str) -> set[str]:
    """Names of Ray's; ours is memory without a name, which ends with its processes."""
    return {name for name in os.listdir("/dev/shm") if hosts == "ray" and "plasma" in name}


def measure(given: argparse.Namespace) -> Json:
    """Both runs, and what is different between them."""
    with tempfile.TemporaryDirectory(prefix="alpa-mlir-faults-") as name:
        return compare(given, Path(name))


def compare(given: argparse.Namespace, folder: Path) -> Json:
    shared = shared_memory(given.hosts)
    make_plan().save(folder / "plan")
    accidents = choose_accidents(given)
    calm, wild = Run(given, folder / "calm", []), Run(given, folder / "wild", accidents)
    calm.go()
    begin = time.monotonic()
    wild.go()
    seconds = time.monotonic() - begin
    time.sleep(1.0)
    wanted = {event["step"]: event["loss"] for event in calm.events("loss")}
    losses = [(event["step"], event["loss"]) for event in wild.events("loss")]
    different = sorted({step for step, loss in losses if loss != wanted[step]})
    recoveries = wild.recoveries()
    happened = wild.happened()
    result = {
        "hosts": given.hosts,
        "spanning": given.spanning,
        "spares": given.spares,
        "steps": given.steps,
        "wanted": {kind: getattr(given, kind) for kind in KINDS},
        "happened": {
            kind: sum(a["kind"] == kind and a["step"] in happened for a in accidents)
            for kind in KINDS
        },
        "groups": len(wild.events("up")),
        "losses_equal": len({step for step, _ in losses} - set(different)),
        "reported_again": len(losses) - given.steps,
        "different": different,
        "checkpoints_not_written": wild.log().count(" was not written: "),
        "recovery_seconds": {
            kind: {"median": statistics.median(found), "max": max(found), "count": len(found)}
            for kind, found in recoveries.items()
        },
        "seconds": seconds,
        "orphans": calm.orphans() + wild.orphans(),
        "shared_memory_left": sorted(shared_memory(given.hosts) - shared),
    }
    if given.log:
        print(wild.log(), file=sys.stderr)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="of workers; default: 50")
    parser.add_argument("--stops", type=int, default=0, help="of workers; default: 0")
    parser.add_argument("--drivers", type=int, default=0, help="that are killed; default: 0")
    parser.add_argument("--disks", type=int, default=0, help="that are full; default: 0")
    parser.add_argument(
        "--lost-hosts", type=int, default=0, help="launches that are killed; default: 0"
    )
    parser.add_argument("--steps", type=int, default=500, help="default: 500")
    parser.add_argument("--every", type=int, default=10, help="steps of a checkpoint; default: 10")
    parser.add_argument("--seed", type=int, default=0, help="of the accidents; default: 0")
    parser.add_argument("--hosts", choices=["processes", "launched", "ray"], default="processes")
    parser.add_argument(
        "--spanning", action="store_true", help="every mesh spans both workers (jax.distributed)"
    )
    parser.add_argument("--spares", type=int, default=2, help="processes kept ready; default: 2")
    parser.add_argument(
        "--frozen-seconds", type=float, default=20.0, help="a worker may be silent; default: 20"
    )
    parser.add_argument("--log", action="store_true", help="say what happens")
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.words = list(sys.argv[1:] if arguments is None else arguments)
    count = sum(getattr(given, kind) for kind in KINDS)
    if not 0 <= count < given.steps - LAST or given.every < 1:
        parser.error(f"accidents must be fewer than --steps less {LAST}, --every at least 1")
    if given.lost_hosts and given.hosts != "launched":
        parser.error("--lost-hosts needs --hosts launched")
    logging.basicConfig(
        level=logging.INFO if given.log or given.train else logging.ERROR,
        format="%(asctime)s %(name)s %(message)s",
    )
    _jax.config.update("jax_platforms", "cpu")
    if given.train:
        Training(given, given.train).run()
        return
    result = measure(given)
    print(json.dumps(result) if given.json else "\n" + json.dumps(result, indent=1))
    wrong = result["losses_equal"] < given.steps or result["happened"] != result["wanted"]
    sys.exit(1 if wrong or result["orphans"] or result["shared_memory_left"] else 0)


if __name__ == "__main__":
    main()
