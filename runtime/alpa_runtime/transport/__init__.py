"""How workers hand arrays to each other: one interface, chosen by where the two ends are.

Needs NumPy and the standard library only.
"""

from alpa_runtime.transport.connection import make_transport
from alpa_runtime.transport.interface import Sending, Transport, connect_in_process

__all__ = ["Sending", "Transport", "connect_in_process", "make_transport"]
