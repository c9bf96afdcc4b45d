"""A program that `alpa-mlir launch` runs: trains the handmade step on workers of the launch.

Run: launched_training.py FOLDER [--steps N] [--pause S] [--fail-once] [--fail STATUS]
     [--hosts-seconds S] [--frozen-seconds S] [--encrypt] [--elastic]

It writes its workers' process numbers to FOLDER/pids after each load, and adds them to
FOLDER/groups, the number of the step to
FOLDER/step, and the last state to FOLDER/state.npz.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import alpa_mlir
import handmade
import jax
import numpy as np
import steps
from alpa_mlir import training
from alpa_runtime.hosts.watchdog import Limits
from alpa_runtime.worker_group import Placement


def elastic_plans(workers, options):
    """Of the same step on two hosts of two devices, and on one."""
    state, batch = handmade.arguments(2)

    def plan(hosts):
        method = alpa_mlir.PipeshardParallel(submeshes=[(1, 2)] * hosts, layers=2)
        cluster = alpa_mlir.Cluster.nominal("hosts", "cpu", (2,) * hosts, 1 << 30)
        step = handmade.reference_step
        planned = alpa_mlir.parallelize(step, cluster=cluster, method=method, cache=False)
        return planned.plan(state, batch).plan

    workers = alpa_mlir.LaunchedWorkers(platform="cpu", hosts_seconds=options.hosts_seconds)
    found = training.Elastic({hosts: plan(hosts) for hosts in (2, 1)}, workers, wait_seconds=2)

    def load():
        step = training.Elastic.load(found)
        with (options.folder / "hosts").open("a") as file:
            print(found.num_hosts, time.time(), file=file)
        return step

    found.load = load
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fail-once", action="store_true")
    parser.add_argument("--fail", type=int)
    parser.add_argument("--hosts-seconds", type=float, default=60.0)
    parser.add_argument("--frozen-seconds", type=float, default=30.0)
    parser.add_argument("--encrypt", action="store_true")
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.fail is not None:
        sys.exit(options.fail)
    failed = options.folder / "failed"
    plan = steps.two_stage_plan(2)
    workers = alpa_mlir.LaunchedWorkers(
        Placement(((0, 1), (2, 3))),
        platform="cpu",
        hosts_seconds=options.hosts_seconds,
        limits=Limits(frozen_seconds=options.frozen_seconds),
        encrypt=options.encrypt,
    )

    def load():
        step = alpa_mlir.load(plan, workers=workers)
        (options.folder / "pids").write_text(json.dumps(step.loaded.group.pids))
        with (options.folder / "groups").open("a") as file:
            print(step.loaded.group.pids, file=file)
        return step

    elastic = None
    if options.elastic:
        elastic = elastic_plans(workers, options)
        load = elastic.load
    state, batch = handmade.arguments(2)

    def show(number, _):
        (options.folder / "step").write_text(str(number))
        time.sleep(options.pause)
        if options.fail_once and number == 1 and not failed.exists():
            failed.touch()
            sys.exit(3)

    grows = None if elastic is None else elastic.grows
    resume = training.Resume(options.folder / "run", every=1)
    last = training.run(
        load, state, lambda _: batch, options.steps, resume, grows=grows, on_result=show
    )
    leaves = [np.asarray(x) for x in jax.tree.leaves(jax.device_get(last))]
    np.savez(options.folder / "state.npz", *leaves)


if __name__ == "__main__":
    main()
