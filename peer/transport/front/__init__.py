"""The fronts: everything between the sockets of other machines and gRPC. Begin reading at `front.AcceptingFront`, for
callers, and at `dialling.DiallingFront`, for peers that are called.

The fronts bound what a connection may cost before one of its calls is admitted: places, handshakes, frames and bytes,
per address block. gRPC cannot do this. It does not count connections by address, enforces its limits on header blocks
only against clients that acknowledged its SETTINGS, and buffers what a client sends before it is authenticated.

    caller ── TCP ──> session: TlsEnd ── plaintext ──> FrameWalker ── frames that gRPC clients send ──> gRPC
                         │ first byte 0: the mark of a relay's circuit, see `peer.transport.relay`    (unix socket)

* `callers`: places and shares of each block in handshakes and frames, the memory of all callers, and the address behind
  each connection that gRPC sees.
* `session`: one connection. Both directions wait for their receiver, so no buffer grows without a bound. The target's
  end of a circuit is a session too, so that relays see only ciphertext.
* `dialling`: the same for a peer that gRPC's client calls. It dials, and its TLS accepts only the peer's key.
* `tls_end`: TLS 1.3 without I/O, for client and server.
* `inner_socket`: the unix socket between a front and gRPC, which has no name that other programs could connect to.
* `peer.protocol.wire.http2`: checks HTTP/2 frames, without I/O.

A frame that gRPC never sends closes the connection. Frames that its clients do send are counted, and so is DATA while
no call is admitted. A connection that exceeds its rate is paused, and closed when it exceeds the rate by far. A proven
key raises the rates but changes no check, because keys cost nothing. The HPACK table keeps its size, because without it
calls would take three times as many bytes; instead a header block may have only a few fields, so that references cannot
inflate it much.

What gRPC has to send is bounded by the frames that request it: streams, PINGs, SETTINGS. A caller that reads nothing
blocks gRPC's writes, and gRPC's own keepalive closes it."""
