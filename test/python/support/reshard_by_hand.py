"""Plans of transfers that the planner has no part in: by hand, and by two simple planners."""

from __future__ import annotations

from alpa_mlir.simulator.transfer_network import Network
from alpa_runtime.plan.reshard import Broadcast, SendTile, Tile, intersect, read_step
from transfers.cases import make_cluster

NEAR = {"bandwidth": 100.0, "latency": 0.5}
FAR = {"bandwidth": 10.0, "latency": 2.0}


def network(*hosts, near=NEAR, far=FAR):
    """Hosts of (devices, adapters)."""
    links = {"intra_host": near, "inter_host": far}
    return Network(
        make_cluster([{"count": 1, "devices": d, "nics": n, "links": links} for d, n in hosts])
    )


def steps_of(text):
    return [read_step(line.strip()) for line in text.strip().splitlines()]


class Maker:
    """Makes plans step by step."""

    def __init__(self):
        self.steps, self.count, self.cuts = [], 0, {}

    def cut(self, device, box):
        if (device, box) not in self.cuts:
            self.cuts[device, box] = self.count
            self.steps.append(Tile(self.count, device, box))
            self.count += 1
        return self.cuts[device, box]

    def send(self, tile, device):
        self.steps.append(SendTile(self.count, tile, device))
        self.count += 1
        return self.count - 1

    def broadcast(self, tile, devices, chunks):
        tiles = tuple(range(self.count, self.count + len(devices)))
        self.steps.append(Broadcast(tiles, tile, tuple(devices), chunks))
        self.count += len(tiles)


def pieces_of(source, target):
    """(box, its holders, devices that want it) for each piece that some device lacks or keeps."""
    for held in sorted(set(source.values())):
        holders = [device for device, box in source.items() if box == held]
        for wanted in sorted(set(target.values())):
            box = intersect(held, wanted)
            if box is not None:
                yield box, holders, [device for device, b in target.items() if b == wanted]


def sends(case):
    """Every device gets what it wants straight from a holder, one on its host if there is any."""
    source, target = case.boxes(case.source), case.boxes(case.target)
    host = [place.host for place in Network(case.cluster).places]
    maker = Maker()
    for box, holders, wanting in pieces_of(source, target):
        for device in wanting:
            holder = min(holders, key=lambda h: (h != device, host[h] != host[device], h))
            tile = maker.cut(holder, box)
            if holder != device:
                maker.send(tile, device)
    return maker.steps


def chains(case, chunks=4):
    """A chain from holders on each host to all that lack the piece there; one for other hosts."""
    source, target = case.boxes(case.source), case.boxes(case.target)
    host = [place.host for place in Network(case.cluster).places]
    maker = Maker()
    for box, holders, wanting in pieces_of(source, target):
        ways = {}
        for device in wanting:
            if device in holders:
                maker.cut(device, box)
                continue
            near = [h for h in holders if host[h] == host[device]]
            ways.setdefault(near[0] if near else holders[0], []).append(device)
        for holder, devices in ways.items():
            order = sorted(devices, key=lambda d: (host[d] != host[holder], host[d], d))
            maker.broadcast(maker.cut(holder, box), order, chunks)
    return maker.steps
