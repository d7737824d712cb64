"""Communication between peers over gRPC.

`grpc_transport.GrpcTransport` is one peer's end, client and server: begin there. `calls` has one module per call, with
both its sides. `client` connects to other peers and makes calls; `server` admits callers and serves them. `wire` moves
payloads: framing, pacing, resumption, several streams. `front` terminates TLS and checks HTTP/2 frames before gRPC sees
them. `relay` reaches peers that cannot be dialled, and `port_mapping` asks the router to open a port.

The package knows nothing of rounds, outer steps or models. What a call does is decided by the `Handler` of
`peer.ports.handler`.

gRPC reads GRPC_ENABLE_FORK_SUPPORT once, when it is first imported. With fork support, starting a child process runs
gRPC's fork handlers, which log. No code here forks without exec, so fork support is disabled."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
