"""The search against all plans there are, on small models and clusters.

Every cut of the layers into stages, every submesh and view of each, every schedule, every number
of stages on a mesh and of micro-batches is asked for by name, and the fastest one that has a plan
is compared with what the search finds when all of that is its choice.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

import alpa_mlir
import jax
import jax.numpy as jnp
import pytest
from alpa_mlir import AutoParallel, PipeshardParallel
from alpa_mlir.compiler import schedule_table
from alpa_mlir.errors import AlpaError, MethodError
from alpa_mlir.methods.method import Method
from alpa_mlir.search.planner import StepModules, signature_json
from clusters import small_hosts

# Split backward phases and several stages on a mesh have to be 1 % faster, 1 / 0.99 in seconds.
TOLERANCE = 0.0102
OPTIONS = dict(remat="none", offload="none", padding="none", prepare_weights="none")


@dataclass(frozen=True)
class Case:
    """A model of residual layers, and a cluster."""

    widths: tuple[int, ...]  # Of each layer, in multiples of the model's.
    model: int
    batch: int
    hosts: int
    devices: int
    cluster: alpa_mlir.Cluster
    counts: tuple[int, ...]

    def traced(self):
        def step(weights, x):
            def loss(weights):
                y = x
                for first, second in weights:
                    y = y + jnp.tanh(y @ first) @ second
                return jnp.mean(y**2)

            value, gradients = jax.value_and_grad(loss)(weights)
            return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradients), value

        d = self.model
        weights = [
            (jax.ShapeDtypeStruct((d, d * k), jnp.float32), jax.ShapeDtypeStruct((d * k, d), "f4"))
            for k in self.widths
        ]
        x = jax.ShapeDtypeStruct((self.batch, d), jnp.float32)
        parallel = alpa_mlir.parallelize(step, cluster=self.cluster, cache=False)
        return parallel.trace(weights, x)


def make_case(seed: int) -> Case:
    r = random.Random(seed)
    layers = r.choice([2, 2, 3, 3, 4])
    widths = tuple(r.choice([1, 2, 4]) if r.random() < 0.4 else 2 for _ in range(layers))
    model, batch = r.choice([16, 32, 64, 256]), r.choice([8, 16])
    hosts, devices = r.choice([(1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (1, 3), (3, 1)])
    state = sum(2 * 4 * model * model * k for k in widths) * 3
    memory = r.choice([10**9, 10**9, int(state), int(state / (hosts * devices) * 2) + 40000])
    cluster = small_hosts(
        hosts,
        devices,
        memory,
        inside=(r.choice([4e9, 1e11]), r.choice([2e-6, 1e-7])),
        bandwidth=r.choice([1e8, 1e9, 1e10]),
        latency=r.choice([5e-5, 1e-6]),
    )
    counts = r.choice([(1,), (2,), (4,), (1, 2), (2, 4, 8)])
    return Case(widths, model, batch, hosts, devices, cluster, counts)


def cuts(layers: int, stages: int) -> Iterator[tuple[tuple[int, int], ...]]:
    for inner in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(itertools.pairwise((0, *inner, layers)))


def submeshes(case: Case) -> list[tuple[int, int]]:
    parts = [n for n in range(1, case.devices) if n & (n - 1) == 0 or case.devices % n == 0]
    return [(1, n) for n in parts] + [(n, case.devices) for n in range(1, case.hosts + 1)]


def views(submesh: tuple[int, int]) -> list[tuple[int, int]]:
    size = prod(submesh)
    return [(n, size // n) for n in range(1, size + 1) if size % n == 0]


def fits_side_by_side(case: Case, chosen: tuple[tuple[int, int], ...]) -> bool:
    """Whole hosts, and parts of hosts that may need to be tried in any order."""
    whole = sum(n for n, each in chosen if each == case.devices)
    rooms = [case.devices] * (case.hosts - whole)
    parts = sorted((each for _, each in chosen if each < case.devices), reverse=True)
    if whole > case.hosts:
        return False

    def place(index: int, rooms: tuple[int, ...]) -> bool:
        if index == len(parts):
            return True
        return any(
            place(index + 1, tuple(sorted((*rooms[:i], room - parts[index], *rooms[i + 1 :]))))
            for i, room in enumerate(rooms)
            if room >= parts[index]
        )

    return place(0, tuple(rooms))


def all_methods(case: Case) -> Iterator[Method]:
    """Each plan by name, with several views of a stage where there are."""
    layers = len(case.widths)
    shapes = submeshes(case)
    apart = [n for n, row in schedule_table().items() if row.stages_per_mesh == 1]
    apart = [n for n in apart if n not in ("inference", "custom")]
    shared = [n for n, row in schedule_table().items() if row.stages_per_mesh > 1]
    for stages in range(1, layers + 1):
        for chosen in itertools.product(shapes, repeat=stages):
            if not fits_side_by_side(case, chosen):
                continue
            for ranges in cuts(layers, stages):
                for shape in itertools.product(*map(views, chosen)):
                    # One stage has one order, but for what several of them make of the batch.
                    for name in apart if stages > 1 else ["1f1b"]:
                        yield PipeshardParallel(
                            submeshes=chosen,
                            mesh_shapes=shape,
                            layer_ranges=ranges,
                            layers=layers,
                            schedule=name,
                            **OPTIONS,
                        )
    for name in shared:
        # In rounds, and in a V. All of a step on one mesh is one program, which is not cut.
        for each in (2,) if schedule_table()[name].splits_backward else (2, 3, 4):
            for meshes in range(2, layers // each + 1):
                for shape in shapes:
                    if not fits_side_by_side(case, (shape,) * meshes):
                        continue
                    for ranges in cuts(layers, each * meshes):
                        for view in itertools.product(views(shape), repeat=meshes):
                            yield PipeshardParallel(
                                submeshes=(shape,) * meshes,
                                mesh_shapes=view,
                                layer_ranges=ranges,
                                layers=layers,
                                schedule=name,
                                virtual_stages=each,
                                **OPTIONS,
                            )


class Planner:
    """Seconds of plans of one step, without their programs."""

    def __init__(self, case: Case, folder) -> None:
        self._case = case
        self._traced = case.traced().traced
        self._file = str(folder / "cluster.yaml")
        case.cluster.save(self._file)
        method = AutoParallel(layers=len(case.widths), **OPTIONS)
        self._modules = StepModules(self._traced, signature_json(self._traced, method))

    def seconds(self, method: Method, count: int) -> float:
        case = self._case
        split = self._modules.get(
            method.import_passes(case.cluster), method.layer_passes(count, "")
        )
        try:
            module = split.clone().run(
                method.search_passes(case.cluster, self._file, count, why=False)
            )
        except AlpaError as error:
            if isinstance(error, MethodError) and "fits" not in str(error):
                raise
            return inf
        return module.predicted()["step_seconds"]


def compare(seed: int, folder, schedule: str = "auto") -> tuple[float, float, str]:
    """Seconds of the search and of the best plan by name, and what that is; of one schedule or
    all of them."""
    case = make_case(seed)
    planner = Planner(case, folder)
    found = best = inf
    what = ""
    for count in case.counts:
        auto = AutoParallel(layers=len(case.widths), schedule=schedule, **OPTIONS)
        found = min(found, planner.seconds(auto, count))
        for method in all_methods(case):
            if len(method.submeshes) > 1 and schedule not in ("auto", method.schedule):
                continue
            seconds = planner.seconds(method, count)
            if seconds < best:
                best = seconds
                what = f"{count} micro-batches, {method}"
    return found, best, what


# Of several layers each, some of which a search by formula alone gets wrong. In 243 stages that
# share meshes differ, so that the others wait less for the busiest mesh.
@pytest.mark.parametrize("seed", [1, 18, 44, 95, 115, 184, 243])
def test_the_search_finds_the_best_of_all_plans(seed, tmp_path):
    found, best, what = compare(seed, tmp_path)
    assert found <= best * (1 + TOLERANCE), what
    # By name it finds no less than all that there is.
    assert found >= best * (1 - TOLERANCE)


# In 0, 201, 377 and 416 the best plan takes devices that the first one leaves idle, by stages on
# unequal submeshes.
@pytest.mark.parametrize(
    ("schedule", "seed"),
    [
        *(("zb-auto", seed) for seed in (10, 23, 39)),
        *(("zb-h1", seed) for seed in (0, 201)),
        *(("1f1b", seed) for seed in (377, 416)),
    ],
)
def test_a_schedule_finds_its_best_plan(schedule, seed, tmp_path):
    found, best, what = compare(seed, tmp_path, schedule)
    assert best < inf
    assert found <= best * 1.002, what


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, 25))
def test_the_search_finds_the_best_of_all_plans_of_500_models(first, tmp_path):
    behind = {}
    for seed in range(first, first + 25):
        found, best, what = compare(seed, tmp_path)
        if not best * (1 - TOLERANCE) <= found <= best * (1 + TOLERANCE) and found != best:
            behind[seed] = found, best, what
    assert not behind
