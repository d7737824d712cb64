"""The fronts: everything between the sockets of other machines and gRPC. Begin reading at `front.AcceptingFront`, for
callers, and at `dialling.DiallingFront`, for peers that are called.

What a connection may cost before a call of it is admitted is bounded here, in places, handshakes, frames and bytes, by
address block. gRPC cannot do that. It counts no connections by address, holds its limits of header blocks only against
clients that acknowledged its SETTINGS, and keeps what a client sends before anybody asks who that is.

    caller ── TCP ──> session: TlsEnd ── plaintext ──> FrameWalker ── frames that gRPC clients send ──> gRPC
                         │ first byte 0: the mark of a relay's circuit, see `peer.transport.relay`    (unix socket)

* `callers`: places by block, the shares of each block in handshakes and frames, what callers hold together, and who is
  behind each connection that gRPC sees.
* `session`: one connection. Both directions wait for their receiver, and no buffer grows without a bound. A circuit's
  called end is a session too, so that relays see only ciphertext.
* `dialling`: the same towards a peer that gRPC's client calls. It dials, and its TLS accepts the peer's key alone.
* `tls_end`: TLS 1.3 without I/O, of either side.
* `inner_socket`: the unix socket between a front and gRPC, which has no name that anybody else could call.
* `peer.protocol.wire.http2`: the walk of the frames, pure.

A frame that gRPC never sends ends the connection. Frames that its clients send are counted, and so is DATA while
no call is admitted: a connection that overdraws waits, and is hung up on when it overdraws by far. A proven key raises
the counts and changes nothing of the walk, as keys are free. HPACK's table keeps its size, because calls would take
three times as many bytes without one; a header block has few fields instead, so that no reference is worth much.

What gRPC has to send is bounded by what may ask for it: streams, PINGs, SETTINGS. A caller that reads nothing makes
gRPC wait, and gRPC's own keepalive ends it."""
