"""Links that transfers share: who gets how much of a link at a time.

A transfer takes its path's latency first. Then its bytes flow, at the path's full rate while it
has the links to itself. Transfers that meet on a link are slowed by the same factor, as far as
the link demands it, and those that another link slows further leave the rest to the others
(max-min fairness by progressive filling: Bertsekas, Gallager, "Data Networks", 2nd ed., section
6.5.2; the rates here are parts of a path's full rate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MeshPair = tuple[int, int]


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link on a path, and the part of the bytes that takes it."""

    link: str
    bandwidth: float
    part: float


@dataclass(frozen=True)
class Path:
    """From one mesh to another: latency in seconds, and bytes a second without company."""

    latency_seconds: float
    bytes_per_second: float
    links: tuple[LinkUse, ...]

    def seconds(self, size_bytes: float) -> float:
        """Seconds of a transfer that has the links to itself."""
        return self.latency_seconds + size_bytes / self.bytes_per_second


class FairShares:
    """Rates of the transfers that flow at the same time, as parts of their full rates."""

    def __init__(self, paths: Mapping[MeshPair, Path], share_links: bool = True) -> None:
        """With `share_links=False` every pair of meshes has links of its own."""
        self.loads: dict[MeshPair, dict[str, float]] = {}
        for pair, path in paths.items():
            if share_links:
                self.loads[pair] = {
                    use.link: use.part * path.bytes_per_second / use.bandwidth for use in path.links
                }
            else:
                self.loads[pair] = {f"link from {pair[0]} to {pair[1]}": 1.0}
        on_link: dict[str, list[MeshPair]] = {}
        for pair, loads in self.loads.items():
            for link in loads:
                on_link.setdefault(link, []).append(pair)
        self.meets = {
            pair: sorted({other for link in loads for other in on_link[link]} - {pair})
            for pair, loads in self.loads.items()
        }
        self._known: dict[tuple[tuple[MeshPair, int], ...], dict[MeshPair, float]] = {}

    def affected(
        self, pair: MeshPair, flowing: Mapping[MeshPair, Sequence[object]]
    ) -> list[MeshPair]:
        """Pairs whose transfers may have another rate once the pair's transfers change."""
        found = {pair}
        order = [pair]
        for at in order:
            for other in self.meets[at]:
                if other not in found and flowing[other]:
                    found.add(other)
                    order.append(other)
        return order

    def rates(self, counts: Sequence[tuple[MeshPair, int]]) -> Mapping[MeshPair, float]:
        """The part of its full rate that each of `count` transfers of a pair gets."""
        key = tuple(sorted(counts))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._fill(key)
        return known

    def _fill(self, counts: tuple[tuple[MeshPair, int], ...]) -> dict[MeshPair, float]:
        rates: dict[MeshPair, float] = {}
        growing = dict(counts)
        room: dict[str, float] = {}
        for pair in growing:
            room.update(dict.fromkeys(self.loads[pair], 1.0))
        level = 0.0
        while growing:
            demand: dict[str, float] = {}
            for pair, count in growing.items():
                for link, load in self.loads[pair].items():
                    demand[link] = demand.get(link, 0.0) + count * load
            step = min([room[link] / load for link, load in demand.items()], default=1.0)
            step = min(step, 1.0 - level)
            level += step
            full: set[str] = set()
            for link, load in demand.items():
                room[link] -= step * load
                if room[link] <= 1e-12:
                    full.add(link)
            stopped = [
                pair
                for pair in growing
                if level >= 1.0 - 1e-12 or not full.isdisjoint(self.loads[pair])
            ]
            for pair in stopped:
                rates[pair] = level
                del growing[pair]
        return rates
