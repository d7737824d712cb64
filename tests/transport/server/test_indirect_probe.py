"""Indirect probes dial a peer only at its own addresses, rarely, and not at all when it called recently."""

from __future__ import annotations

import asyncio

from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.swarm.failure_detection import HEARD_S
from peer.transport.server.indirect_probe import (
    CALLER_EVERY_S,
    EVERY_S,
    MAX_AT_ONCE,
    MAX_ENDPOINTS_DIALLED,
    IndirectProbe,
)

ASKER, ABOUT = PeerId("asker"), PeerId("about")


def record(peer: PeerId = ABOUT, endpoints: tuple[str, ...] = ("192.0.2.7:1",), reachable: bool = True) -> PeerRecord:
    return PeerRecord(peer, RunId(b"r" * 32), endpoints, reachable, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


class Stage:
    def __init__(self, why: str = "") -> None:
        self.at, self.dialled = 100.0, list[tuple[PeerId, str]]()
        self.why = why
        self.hold = asyncio.Event()
        self.hold.set()
        self.voucher = IndirectProbe(self._dial, lambda: self.at)

    async def _dial(self, peer: PeerId, endpoint: str, timeout_s: float) -> str:
        self.dialled.append((peer, endpoint))
        await self.hold.wait()
        return self.why


def test_one_heard_lately_is_vouched_for_without_a_call() -> None:
    async def main() -> None:
        stage = Stage()
        assert (await stage.voucher.vouch(ASKER, ABOUT, record(), HEARD_S)).reaches is True
        assert stage.dialled == []
        stage.at += 1
        assert (await stage.voucher.vouch(ASKER, ABOUT, record(), HEARD_S + 1)).reaches is True
        assert stage.dialled == [(ABOUT, "192.0.2.7:1")]

    asyncio.run(main())


def test_only_addresses_of_its_record_and_not_many() -> None:
    async def main() -> None:
        stage = Stage("no answer")
        endpoints = tuple(f"192.0.2.{number}:1" for number in range(8))
        vouched = await stage.voucher.vouch(ASKER, ABOUT, record(endpoints=endpoints), None)
        assert vouched.reaches is False
        assert "no answer" in vouched.reason
        assert stage.dialled == [(ABOUT, endpoint) for endpoint in endpoints[:MAX_ENDPOINTS_DIALLED]]
        stage.at += 1
        unknown = await stage.voucher.vouch(ASKER, PeerId("unknown"), None, None)
        stage.at += 1
        shy = await stage.voucher.vouch(ASKER, PeerId("shy"), record(PeerId("shy"), reachable=False), None)
        assert unknown.reaches is shy.reaches is None, "nothing is said of whom nobody can call"
        assert len(stage.dialled) == MAX_ENDPOINTS_DIALLED

    asyncio.run(main())


def test_however_many_ask_it_is_dialled_once_in_a_while() -> None:
    async def main() -> None:
        stage = Stage()
        for number in range(50):
            stage.at += 0.1
            assert (await stage.voucher.vouch(PeerId(f"asker {number}"), ABOUT, record(), None)).reaches is True
        assert len(stage.dialled) == 1
        stage.at += EVERY_S
        await stage.voucher.vouch(ASKER, ABOUT, record(), None)
        assert len(stage.dialled) == 2

    asyncio.run(main())


def test_one_caller_is_answered_seldom_and_not_about_itself() -> None:
    async def main() -> None:
        stage = Stage()
        assert (await stage.voucher.vouch(ASKER, ABOUT, record(), 1.0)).reaches is True
        stage.at += CALLER_EVERY_S / 2
        assert (await stage.voucher.vouch(ASKER, ABOUT, record(), 1.0)).reaches is None
        assert (await stage.voucher.vouch(ABOUT, ABOUT, record(), 1.0)).reaches is None

    asyncio.run(main())


def test_not_many_calls_at_once() -> None:
    async def main() -> None:
        stage = Stage()
        stage.hold.clear()
        asked = [
            asyncio.create_task(
                stage.voucher.vouch(PeerId(f"asker {n}"), PeerId(f"p{n}"), record(PeerId(f"p{n}")), None)
            )
            for n in range(MAX_AT_ONCE + 3)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) >= 1
        assert all(task.result().reaches is None for task in done)
        stage.hold.set()
        answers = await asyncio.gather(*asked)
        assert sum(answer.reaches is True for answer in answers) == MAX_AT_ONCE == len(stage.dialled)

    asyncio.run(main())
