"""The main program of a worker process whose CPU devices are GPUs to NCCL, that of `fake_cupy`."""

from __future__ import annotations

import sys
import threading

import fake_cupy
from alpa_runtime.execution import transfers
from alpa_runtime.hosts.process import HostProcess
from alpa_runtime.hosts.rpc import main
from alpa_runtime.transport import device


class DeviceHost(HostProcess):
    """Counts messages."""

    def __init__(self, address):
        super().__init__(address)
        self.host_sends = 0

    def prepare(self, start):
        address = super().prepare(start)
        real = self._transport.send

        def send(to, tag, data):
            self.host_sends += tag < 1 << 63  # The others say what goes from device to device.
            return real(to, tag, data)

        self._transport.send = send
        return address

    def messages(self):
        """Sent from device to device, and through the host; threads that do so."""
        threads = [t.name for t in threading.enumerate() if "alpa-mlir device" in t.name]
        device = self._device_transport
        return (device.sent if device else 0), self.host_sends, len(threads)

    def stop_in_a_message(self):
        """The next message that NCCL brings here never comes."""
        fake_cupy.NcclCommunicator.recv = lambda *_: None
        fake_cupy.Event.synchronize = lambda self: threading.Event().wait()


if __name__ == "__main__":
    fake_cupy.install()
    transfers.LEAST_DEVICE_BYTES = 1
    device.DEVICE_BACKENDS = {"nccl": ("cpu",), "nixl": ("cpu",)}
    main(sys.argv[1:], DeviceHost("127.0.0.1"))
