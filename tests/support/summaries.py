"""Makes summaries of peers with real keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from peer.lab.sim.virtual_clock import VirtualClock
from peer.node.operator.run_progress import RunActivity
from peer.node.operator.run_view import RunFacts, RunView
from peer.protocol.messages import PeerId, Status
from peer.protocol.pair.receipt import ReceiptBounds, ShownReceipt, SwapOpinion
from peer.protocol.summary.values import PeerSummary
from peer.run.manifest import Manifest
from peer.signed_summary import seal_summary
from peer.transport.signing import holds
from tests.support.signed_receipts import RUN, Signing

NOW = 1_800_000_000.0


class SetClock(VirtualClock):
    """A clock whose time the test sets."""

    def __init__(self, at: float = NOW) -> None:
        super().__init__()
        self.at = at

    def now(self) -> float:
        return self.at


def summary_of(peer: PeerId, at: float = NOW, **said: Any) -> PeerSummary:
    """Return the summary of a peer that has trained for ten rounds. `said`: other values of its fields."""
    plain = PeerSummary(
        peer_id=peer,
        run_id=RUN,
        issued_at=at,
        round=10,
        status=Status.TRAINING,
        tokens=1000,
        tokens_per_s=50.0,
        loss=3.5,
        loss_round=8,
        due=10,
        exchanged=8,
        solo=2,
        bytes_up=4000,
        bytes_down=5000,
        device="cpu",
        version="0.7.0",
    )
    return replace(plain, **said)


def shown(by: Signing, of: Signing, round_: int, *, accepted: bool = True) -> ShownReceipt:
    """Return a receipt that `by` signed for `of`."""
    statement = by.said(of.id, round_, SwapOpinion(4096, accepted=accepted))
    return ShownReceipt(statement, by.signer.sign(statement.to_bytes()))


def signed_summary(peer: Signing, at: float = NOW, **said: Any) -> bytes:
    return seal_summary(summary_of(peer.id, at, **said), peer.identity)


def view_at(
    clock: VirtualClock,
    kept: Path | None = None,
    furthest: int = 10**6,
    listed: Callable[[PeerId], bool] = lambda peer: True,
) -> RunView:
    """Return a view of a run that began an hour ago."""
    operator, began = Signing().identity.peer_id, clock.now() - 3600.0
    facts = RunFacts(
        run_id=RUN,
        manifest=Manifest.model_validate({"format": 1, "name": "w", "operator": operator}),
        preset="noloco",
        progress=cast(Any, SimpleNamespace(value=10, furthest=lambda: furthest)),
        started=lambda: began,
        ended=lambda: False,
        amendments=lambda count: [],
        ticket="peersw",
        bounds=ReceiptBounds(fragments=1, payload_bytes=10_000, rounds=100_000),
        activity=RunActivity(),
    )
    return RunView(facts, clock, holds, listed, kept)
