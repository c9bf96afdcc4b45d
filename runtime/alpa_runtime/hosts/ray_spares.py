"""Actors of Ray that have imported JAX, one for each worker that a later group may need.

They take nothing of a node but memory: no processor, no GPU. The room of a group is its placement
group's; a spare actor on the same node does its work.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alpa_runtime.hosts.ray_actors import RayHost, check_up, import_ray

_ANSWER_SECONDS = 2.0  # For a spare actor, to show that it is alive.


@dataclass(frozen=True)
class _Spare:
    """An actor that waits.

    Attributes:
        cluster: of which Ray.
        node: where it is.
        warm: Ray's reference to the end of its imports.
    """

    cluster: str
    node: str
    actor: Any
    warm: Any


class RaySpares:
    """Keeps actors ready; any thread may call.

    Args:
        count: how many.
        environment: of the actors, as `RayWorkers` has it.
    """

    def __init__(self, count: int, environment: Mapping[str, str]) -> None:
        self.count = count
        self._environment = dict(environment)
        self._spares: list[_Spare] = []
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._spares)

    def take(self, ray: Any, nodes: Sequence[str]) -> list[Any | None]:
        """For each of these nodes an actor that waits there, or None; they are kept no more."""
        with self._lock:
            self._forget_others(ray)
            there = self._alive(ray)
            found: list[Any | None] = []
            for node in nodes:
                spare = next((one for one in there if one.node == node), None)
                found.append(None if spare is None else spare.actor)
                if spare is not None:
                    there.remove(spare)
                    self._spares.remove(spare)
            return found

    def refill(self, ray: Any, nodes: Sequence[str]) -> None:
        """Start actors until there are enough: in turn on these nodes, then on all others."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._lock:
            self._forget_others(ray)
            up: list[str] = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
            order = [*dict.fromkeys(n for n in nodes if n in up)]
            order += [node for node in up if node not in order]
            held = Counter(spare.node for spare in self._spares)
            while order and len(self._spares) < self.count:
                node = min(order, key=lambda n: held[n])
                held[node] += 1
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                options = {"num_cpus": 0, "num_gpus": 0, "max_restarts": 0}
                kind = ray.remote(RayHost).options(**options, scheduling_strategy=there)
                actor = kind.remote(self._environment)
                warm = actor.warm_up.remote()
                self._spares.append(_Spare(_cluster(ray), node, actor, warm))

    def close(self) -> None:
        """End the actors that wait."""
        with self._lock:
            _end(self._spares)

    def _forget_others(self, ray: Any) -> None:
        """Actors of a Ray that was shut down have ended with it."""
        here = _cluster(ray)
        self._spares[:] = [spare for spare in self._spares if spare.cluster == here]

    def _alive(self, ray: Any) -> list[_Spare]:
        """Drops those that are gone, and what their nodes were."""
        warm = [one for one in self._spares if ray.wait([one.warm], timeout=0)[0]]
        asked = {id(one): one.actor.describe.remote() for one in warm}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        alive: list[_Spare] = []
        for spare in list(self._spares):
            reference = asked.get(id(spare))  # One that still imports is as good as a new one.
            try:
                if reference is not None:
                    ray.get(reference, timeout=0)
            except (ray.exceptions.RayError, TimeoutError):
                self._spares.remove(spare)
                _end([spare])
            else:
                alive.append(spare)
        return alive


def _cluster(ray: Any) -> str:
    """Tells one joining of a cluster from another."""
    return str(ray.get_runtime_context().get_worker_id())


def _end(spares: list[_Spare]) -> None:
    if not spares:
        return
    ray = import_ray()
    while spares:
        spare = spares.pop()
        with contextlib.suppress(Exception):
            check_up(ray)
            if spare.cluster == _cluster(ray):
                ray.kill(spare.actor, no_restart=True)
