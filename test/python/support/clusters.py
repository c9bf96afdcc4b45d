"""Clusters whose links make solvers choose what a test is about."""

from __future__ import annotations

from alpa_mlir import Cluster


def round_figures(devices: int) -> Cluster:
    """Communication at a price that makes the solver mix kinds of parallelism."""
    return _with_links("round-figures", devices, "4e9")


def slow_links(devices: int) -> Cluster:
    """Links so slow that gradients had better not be summed in every micro-batch."""
    return _with_links("slow-links", devices, "4e8")


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
