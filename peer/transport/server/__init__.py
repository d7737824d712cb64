"""The server side of the transport: admitting callers and serving their calls.

`listener` opens the server and connects every call to its handler: begin there. Every call first passes `admission`
(tokens, reputation, `rate_limits`, `call_places`, `read_slots`). `service` serves swaps and pieces of state,
`group_service` contributions, and the small calls are in `peer.transport.calls`."""
