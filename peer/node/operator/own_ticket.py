"""Makes the ticket of a run on its operator's node."""

from __future__ import annotations

from pathlib import Path

from peer.errors import UsageError
from peer.node.open import OpenNode
from peer.run.home import write_whole
from peer.run.ticket import MAX_ADDRESSES, Ticket


def own_ticket(node: OpenNode) -> str:
    """Return the run's ticket. It lists this node and the other nodes of the options, so that any of them may be down.

    Raises UsageError when the node knows no address of its own."""
    ours, others = _own_addresses(node), node.local.options.initial_peers
    return Ticket(node.local.run_id, tuple(dict.fromkeys((*ours, *others)))[:MAX_ADDRESSES]).encode()


def print_ticket(node: OpenNode, ticket: str, ticket_file: Path | None, *, custom: bool = False) -> None:
    """Print the ticket, and write it to `ticket_file`. `custom`: the run's model is trained by the peers' own loops
    only. Raises HomeUnusable when the file cannot be written."""
    if all("/ip4/127." in a or "/ip6/::1/" in a for a in _own_addresses(node)):
        node.local.say("only this machine can use the ticket: no other address was found (--announce-maddrs gives one)")
    if ticket_file is not None:
        write_whole(ticket_file, f"{ticket}\n".encode())
    node.local.say(f"run {node.local.run_id.hex()[:16]} is served by {node.local.me}")
    if custom:
        node.local.say(f"others join in their own training loops, with this ticket:\n\n    {ticket}\n")
    else:
        node.local.say(f"others join with:\n\n    peer join {ticket}\n")


def _own_addresses(node: OpenNode) -> list[str]:
    addresses = list(node.local.options.announce_maddrs) or node.directory.addresses()
    ours = [a if "/p2p/" in a else f"{a}/p2p/{node.local.me}" for a in addresses]
    if not ours:
        raise UsageError("no address to put into the ticket", "Give one with --announce-maddrs.")
    return ours
