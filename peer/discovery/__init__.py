"""How peers of a run find each other: signed records in a DHT, multicast in the local network, and addresses cached on
disk.

`directory.py` implements `peer.ports.directory.Directory`; begin reading there. `keys.py` and `validator.py` define
where records lie in the DHT and which ones a node admits, `record_store.py` holds the records that were found, and
`dht_node/` runs the DHT node (hivemind and p2pd). `lan.py` finds peers in the own network. `address_cache.py` and
`ticket_entries.py` keep addresses for later starts and for tickets, and `multiaddr.py` parses them. The package knows
nothing of rounds or exchanges."""
