"""A joiner must ask several peers for the manifest in parallel, so that a dead one does not delay it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import ExchangeError, JoinRefused, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.joining import clock as starting
from peer.joining.clock import round_clock
from peer.joining.context import JoinContext
from peer.joining.manifest import obtain_manifest
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.run.home import RunFolder
from peer.run.manifest import SignedManifest, default_text, parse_manifest, sign_text

SILENT, GONE = "silent", "gone"


def record(name: str) -> PeerRecord:
    return PeerRecord(PeerId(name), RunId(bytes(32)), (), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 9e9)


class Others:
    """Directory and transport with peers that are silent, gone, refuse, or answer."""

    def __init__(self, signed: SignedManifest, answers: dict[str, Any]) -> None:
        self.signed, self.answers, self.asked, self.left = signed, answers, list[str](), list[str]()

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {PeerId(name): record(name) for name in self.answers}

    def contact(self) -> Any:
        return SimpleNamespace(reasons={}, clock_offset_s=None)

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]:
        return await self._answer(to, (self.signed.raw, self.signed.signature))

    async def hello(self, to: PeerRecord, timeout_s: float) -> Any:
        return await self._answer(to, SimpleNamespace(clock_offset_s=3.0, voice=""))

    async def _answer(self, to: PeerRecord, answer: Any) -> Any:
        self.asked.append(to.peer_id)
        try:
            match self.answers[to.peer_id]:
                case "silent":
                    await asyncio.Event().wait()
                case "gone":
                    raise PartnerLost("gone")
                case ExchangeError() as error:
                    raise error
            return answer if self.answers[to.peer_id] is None else self.answers[to.peer_id]
        finally:
            self.left.append(to.peer_id)


@pytest.fixture
def signed(tmp_path: Path) -> SignedManifest:
    return sign_text(default_text(), Identity.generate(), tmp_path / "run.toml")


def context_of(
    run_id: RunId, others: Others, clock: RunClock | None = None, folder: RunFolder | None = None
) -> JoinContext:
    given: Any = others
    return JoinContext(
        run_id=run_id,
        me=PeerId("me"),
        directory=given,
        transport=given,
        clock=clock or RunClock(),
        say=lambda line: None,
        folder=folder,
    )


def manifest_of(signed: SignedManifest, others: Others) -> SignedManifest:
    async def ask() -> SignedManifest:
        async with asyncio.timeout(180):
            return await obtain_manifest(context_of(signed.run_id, others), 3.0)

    return asyncio.run(ask())


def test_the_first_answer_is_taken_and_no_question_is_left_behind(signed: SignedManifest) -> None:
    others = Others(signed, {"a": SILENT, "b": GONE, "c": None})
    assert manifest_of(signed, others).run_id == signed.run_id
    assert sorted(others.left) == sorted(others.asked) == ["a", "b", "c"]


def test_more_are_asked_when_the_first_four_have_nothing_of_use(signed: SignedManifest, tmp_path: Path) -> None:
    foreign = sign_text(default_text(), Identity.generate(), tmp_path / "foreign.toml")
    forged = (signed.raw, bytes(64))
    answers = {"a": GONE, "b": GONE, "c": (foreign.raw, foreign.signature), "d": forged, "e": None}
    others = Others(signed, answers)
    assert manifest_of(signed, others).signature == signed.signature
    assert len(others.asked) == 5


def test_it_is_refused_only_when_everybody_refuses(signed: SignedManifest) -> None:
    no = PartnerRefused("banned", "you are banned")
    with pytest.raises(JoinRefused, match="you are banned"):
        manifest_of(signed, Others(signed, dict.fromkeys("abcde", no)))
    assert manifest_of(signed, Others(signed, {"a": no, "b": no, "c": None})).run_id == signed.run_id


def test_the_clock_does_not_wait_for_a_silent_peer_when_another_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: SignedManifest
) -> None:
    monkeypatch.setattr(starting, "GREETED_S", 0.01)
    others, clock = Others(signed, {"a": SILENT, "bbb": None, "c": GONE}), RunClock()
    context = context_of(RunId(bytes(32)), others, clock, RunFolder(tmp_path))

    async def main() -> float:
        async with asyncio.timeout(3):  # the silent one would be waited for longer
            return (await round_clock(context, parse_manifest(default_text().encode()), 0.0)).start

    assert asyncio.run(main()) == 0.0, "it waits for the signed start"
    assert clock.correction == 3.0
    assert sorted(others.left) == ["a", "bbb", "c"]
