"""What this peer knows and believes about the other peers of the run, and how it learns it.

`peer_table.py` holds the known peers; begin reading there. `failure_detector.py` decides which of them no longer
answer, `reputation.py` which are in good standing, `slow_peers.py` which are slow. `reachability.py`,
`relay_reservations.py` and `key_watch.py` are about this peer itself. `peer_exchange.py`, `statement_sync.py`,
`pair_receipts.py` and `summary_sender.py` exchange records, the operator's statements, receipts and summaries with
others. The package uses the transport and the directory through `peer.ports` and knows nothing of rounds. Rules without
I/O are in `peer.protocol.swarm`, `peer.protocol.pair` and `peer.protocol.policy`."""
