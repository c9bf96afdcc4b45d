"""TLS 1.3 for TCP streams, bound to the key of the end that listens.

That end has a certificate of its process, which the program `openssl` makes and nobody signs. Once
the handshake has shown that it has the certificate's private key, it shows that it knows its end's
key: an HMAC of the certificate's digest (the channel binding `tls-server-end-point` of RFC 5929).
Only then does the other end say anything. Somebody in between has another certificate, and nothing
that fits to it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from alpa_runtime.errors import TransportError

PROOF_SIZE = hashlib.sha256().digest_size
_PURPOSE = b"alpa-mlir tls-server-end-point"
_CHUNK = 1 << 17  # Bytes that are encrypted, or read, at a time.
_LONGEST_HANDSHAKE = 1 << 16  # Bytes that the other end may send before it is done.
_OPENSSL_SECONDS = 30.0
_OPENSSL = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650"
_WHAT = [*_OPENSSL.split(), "-subj", "/CN=alpa-mlir", "-keyout", "-", "-out", "-"]
_view: Any = memoryview


@cache
def listening_context() -> tuple[ssl.SSLContext, bytes]:
    """One with this process's certificate, made once; and the certificate.

    Raises:
        TransportError: the program `openssl` is missing, or fails.
    """
    where, fix = "TLS", "install openssl, or do without encrypt"
    try:
        made = subprocess.run(
            _WHAT, stdin=subprocess.DEVNULL, capture_output=True, timeout=_OPENSSL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransportError(
            f"the program openssl makes no certificate: {error}", where=where, fix=fix
        ) from None
    if made.returncode:
        said = made.stderr.decode(errors="replace").strip()[-300:]
        raise TransportError(f"openssl makes no certificate: {said}", where=where, fix=fix)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    memory = os.memfd_create("alpa-mlir certificate")  # The key is on no disk.
    try:
        os.write(memory, made.stdout)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    except (OSError, ssl.SSLError) as error:
        raise TransportError(
            f"openssl's certificate cannot be used: {error}", where=where, fix=fix
        ) from None
    finally:
        os.close(memory)
    text = made.stdout.decode()
    return context, ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) :])


@cache
def dialing_context() -> ssl.SSLContext:
    """Whose certificate it is, the proof shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _proof(key: str, certificate: bytes) -> bytes:
    digest = hashlib.sha256(certificate).digest()
    return hmac.new(key.encode(), _PURPOSE + digest, hashlib.sha256).digest()


class TlsStream(socket.socket):
    """A connected TCP socket whose bytes are encrypted.

    One thread may read while another one writes. Bytes that `send` and `sendmsg` count as taken
    are in the socket, as with any other: what was encrypted and has no room there is counted once
    it has, so who has to go on must do so with the same bytes.

    Args:
        stream: connected; it is taken over.
        key: of the end that listens.
        listening: whether that is this end.

    Raises:
        TransportError: a certificate is needed, and cannot be made.
    """

    def __init__(self, stream: socket.socket, key: str, *, listening: bool) -> None:
        context, self._own = listening_context() if listening else (dialing_context(), b"")
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=listening)
        self._key = key
        self._lock = threading.Lock()  # Of the above, which reading and writing threads share.
        self._scratch = memoryview(bytearray(_CHUNK))
        self._pending = b""  # Encrypted, for which the socket has had no room,
        self._owed = 0  # and how many bytes that was before.
        self._heard = 0
        self.deadline: float | None = None  # Of `time.monotonic`, for all that is read.
        self.is_secure: bool = False
        timeout = stream.gettimeout()
        super().__init__(stream.family, stream.type, stream.proto, fileno=stream.detach())
        self.settimeout(timeout)

    def shake_hands(self) -> None:
        """Make it secure: agree on keys, and show or check the proof.

        Raises:
            BlockingIOError, TimeoutError: not yet; call again.
            TransportError: the other end speaks no TLS, or does not know the key.
        """
        while not self.is_secure:
            try:
                self._ssl.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush_handshake()
            except ssl.SSLError as error:
                reason = str(error.reason or error).lower().replace("_", " ")
                raise TransportError(
                    f"it does not speak TLS as expected ({reason})",
                    fix="let all ends encrypt, or none",
                ) from None
            self._be_in_time()
            count = super().recv_into(self._scratch)
            self._heard += count
            if count == 0 or self._heard > _LONGEST_HANDSHAKE:
                raise TransportError("closed the connection while greeting")
            self._incoming.write(self._scratch[:count])
        self._flush_handshake()
        self.is_secure = True

    def _be_in_time(self) -> None:
        if self.deadline is not None:
            self.settimeout(max(0.001, self.deadline - time.monotonic()))

    def _flush_handshake(self) -> None:
        if self._outgoing.pending:
            super().sendall(self._outgoing.read())

    def show_proof(self) -> None:
        """As the end that listens."""
        self.sendall(_proof(self._key, self._own))

    def is_proof(self, shown: bytes) -> bool:
        """Whether the end that listens knows its key."""
        theirs = self._ssl.getpeercert(binary_form=True)
        return theirs is not None and hmac.compare_digest(shown, _proof(self._key, theirs))

    def send_in_clear(self, data: bytes) -> None:
        """To an end that speaks no TLS."""
        super().send(data)

    # --- Writing -------------------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0, /) -> int:
        return self.sendmsg([data], (), flags)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        left = _view(data).cast("B")
        while left:
            left = left[self.sendmsg([left], (), flags) :]

    def sendmsg(
        self,
        buffers: Iterable[Any],
        ancdata: Iterable[Any] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """As a socket's, without files."""
        taken = 0
        try:
            if self._pending:
                taken += self._flush(flags)
            for chunk in _chunks([_view(b).cast("B") for b in buffers], taken):
                with self._lock:
                    for part in chunk:
                        while part:
                            part = part[self._ssl.write(part) :]
                    self._pending = self._outgoing.read()
                self._owed = sum(map(len, chunk))
                taken += self._flush(flags)
        except BlockingIOError:
            if not taken:
                raise
        return taken

    def _flush(self, flags: int) -> int:
        """How many bytes this was before they were encrypted."""
        left = memoryview(self._pending)
        try:
            while left:
                left = left[super().send(left, flags) :]
        finally:
            self._pending = bytes(left)
        owed, self._owed = self._owed, 0
        return owed

    # --- Reading -------------------------------------------------------------------------------

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        room = bytearray(size)
        return bytes(room[: self.recv_into(room)])

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        room = _view(buffer).cast("B")
        return self._fill(room[:nbytes] if nbytes else room, wait=True)

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, Any]:
        """As a socket's; no files come."""
        count = 0
        for buffer in buffers:
            room = _view(buffer).cast("B")
            found = self._fill(room, wait=count == 0)
            count += found
            if found < len(room):
                break
        return count, [], 0, None

    def _fill(self, room: memoryview, wait: bool) -> int:
        """Read what is there; wait for the first byte of it, if so. 0 at the end."""
        there = 0
        while there < len(room):
            try:
                with self._lock:
                    count = self._ssl.read(len(room) - there, room[there:])
            except ssl.SSLWantReadError:
                if there or not wait:
                    break
                self._be_in_time()
                count = super().recv_into(self._scratch)
                if count == 0:  # As any other socket's end: frames say what is whole.
                    return 0
                with self._lock:
                    self._incoming.write(self._scratch[:count])
                continue
            except ssl.SSLZeroReturnError:
                break
            if count == 0:
                break
            there += count
        return there


def _chunks(parts: list[memoryview], skip: int) -> Iterable[list[memoryview]]:
    """Parts joined or cut to what is encrypted at a time."""
    chunk: list[memoryview] = []
    room = _CHUNK
    for part in parts:
        begin = min(skip, len(part))
        skip -= begin
        while begin < len(part):
            piece = part[begin : begin + room]
            chunk.append(piece)
            begin += len(piece)
            room -= len(piece)
            if not room:
                yield chunk
                chunk, room = [], _CHUNK
    if chunk:
        yield chunk


def decrypted(stream: TlsStream) -> socket.socket:
    """A local socket, for another process, that carries what the stream does; two threads carry it
    until one of both ends."""
    here, far = socket.socketpair()
    done = threading.Semaphore(0)

    def carry(source: socket.socket, target: socket.socket) -> None:
        room = memoryview(bytearray(_CHUNK))
        with suppress(OSError):
            while count := source.recv_into(room):
                target.sendall(room[:count])
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        done.release()

    def close() -> None:
        for _ in range(2):
            done.acquire()
        stream.close()
        here.close()

    for target, arguments in ((carry, (stream, here)), (carry, (here, stream)), (close, ())):
        threading.Thread(target=target, args=arguments, name="alpa-mlir tls", daemon=True).start()
    return far


def secure(stream: socket.socket, key: str, deadline: float) -> TlsStream:
    """The stream of an end that dials, once the other one has shown that it knows its key.

    Args:
        deadline: of `time.monotonic`.

    Raises:
        TransportError: it does not, or speaks no TLS; the stream is closed.
        OSError: the connection broke, or it took too long.
    """
    made = TlsStream(stream, key, listening=False)
    made.deadline = deadline
    try:
        shown = b""
        made.shake_hands()
        while len(shown) < PROOF_SIZE:
            more = made.recv(PROOF_SIZE - len(shown))
            if not more:
                raise TransportError("closed the connection while greeting")
            shown += more
        if not made.is_proof(shown):
            raise TransportError("another end answers there: it does not know the key")
    except BaseException:
        made.close()
        raise
    return made
