"""Messages and payload transfers, shared by client and server.

`payload_stream` sends and receives payloads, and swaps them: begin there. `resumption` continues a transfer after a
broken connection, `striping` spreads a swap over several streams, and `pacing` enforces bandwidth caps. `validation`
and `group_messages` decode messages of other peers, and `refusals` encodes errors. Frames and their checksums are
defined in `peer.protocol.wire`."""
