"""Proof and measure of transfers between meshes, apart from the compiler that plans them.

`execute` carries the steps of a transfer out on NumPy arrays, `prove` shows that every device ends
with the right bytes, `Network.simulate` says what the steps take on the links of a cluster, and
`least_slow_bytes` and `least_seconds` bound what any plan can reach.
"""

from alpa_runtime.execution.reference_reshard import execute, prove

from alpa_mlir.reshard.bounds import least_seconds, least_slow_bytes
from alpa_mlir.reshard.network import Network, TransferTimes

__all__ = [
    "Network",
    "TransferTimes",
    "execute",
    "least_seconds",
    "least_slow_bytes",
    "prove",
]
