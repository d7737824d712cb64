from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from peer.identity import Identity
from peer.node.operator.own_ticket import own_ticket, print_ticket
from peer.run.options import NodeOptions
from peer.run.ticket import Ticket


def test_a_second_bootstrap_puts_the_first_into_its_ticket_too(tmp_path: Path) -> None:
    me, other = Identity.generate().peer_id, Identity.generate().peer_id
    own, first = f"/ip4/192.0.2.2/tcp/4810/p2p/{me}", f"/ip4/192.0.2.1/tcp/4810/p2p/{other}"
    options = NodeOptions(home=tmp_path, initial_peers=(first, own))
    directory = SimpleNamespace(addresses=lambda: [own])
    local = SimpleNamespace(options=options, me=me, run_id=b"r" * 32, say=lambda line: None)
    node = SimpleNamespace(local=local, directory=directory)
    print_ticket(node, own_ticket(node), tmp_path / "ticket")  # type: ignore[arg-type]
    assert Ticket.decode((tmp_path / "ticket").read_text()).addresses == (own, first)
