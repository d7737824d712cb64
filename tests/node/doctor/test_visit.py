"""The examination of a run through a temporary node, with given answers of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.joining.sequence import JoinSequence, Stage
from peer.node.doctor import visit as visits
from peer.node.doctor.finding import DoctorFinding, Severity
from peer.node.doctor.visit import RunVisit
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, Piece, RunId, StateIndex, Status
from peer.run.manifest import SignedManifest, default_text, derive
from peer.run.options import PeerOptions
from peer.transport.calls.discard import LineRate

RUN = RunId(b"V" * 32)
NODE = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWGcHvVxGGEhRBGqvDzRFqsZZMnhqSMtx2QCGqNkkvB5dC"


def visit(contact: DialReport, **transport: Any) -> RunVisit:
    """Make a visit over a network with these answers."""
    directory = SimpleNamespace(contact=lambda: contact)
    local = SimpleNamespace(run_id=RUN, clock=RunClock())
    node: Any = SimpleNamespace(
        directory=directory, local=local, transport=SimpleNamespace(**transport), join_context=lambda: None
    )
    return RunVisit(node, PeerOptions(home=Path("home"), run_id=RUN, wait_s=0.1), Path("files"))


def record(name: str) -> PeerRecord:
    where = ("192.0.2.9:4811",)
    return PeerRecord(PeerId(name), RUN, where, True, 2, 2, 0, 0.0, Status.TRAINING, 0.0, 1e12)


def what(findings: Sequence[DoctorFinding]) -> dict[str, Severity]:
    return {one.what: one.severity for one in findings}


def test_a_dead_ticket_is_an_error_with_what_each_address_answered() -> None:
    found = asyncio.run(visit(DialReport({NODE: "connection refused"})).reach())
    assert what(found) == {"run": Severity.ERROR}
    assert f"{NODE}\n    connection refused" in found[0].measured
    assert "the operator has to start the bootstrap node again" in found[0].fix


def test_a_wrong_clock_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The visit corrects its clock by the others', and so obtains the manifest."""

    async def manifest(context: object, wait_s: float) -> SignedManifest:
        assert abs(one.node.local.clock.correction - 300.0) < 1.0
        return SignedManifest(default_text().encode(), b"")

    async def goes_on(self: RunVisit) -> DoctorFinding:
        return DoctorFinding(Severity.OK, "run", "tiny")

    monkeypatch.setattr(visits, "obtain_manifest", manifest)
    monkeypatch.setattr(RunVisit, "_goes_on", goes_on)
    one = visit(DialReport({NODE: ""}, 300.0))
    found = asyncio.run(one.reach())
    assert what(found) == {"clock": Severity.ERROR, "run": Severity.OK}
    assert "300 s behind" in found[0].measured


def slow_run(visit: RunVisit) -> RunVisit:
    """Give the visit a run whose rounds are too short for its model."""
    text = derive(default_text(), ["sync.sync_every=4", "sync.preset=streaming-noloco"])

    async def manifest(joining: object) -> SignedManifest:
        return SignedManifest(text.encode(), b"")

    visit.joining = JoinSequence(manifest=manifest)
    asyncio.run(visit.joining.run(until=Stage.MANIFEST))
    visit.records = {PeerId(name): record(name) for name in ("first", "second")}
    return visit


class Uploads:
    """Peers with these upload rates, in the order in which they are asked."""

    def __init__(self, rates: Sequence[float | None]) -> None:
        self.rates = list(rates)

    async def measure(self, to: PeerRecord, timeout_s: float) -> LineRate:
        rate = self.rates.pop(0)
        if rate is None:
            raise PartnerRefused("unknown_call", "it is of an older version")
        return LineRate(10**6, 10**6 / rate)


@pytest.mark.parametrize(
    ("rates", "severity", "left"),
    [
        ([1e7, 1.0], Severity.OK, 1),
        ([1e3, 1e7], Severity.OK, 0),
        ([1e3, 2e3], Severity.ERROR, 0),
        ([None, 1e7], Severity.OK, 0),
        ([None, None], Severity.WARNING, 0),
    ],
)
def test_a_slow_measurement_is_made_with_another_peer_too(
    monkeypatch: pytest.MonkeyPatch, rates: list[float | None], severity: Severity, left: int
) -> None:
    """A single peer that is slow, or of an older version, must not make this machine unfit."""

    async def download(self: RunVisit, peer: PeerRecord) -> Any:
        return visits.MeasuredLine("download", 1e7, 10**6, peer.peer_id)

    monkeypatch.setattr(RunVisit, "_download", download)
    uploads = Uploads(rates)
    one = slow_run(visit(DialReport({NODE: ""}, 0.0), upload_test=uploads))
    found = asyncio.run(one.measure_line())
    assert what(found) == {"download": Severity.OK, "upload": severity}
    assert len(uploads.rates) == left
    assert one.down == 1e7


class Copying:
    """A donor that needs a moment to make the copy of its state."""

    bytes_received = 0

    def __init__(self) -> None:
        self.asked = 0

    async def describe_state(self, *_: Any) -> StateIndex:
        self.asked += 1
        if self.asked < 3:
            raise PartnerRefused("no_state", "no complete state yet")
        return StateIndex("s", 0, b"", (Piece(0, 1, 4096, b""),))

    async def fetch_piece(self, *_: Any) -> bytes:
        self.bytes_received = 4096
        return bytes(4096)


def test_a_peer_that_copies_its_state_is_asked_again() -> None:
    donor = Copying()
    one = visit(DialReport({NODE: ""}, 0.0))
    one.node.transport = donor  # type: ignore[assignment]
    found = asyncio.run(one._download(record("first")))
    assert (found.nbytes, donor.asked) == (4096, 3)


def test_without_a_peer_to_dial_the_line_is_not_measured() -> None:
    one = slow_run(visit(DialReport({NODE: ""}, 0.0)))
    one.records = {}
    assert what(asyncio.run(one.measure_line())) == {"download": Severity.WARNING, "upload": Severity.WARNING}
