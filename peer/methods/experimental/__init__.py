"""Methods of papers that no run of ours recommends yet. Only `peer.methods.registry` may import from here."""
