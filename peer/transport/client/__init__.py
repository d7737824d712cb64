"""The client side of the transport: connecting to other peers and making calls.

`call_client.CallClient` makes calls: begin there. `connections` is the pool of connections, `dialling` decides which
addresses may be dialled, and `channels` creates the gRPC channels. `streams` and `contribution` are the client sides of
the calls that carry payloads. `relay_fault_finder` determines whether a relay or a peer is at fault."""
