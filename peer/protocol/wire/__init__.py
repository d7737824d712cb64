"""Framing of bytes on the wire: `frames` and `payload` (payloads of exchanges), `fields` (canonical encoding of signed
values), and `http2` (check of the other end's HTTP/2). Begin with `frames`."""
