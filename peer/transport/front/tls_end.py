"""One end of a TLS 1.3 connection without I/O: converts between ciphertext and plaintext."""

from __future__ import annotations

import contextlib
import ssl
from typing import cast

from peer.transport.tls import ALPN

RECORD_HEADER = 5
CHANGE, ALERT, HANDSHAKE, APPLICATION = 20, 21, 22, 23
MAX_RECORD = 2**14 + 256
"""Largest body of a record in bytes (RFC 8446, section 5.2)."""
PIECE = 2**16
"""Ciphertext passed to OpenSSL at a time. OpenSSL's buffer grows to that size and never shrinks."""
MAX_GREETING = 2**14
"""Largest handshake of a caller in bytes of ciphertext. gRPC's has less than 2 KiB."""
SILENT = 16
"""Encrypted records without data that are allowed, such as key updates. gRPC sends the end of its handshake, and an
alert."""


class TlsRefused(Exception):
    """The other end violates the limits, or does not use TLS as gRPC does. Its connection has to be closed."""


class TlsEnd:
    """The TLS state of one connection. After each call, `outgoing` returns what TLS itself has to send."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """`server_name`: name of the server, for a client; None: this end is the server."""
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_name is None, server_hostname=server_name)
        self.established = False
        """Whether the handshake is complete."""
        self.ended = False
        """Whether the other end has closed its direction."""
        self._header = bytearray()
        """Bytes received of the header of the current record."""
        self._body = 0
        """Bytes of the current record still to come."""
        self._complete = 0
        """Complete records that are not decrypted yet."""
        self._greeting = 0
        self._silent = -SILENT
        """Encrypted records without data, minus those that are allowed."""

    def begin(self) -> None:
        """Start the handshake, as the client."""
        self._handshake()

    def outgoing(self) -> bytes:
        """Return what TLS itself has to send: a handshake message, an alert, or the answer to a key update."""
        return self._out.read() if self._out.pending else b""

    def receive(self, data: memoryview, into: memoryview) -> int:
        """Decrypt `data` into `into`, which must have room for it and one more record. Return the bytes of plaintext.

        Raises TlsRefused."""
        filled = 0
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._walk(piece)
            self._in.write(piece)
            if not self.established and not self._handshake():
                continue
            filled += self._read(into[filled:])
            if self._silent > 0:
                raise TlsRefused("too many records without data")
        return filled

    def _read(self, into: memoryview) -> int:
        """Decrypt the complete records. One call of OpenSSL per record, as it raises an error when it runs out of
        records."""
        filled = 0
        try:
            while self._complete > 0:
                self._complete -= 1
                nbytes = cast(int, self._tls.read(MAX_RECORD, into[filled:]))
                if not nbytes:
                    self.ended = True
                    break
                filled += nbytes
                self._silent -= 1
        except ssl.SSLWantReadError:  # some records contained no data
            self._complete = 0
        except ssl.SSLError as error:
            raise TlsRefused(str(error)) from None
        return filled

    def encrypt(self, data: memoryview) -> bytes:
        """Return the ciphertext of `data`."""
        while data:  # OpenSSL writes one record at a time
            data = data[self._tls.write(data) :]
        return self._out.read()

    def close(self) -> bytes:
        """Return the alert that closes this direction; empty when there is no connection to close."""
        if self.established:
            with contextlib.suppress(ssl.SSLError):  # the other end's alert is still missing, or the connection broke
                self._tls.unwrap()
        return self.outgoing()

    def _handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsRefused(str(error)) from None
        if self._tls.selected_alpn_protocol() != ALPN:
            raise TlsRefused("it does not speak HTTP/2")
        self.established = True
        return True

    def _walk(self, data: memoryview) -> None:
        """Parse the record headers in `data`, and count complete records. Raises TlsRefused for an invalid header."""
        if not self.established:
            if self._greeting > MAX_GREETING:
                raise TlsRefused("too long a handshake")
            self._greeting += len(data)
        pos, size = 0, len(data)
        while True:
            step = min(self._body, size - pos)
            pos += step
            self._body -= step
            if self._body:
                return
            self._complete += step > 0
            if pos >= size:
                return
            if self._header or size - pos < RECORD_HEADER:
                step = min(RECORD_HEADER - len(self._header), size - pos)
                self._header += data[pos : pos + step]
                pos += step
                if len(self._header) < RECORD_HEADER:
                    return
                kind, length = self._header[0], self._header[3] << 8 | self._header[4]
                self._header.clear()
            else:
                kind, length = data[pos], data[pos + 3] << 8 | data[pos + 4]
                pos += RECORD_HEADER
            if not CHANGE <= kind <= APPLICATION or length > MAX_RECORD or not length:
                raise TlsRefused("this is no record of TLS 1.3")
            self._body = length
            self._silent += kind == APPLICATION
