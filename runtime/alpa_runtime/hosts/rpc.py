"""Calls of a driver to one worker process: how the two connect, messages between them, and how the
process answers.

Run: python -m alpa_runtime.hosts.rpc WORK_DESCRIPTOR BESIDE_DESCRIPTOR [--die-with-parent]
     [--address IP]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn

from alpa_runtime.errors import TransportError, WorkerError, WorkerLostError
from alpa_runtime.hosts.guard import die_with_parent
from alpa_runtime.hosts.process import CONTROL, HostProcess, portable_error
from alpa_runtime.transport.connection import Address, Reception, dial, host_identity, listen
from alpa_runtime.transport.framing import PROTOCOL
from alpa_runtime.transport.shared_memory import aligned

# Bytes of the pickle, number of large buffers that follow it; then the bytes of each of them.
_HEAD = struct.Struct("<QI")
_SIZE = struct.Struct("<Q")
_LARGE = 1 << 14  # Smaller buffers are part of the pickle.
_READ_AT_ONCE = 1 << 16


class MessageStream:
    """One end of a connected socket. Any thread may send; one at a time receives.

    Args:
        connected: closed by `close`.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader: Any = connected.makefile("rb", _READ_AT_ONCE)
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message; waits while the socket is full.

        Raises:
            OSError: the other end is gone.
            Exception: the message cannot be pickled; nothing was sent.
            BaseException: such as KeyboardInterrupt, in the middle of it: both ends are ended, as
                nobody knows where the next message would begin.
        """
        large: list[memoryview] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= _LARGE:
                large.append(view)
            return view.nbytes < _LARGE

        body = pickle.dumps(message, protocol=5, buffer_callback=is_small)
        sizes = b"".join(_SIZE.pack(view.nbytes) for view in large)
        with self._sending:
            try:
                self._socket.sendall(_HEAD.pack(len(body), len(large)) + sizes + body)
                for view in large:
                    self._socket.sendall(view)
            except BaseException:
                self.end()
                raise

    def receive(self) -> Any:
        """Wait for the next message. Its large arrays lie in aligned memory of their own.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        length, count = _HEAD.unpack(self._exactly(_HEAD.size))
        sizes = [_SIZE.unpack(self._exactly(_SIZE.size))[0] for _ in range(count)]
        body = self._exactly(length)
        buffers = [aligned(size) for size in sizes]
        for buffer in buffers:
            if self._reader.readinto(buffer) < buffer.nbytes:
                raise EOFError
        return pickle.loads(body, buffers=buffers)

    def _exactly(self, size: int) -> bytes:
        found: bytes = self._reader.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def end(self) -> None:
        """Both ends learn that nothing more comes; whoever waits here is woken."""
        with contextlib.suppress(OSError):  # The other end was faster.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; nobody may be waiting in it."""
        self._reader.close()
        self._socket.close()


# Calls of a driver to one worker process: how the two connect, and how the process answers.

_BESIDE_THREADS = 4


@dataclass(frozen=True)
class Streams:
    """The two ways to one process.

    Attributes:
        work: for what is done in order, one call after the other.
        beside: for what is answered meanwhile.
    """

    work: socket.socket
    beside: socket.socket


class RpcClient:
    """The driver's end of a worker process.

    Args:
        how_it_ended: waits, for a bounded time, to learn why the process is gone, in words, and
            whether for want of memory; called once its connection has ended.
        where: names the process in errors.
    """

    def __init__(
        self, streams: Streams, how_it_ended: Callable[[], tuple[str, bool]], where: str
    ) -> None:
        self.where = where
        self._how_it_ended = how_it_ended
        self._gone: str | None = None
        self._out_of_memory = False
        self._lock = threading.Lock()
        self._work = Lane(MessageStream(streams.work), self._ended)
        self._beside = Lane(MessageStream(streams.beside), self._ended)
        self._work.start()  # Both are there: the end of the one is that of the other.
        self._beside.start()

    def send(self, method: str, args: tuple[Any, ...], beside: bool) -> Future[Any]:
        """Start a call; a future whose result is what `HostProcess.answer` gives.

        Args:
            beside: it is answered while others are under way.
        """
        return (self._beside if beside else self._work).send(method, args)

    def expect_end(self, why: str) -> None:
        """The process is going to be ended, for this reason."""
        if self._gone is None:
            self._gone = why

    def end(self) -> None:
        """End the connection: the process ends when it sees that, and calls under way raise."""
        self.expect_end("its connection was closed")
        self._end_streams()

    def _end_streams(self) -> None:
        self._work.end()
        self._beside.end()

    def _ended(self, why: str | None) -> WorkerLostError:
        with self._lock:
            if self._gone is None:
                self._gone, self._out_of_memory = (why, False) if why else self._how_it_ended()
                self._end_streams()  # With one of them the process is of no use.
        return WorkerLostError(self._gone, where=self.where, out_of_memory=self._out_of_memory)


class Lane:
    """One stream, and the calls that wait for its answers.

    Args:
        ended: called once with why the stream cannot be read on, or None; gives the error of all
            calls that wait then, and of those that come later.
    """

    def __init__(
        self, stream: MessageStream, ended: Callable[[str | None], WorkerLostError]
    ) -> None:
        self._stream = stream
        self._ended = ended
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: dict[int, Future[Any]] = {}
        self._error: WorkerLostError | None = None

    def start(self) -> None:
        """Begin to read answers."""
        threading.Thread(target=self._read, name="alpa-mlir answers", daemon=True).start()

    def send(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        """Start a call; a future of whether it succeeded, and of its result or error."""
        future: Future[Any] = Future()
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            self._count += 1
            number = self._count
            self._waiting[number] = future
        try:
            self._stream.send((number, method, args))
        except OSError:
            pass  # The reader sees the same and tells all who wait.
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return future

    def end(self) -> None:
        """Both ends learn that nothing more comes."""
        self._stream.end()

    def _read(self) -> None:
        why: str | None = None
        try:
            while True:
                number, succeeded, result = self._stream.receive()
                future = self._waiting.pop(number, None)
                if future is not None:
                    future.set_result((succeeded, result))
                del future, result
        except (EOFError, OSError):
            pass
        except Exception as error:  # No room for it, or nothing here that it can be made of.
            why = f"its answer cannot be read: {type(error).__name__}: {error}"
        error = self._ended(why)
        with self._lock:
            self._error = error
            waiting = list(self._waiting.values())
        self._stream.close()
        for future in waiting:
            future.set_exception(error)


def answer_calls(streams: Streams, host: HostProcess, grace_seconds: float = 0.0) -> None:
    """Answer a driver's calls until its end of a stream is gone, then end this process.

    Calls of the one stream are done by one thread, which also reads them: nothing has to be handed
    to it. This thread reads the other one.

    Args:
        grace_seconds: for somebody else to end this process.
    """
    work, beside = MessageStream(streams.work), MessageStream(streams.beside)

    def leave() -> NoReturn:
        time.sleep(grace_seconds)
        os._exit(0)  # JAX would wait for the others of its world.

    def answer(stream: MessageStream, number: int, method: str, args: tuple[Any, ...]) -> None:
        succeeded, result = host.answer(method, args)
        try:
            try:
                stream.send((number, succeeded, result))
            except OSError:
                raise
            except Exception as error:  # It cannot be pickled.
                stream.send((number, False, portable_error(error)))
        except OSError:
            leave()
        except BaseException as error:
            _give_up(error)

    def do_work() -> None:
        try:
            while True:
                answer(work, *work.receive())
        except (EOFError, OSError):
            leave()
        except BaseException as error:
            _give_up(error)

    try:
        control = ThreadPoolExecutor(1, "alpa-mlir control")
        others = ThreadPoolExecutor(_BESIDE_THREADS, "alpa-mlir beside")
        threading.Thread(target=do_work, name="alpa-mlir work", daemon=True).start()
        while True:
            number, method, args = beside.receive()
            pool = control if method in CONTROL else others
            pool.submit(answer, beside, number, method, args)
    except (EOFError, OSError):
        leave()
    except BaseException as error:
        _give_up(error)


def _give_up(error: BaseException) -> None:
    """An answer that never comes would keep the driver waiting; the end of the process does not."""
    try:
        print(f"alpa_mlir worker {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(OUT_OF_MEMORY if isinstance(error, MemoryError) else 1)


OUT_OF_MEMORY = 77  # The exit status of a process that could not even answer, for want of memory.


# The worker's end, and the driver's two.
_WORKER, _WORK, _BESIDE = range(3)


@dataclass(frozen=True)
class DriverEnds:
    """Addresses of the driver's two ends, as text; it listens at neither."""

    work: str
    beside: str

    @staticmethod
    def make(encrypt: bool = False) -> DriverEnds:
        """Ends with new keys, which can dial by a local socket and by TCP.

        Args:
            encrypt: speak TLS over TCP.
        """
        host = host_identity()
        work, beside = (
            Address(PROTOCOL, end, secrets.token_hex(16), host, "driver", "", -1, name, encrypt)
            for end, name in ((_WORK, "the driver"), (_BESIDE, "the driver's pings"))
        )
        return DriverEnds(work.to_text(), beside.to_text())


class Entrance:
    """Where a worker process waits for its driver.

    Args:
        ip: of this host, where others reach it.

    Raises:
        TransportError: nobody can listen there.
    """

    def __init__(self, ip: str, driver: DriverEnds) -> None:
        ends = {
            rank: Address.from_text(text, rank)
            for rank, text in ((_WORK, driver.work), (_BESIDE, driver.beside))
        }
        own, self._listeners = listen(
            _WORKER, ip, local=True, tcp=True, name="the worker", encrypt=ends[_WORK].tls
        )
        self.address: str = own.to_text()
        self._reception = Reception(own, self._listeners, ends)

    def wait(self, seconds: float) -> Streams:
        """The driver's streams; nobody else can connect, nor a second time.

        Raises:
            TransportError: it did not come in time.
        """
        try:
            came = self._reception.wait(time.monotonic() + seconds)
        finally:
            for listener in self._listeners:
                listener.close()
        return Streams(came[_WORK], came[_BESIDE])


def connect(driver: DriverEnds, address: str, seconds: float, where: str) -> Streams:
    """The driver's side.

    Args:
        address: what the worker's `Entrance` says.
        where: names the worker.

    Raises:
        WorkerError: it cannot be reached, or another process answers.
    """
    deadline = time.monotonic() + seconds
    opened: list[socket.socket] = []
    worker = Address.from_text(address, _WORKER)
    try:
        for end, text in ((_WORK, driver.work), (_BESIDE, driver.beside)):
            opened.append(dial(Address.from_text(text, end), worker, deadline))
    except TransportError as error:
        for stream in opened:
            stream.close()
        place = f"{worker.ip}:{worker.port}"
        raise WorkerError(
            f"the driver cannot connect to its process at {place}: {error.what}",
            where=where,
            fix="let the driver's host connect to the workers' hosts by TCP, at any port",
        ) from None
    return Streams(*opened)


# The main program of a worker process that no service started: reads calls from two sockets.


def main(arguments: Sequence[str], host: HostProcess | None = None) -> None:
    """Answer calls until the other end of a socket is gone, then end at once.

    Args:
        arguments: descriptors of the sockets of `Streams`; whether to end when the thread that
            started this process does; where other workers reach this machine.
        host: what answers.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=int)
    parser.add_argument("beside", type=int)
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--address", default="127.0.0.1")
    options = parser.parse_args(arguments)
    if options.die_with_parent:
        die_with_parent()
    streams = Streams(socket.socket(fileno=options.work), socket.socket(fileno=options.beside))
    answer_calls(streams, host or HostProcess(options.address))


if __name__ == "__main__":
    main(sys.argv[1:])
