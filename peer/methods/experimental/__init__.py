"""Methods from papers that are not recommended yet. Only `peer.methods.registry` may import them."""
