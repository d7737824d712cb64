"""Which two homes can open a connection to each other through the routers of both: hole punching.

A router maps the port of a machine behind it to a port of its own, and filters what comes to that port. RFC 4787 and
RFC 5382 name what either depends on. Two ends that learned from a third one where the other is seen dial each other at
the same moment (RFC 5128). The module is pure."""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass

from peer.errors import UsageError


class DependsOn(enum.IntEnum):
    """What a mapping or a filter depends on (RFC 4787, sections 4.1 and 5)."""

    NOTHING = 0
    """Endpoint-independent."""
    ADDRESS = 1
    """Address-dependent."""
    ADDRESS_AND_PORT = 2
    """Address and port-dependent."""


@dataclass(frozen=True, slots=True)
class Nat:
    """A router that lets in only answers."""

    mapping: DependsOn
    filtering: DependsOn


NATS = {
    "endpoint-independent": Nat(DependsOn.NOTHING, DependsOn.ADDRESS),
    "port-restricted": Nat(DependsOn.NOTHING, DependsOn.ADDRESS_AND_PORT),
    "address-dependent": Nat(DependsOn.ADDRESS, DependsOn.ADDRESS),
    "symmetric": Nat(DependsOn.ADDRESS_AND_PORT, DependsOn.ADDRESS_AND_PORT),
}
"""The first is what RFC 4787 asks of a router that filters. The second is what Linux does when it masquerades."""


def nat_named(name: str) -> Nat:
    """Return the router of this name. Raises UsageError."""
    if name in NATS:
        return NATS[name]
    near = difflib.get_close_matches(name, NATS, 1, 0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no NAT {name!r}", f"{hint}Known: {', '.join(NATS)}.")


def can_punch(one: Nat | None, other: Nat | None) -> bool:
    """Return whether two ends can open a connection to each other. None: an end without a router.

    One first packet that arrives is enough, for its answer passes. It has to be sent to the right port, and the filter
    there has to let it in."""
    return _arrives(one, other) or _arrives(other, one)


def _arrives(sender: Nat | None, to: Nat | None) -> bool:
    """Return whether a first packet arrives. The receiver has sent one to where a third end saw the sender."""
    if to is None:
        return True
    if to.mapping is not DependsOn.NOTHING:
        return False  # the third end saw another port than the one that is open for us
    seen_right = sender is None or sender.mapping is DependsOn.NOTHING
    return seen_right or to.filtering is not DependsOn.ADDRESS_AND_PORT
