"""Relays: closed peers are called over a third peer, which splices bytes and can read none of them."""
