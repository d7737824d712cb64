"""Interfaces (Protocols) between the layers, and the values in their signatures.

The rounds talk to the outside only through `Clock`, `Directory`, `Transport` and `Trainer`. Each has a real and an
in-memory implementation, so that the same peer runs in virtual time. Begin with `peer.ports.peer`."""
