"""Clusters whose links make solvers choose what a test is about."""

from __future__ import annotations

from alpa_mlir import Cluster


def round_figures(devices: int) -> Cluster:
    """Communication at a price that makes the solver mix kinds of parallelism."""
    return _with_links("round-figures", devices, "4e9")


def slow_links(devices: int) -> Cluster:
    """Links so slow that gradients had better not be summed in every micro-batch."""
    return _with_links("slow-links", devices, "4e8")


def small_hosts(
    hosts: int,
    devices: int,
    memory: int,
    *,
    bandwidth: float,
    latency: float = 2e-5,
    inside: tuple[float, float] = (4e9, 2e-6),
    name: str = "small",
) -> Cluster:
    """Equal hosts of small devices, so that a few layers are a lot of work.

    Args:
        memory: bytes of a device.
        bandwidth, latency: between hosts, in bytes a second and seconds.
        inside: the same within a host.
    """
    return Cluster.from_dict(
        {
            "name": name,
            "device_types": {
                "d": {
                    "memory_bytes": memory,
                    "memory_bandwidth": 1e10,
                    "peak_flops": {"float32": 2e10},
                }
            },
            "hosts": {"count": hosts, "devices": devices, "device_type": "d"},
            "links": {
                "intra_host": {"bandwidth": inside[0], "latency": inside[1]},
                "inter_host": {"bandwidth": bandwidth, "latency": latency},
            },
        }
    )


def _with_links(name: str, devices: int, bandwidth: str) -> Cluster:
    return Cluster.from_yaml(f"""
name: {name}
device_types:
  virtual: {{memory_bytes: 2GiB, memory_bandwidth: 1e10, peak_flops: {{float32: 2e10}}}}
hosts: {{count: 1, devices: {devices}, device_type: virtual}}
links:
  intra_host: {{bandwidth: {bandwidth}, latency: 1e-7}}
  inter_host: {{bandwidth: 1e9, latency: 1e-4}}
""")
