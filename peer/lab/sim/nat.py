"""Hole punching: which two homes can open a connection to each other through both their routers.

A router maps the port of a machine behind it to a port of its own, and filters the packets that arrive there. RFC 4787
and RFC 5382 classify what mapping and filter depend on. To punch, both ends learn from a third peer at which address
the other is seen, and dial each other at the same moment (RFC 5128). The module is pure."""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass

from peer.errors import UsageError


class DependsOn(enum.IntEnum):
    """What a router's port mapping or filter depends on (RFC 4787, sections 4.1 and 5)."""

    NOTHING = 0
    """Endpoint-independent: the same for all remote ends."""
    ADDRESS = 1
    """Address-dependent: different for each remote address."""
    ADDRESS_AND_PORT = 2
    """Address and port-dependent: different for each remote address and port."""


@dataclass(frozen=True, slots=True)
class Nat:
    """A router that lets in packets only in answer to packets that left."""

    mapping: DependsOn
    filtering: DependsOn


NATS = {
    "endpoint-independent": Nat(DependsOn.NOTHING, DependsOn.ADDRESS),
    "port-restricted": Nat(DependsOn.NOTHING, DependsOn.ADDRESS_AND_PORT),
    "address-dependent": Nat(DependsOn.ADDRESS, DependsOn.ADDRESS),
    "symmetric": Nat(DependsOn.ADDRESS_AND_PORT, DependsOn.ADDRESS_AND_PORT),
}
"""`endpoint-independent` is what RFC 4787 requires of a router that filters. `port-restricted` is how Linux
masquerades."""


def nat_named(name: str) -> Nat:
    """Return the router of this name. Raises UsageError for an unknown one."""
    if name in NATS:
        return NATS[name]
    near = difflib.get_close_matches(name, NATS, 1, 0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no NAT {name!r}", f"{hint}Known: {', '.join(NATS)}.")


def can_punch(one: Nat | None, other: Nat | None) -> bool:
    """Return whether two ends can open a connection to each other. None: an end without a router.

    One arriving first packet is enough, because the answer to it passes. The packet has to be sent to the right port,
    and the filter of the receiving router has to let it in."""
    return _arrives(one, other) or _arrives(other, one)


def _arrives(sender: Nat | None, to: Nat | None) -> bool:
    """Return whether the first packet of `sender` arrives. The receiver has already sent a packet to the address at
    which a third peer sees the sender."""
    if to is None:
        return True
    if to.mapping is not DependsOn.NOTHING:
        return False  # the third peer saw another port than the one that is open for the sender
    seen_right = sender is None or sender.mapping is DependsOn.NOTHING
    return seen_right or to.filtering is not DependsOn.ADDRESS_AND_PORT
