"""Workers that find no memory in the middle of a run: real limits, real errors, real kills."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import resource
from pathlib import Path

import alpa_mlir
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa_mlir import errors, training
from alpa_runtime.hosts.process import out_of_memory_kills
from alpa_runtime.hosts.subprocesses import ProcessWorkers
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.transport.device import as_transport_error
from alpa_runtime.worker_group import Placement

STEPS = 6
# What a layer keeps of a micro-batch takes 34 MiB: more than the C library keeps in stock.
ROWS, WIDTH, HIDDEN = 1088, 4, 8192
TWO_HOSTS = {
    "name": "two-hosts",
    "device_types": {
        "cpu": {
            "memory_bytes": "8GiB",
            "memory_bandwidth": 1e10,
            "peak_flops": {"float32": 2e10},
        }
    },
    "hosts": {"count": 2, "devices": 1, "device_type": "cpu"},
    "links": {
        "intra_host": {"bandwidth": 4e9, "latency": 2e-5},
        "inter_host": {"bandwidth": 1e9, "latency": 1e-4},
    },
}


def train_step(state, batch):
    def loss(layers):
        x = batch["x"]
        for up, down in layers:
            x = x + jnp.tanh(x @ up) @ down
        return jnp.mean((x - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.01 * g, state, gradients), value


def first_state():
    rng = np.random.default_rng(0)
    shapes = [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    return [[(rng.standard_normal(s) / s[0]).astype(np.float32) for s in shapes] for _ in range(2)]


def batch_of(number):
    rng = np.random.default_rng(number)
    return {key: rng.standard_normal((2 * ROWS, WIDTH), np.float32) for key in ("x", "y")}


@pytest.fixture(scope="module")
def plan():
    method = alpa_mlir.PipeshardParallel(submeshes=[(1, 1)] * 2, num_micro_batches=2)
    cluster = alpa_mlir.Cluster.from_dict(TWO_HOSTS)
    step = alpa_mlir.parallelize(train_step, cluster=cluster, method=method)
    return step.plan(first_state(), batch_of(0)).plan


@pytest.fixture(scope="module")
def hosts():
    limits = Limits(start_seconds=600, frozen_seconds=60)  # Whatever else the machine does.
    two = Placement(((0,), (1,)))
    with ProcessWorkers(two, platform="cpu", spares=2, limits=limits) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def losses(plan, hosts):
    """Of a run that nothing happens to."""
    step = alpa_mlir.load(plan, workers=hosts)
    state, found = first_state(), []
    for number in range(STEPS):
        state, loss = step(state, batch_of(number))
        found.append(float(loss))
    step.close()
    return found


class Run:
    """A run in which something happens to a worker of some groups when a step is done."""

    def __init__(self, plan, hosts, folder, harm, groups):
        self.plan, self.hosts, self.folder = plan, hosts, folder
        self.harm, self.groups = harm, groups
        self.loaded, self.losses = [], {}

    def load(self):
        self.loaded.append(alpa_mlir.load(self.plan, workers=self.hosts))
        self.left = 1 if len(self.loaded) <= self.groups else 0
        return self.loaded[-1]

    def heard(self, number, loss):
        self.losses[number] = float(loss)
        if number >= 2 and self.left:
            self.left = 0
            self.harm(self.loaded[-1].loaded.group.pids)

    def go(self):
        resume = training.Resume(self.folder, every=2)
        training.run(self.load, first_state(), batch_of, STEPS, resume, on_result=self.heard)


def limit_memory(rank, more):
    """Lets a worker have only so many more bytes of memory than it has."""

    def harm(pids):
        pages = int(Path(f"/proc/{pids[rank]}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more
        resource.prlimit(pids[rank], resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    return harm


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("rank", "more"), [(0, 50 << 20), slow(0, 10 << 20), slow(1, 10 << 20), slow(1, 1 << 16)]
)
def test_a_run_goes_on(plan, hosts, losses, tmp_path, caplog, rank, more):
    run = Run(plan, hosts, tmp_path, limit_memory(rank, more), groups=1)
    run.go()
    assert len(run.loaded) == 2
    assert [run.losses[i] for i in range(STEPS)] == losses
    (line,) = [r.getMessage() for r in caplog.records if r.name == "alpa_mlir.training"]
    assert f"worker {rank}" in line
    assert "out of memory" in line.lower()
    assert "\n" not in line


@pytest.mark.slow
def test_what_never_fits_is_an_error(plan, hosts, tmp_path):
    loaded = []

    def load():
        loaded.append(alpa_mlir.load(plan, workers=hosts))
        limit_memory(1, 30 << 20)(loaded[-1].loaded.group.pids)
        return loaded[-1]

    with pytest.raises(
        errors.WorkerMemoryError, match=r"worker 1.*out of memory.*fix: use more micro-batches"
    ):
        training.run(load, first_state(), batch_of, STEPS, training.Resume(tmp_path))
    assert len(loaded) == 2


@contextlib.contextmanager
def memory_group(limit):
    """A control group of processes whose memory is limited, and how to put one in."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    folder = root / f"alpa-mlir-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        yield lambda pid: (folder / "cgroup.procs").write_text(str(pid))
    finally:
        folder.rmdir()


@pytest.mark.slow
def test_a_worker_that_the_kernel_kills(plan, hosts, losses, tmp_path, caplog):
    with memory_group(20 << 20) as join:
        before = out_of_memory_kills()
        run = Run(plan, hosts, tmp_path, lambda pids: join(pids[1]), groups=1)
        run.go()
    assert out_of_memory_kills() == before + 1
    assert [run.losses[i] for i in range(STEPS)] == losses
    lines = [r.getMessage() for r in caplog.records if r.name == "alpa_mlir.training"]
    assert len(lines) == 1
    # Nobody may have noticed before the next step was asked for.
    said = r"worker 1: (failed in step \d: )?killed by the kernel, which was out of memory"
    assert re.search(said, lines[0])


def test_which_errors_are_about_memory():
    for error in (
        MemoryError("no room"),
        RuntimeError("RESOURCE_EXHAUSTED: failed to allocate"),
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 64 bytes."),
        errors.WorkerMemoryError("MemoryError: no room", where="worker 1"),
        errors.WorkerLostError("ended with status 77", out_of_memory=True),
        pickle.loads(pickle.dumps(errors.WorkerLostError("gone", out_of_memory=True))),
        as_transport_error(MemoryError("no room")).at("tag 3"),
    ):
        assert errors.is_out_of_memory(error)
        assert isinstance(errors.worker_error(error, "here"), errors.WorkerMemoryError)
    for text in ("died of SIGKILL (out of memory, or killed)", "RESOURCE_EXHAUSTED: Out of memory"):
        assert not errors.is_out_of_memory(errors.WorkerLostError(text))  # No text of our own.
    assert errors.worker_error(ValueError("a\nb"), "worker 1").what == "ValueError: a b"
