"""Links that transfers share: who gets how much of a link at a time.

A transfer takes its route's latency first. Then its bytes flow, at full rate while it has the links
to itself. Transfers that meet on a link are slowed by the same factor, as far as the link demands
it, and those that another link slows further leave the rest to the others (max-min fairness by
progressive filling: Bertsekas, Gallager, "Data Networks", 2nd ed., section 6.5.2; the rates here
are parts of a route's full rate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MeshPair = tuple[int, int]


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link, and the bytes that take it."""

    link: str
    bandwidth: float
    bytes: float


@dataclass(frozen=True)
class Route:
    """What a transfer takes without company, and which links it uses.

    Attributes:
        pair: the sending and the receiving mesh.
        latency_seconds: until its bytes flow.
        flow_seconds: while they flow.
    """

    pair: MeshPair
    latency_seconds: float
    flow_seconds: float
    links: tuple[LinkUse, ...]

    @property
    def seconds(self) -> float:
        """Seconds of a transfer that has the links to itself."""
        return self.latency_seconds + self.flow_seconds


class FairShares:
    """Rates of the transfers that flow at the same time, as parts of their full rates."""

    def __init__(self, routes: Sequence[Route], share_links: bool = True) -> None:
        """Transfers are known by the numbers of their routes.

        With `share_links=False` every pair of meshes has links of its own.
        """
        self.loads: list[dict[str, float]] = []
        for route in routes:
            if share_links:
                self.loads.append(
                    {
                        use.link: use.bytes / use.bandwidth / route.flow_seconds
                        for use in route.links
                        if route.flow_seconds > 0
                    }
                )
            else:
                self.loads.append({f"link from {route.pair[0]} to {route.pair[1]}": 1.0})
        on_link: dict[str, list[int]] = {}
        for number, loads in enumerate(self.loads):
            for link in loads:
                on_link.setdefault(link, []).append(number)
        self.meets: list[list[int]] = [
            sorted({other for link in loads for other in on_link[link]} - {number})
            for number, loads in enumerate(self.loads)
        ]
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    def affected(self, number: int, flowing: Mapping[int, object]) -> list[int]:
        """Routes whose transfers may have another rate once that of one route begins or ends.

        Args:
            flowing: the routes whose transfers are flowing.
        """
        found = {number}
        order = [number]
        for at in order:
            for other in self.meets[at]:
                if other not in found and other in flowing:
                    found.add(other)
                    order.append(other)
        return order

    def rates(self, flowing: Sequence[int]) -> Mapping[int, float]:
        """The part of its full rate that a transfer of each of these routes gets."""
        key = tuple(sorted(flowing))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._fill(key)
        return known

    def _fill(self, flowing: tuple[int, ...]) -> dict[int, float]:
        rates: dict[int, float] = {}
        growing = set(flowing)
        room = {link: 1.0 for number in growing for link in self.loads[number]}
        level = 0.0
        while growing:
            demand: dict[str, float] = {}
            for number in growing:
                for link, load in self.loads[number].items():
                    demand[link] = demand.get(link, 0.0) + load
            step = min([room[link] / load for link, load in demand.items()], default=1.0)
            step = min(step, 1.0 - level)
            level += step
            full: set[str] = set()
            for link, load in demand.items():
                room[link] -= step * load
                if room[link] <= 1e-12:
                    full.add(link)
            stopped = [
                number
                for number in growing
                if level >= 1.0 - 1e-12 or not full.isdisjoint(self.loads[number])
            ]
            for number in stopped:
                rates[number] = level
                growing.remove(number)
        return rates
