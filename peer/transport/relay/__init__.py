"""Relays: a closed peer is called over a third peer, which forwards the encrypted bytes and cannot read them.

`relays.Relays` is one peer's use of relays: begin there. `caller` opens circuits, `reception` accepts them, and
`negotiation` and `punch` replace a circuit by a direct connection where both routers allow it. `tunnel` gives gRPC a
loopback address that leads over a circuit. `relay_server` is the relay itself, `throttle` its cap, and `wire` the bytes
at the start of a circuit. Which relay is reliable is decided in `peer.protocol.relay`."""
