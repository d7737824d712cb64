"""An offer that is lost on a relay is sent a second time. An open peer is called only once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.errors import NotDialled, PartnerLost, PartnerSilent
from peer.exchange.pair.search import AGAIN_S, PartnerSearch
from peer.protocol.messages import Answer, Offer, PeerRecord, Reach, Send, Verdict
from tests.exchange.pair.test_no_room import CLOSED, NOW, OPEN, search

LOST = PartnerSilent("it did not answer")


class Line:
    """A transport that loses the first offers. `noted`: calls of the failure detector."""

    def __init__(self, made: PartnerSearch, *losses: PartnerLost) -> None:
        self.losses, self.slept, self.noted = list(losses), list[float](), list[str]()
        self.sent = 0
        context = cast(Any, made._context)
        detector = context.peer_table.detector
        detector.late_after, detector.timeout = lambda peer: None, lambda peer: 1.0
        detector.lost = lambda *of: self.noted.append("lost")
        detector.answered = lambda *of: self.noted.append("answered")
        made._context = cast(
            Any,
            SimpleNamespace(
                **{name: getattr(context, name) for name in ("peer_table", "reputation", "trainers", "run_id", "me")},
                clock=SimpleNamespace(now=lambda: NOW, sleep=self._sleep),
                transport=self,
            ),
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer:
        self.sent += 1
        if self.losses:
            raise self.losses.pop(0)
        return Answer(Verdict.LOCKED, reach=to.reach)


def sent(record: PeerRecord, *losses: PartnerLost) -> tuple[PartnerSearch, Line]:
    made = search(Reach.RELAYED, record)
    (send,) = cast(list[Send], made._matching.actions(NOW))
    line = Line(made, *losses)
    asyncio.run(made._send(send))
    return made, line


def test_over_a_relay_an_offer_is_sent_once_more() -> None:
    made, line = sent(CLOSED[0], LOST)
    assert made.locked == CLOSED[0].peer_id
    assert (line.sent, line.slept, line.noted) == (2, [AGAIN_S], ["answered"])


@pytest.mark.parametrize(
    ("record", "losses", "times"), [(CLOSED[0], 2, 2), (OPEN, 1, 1)], ids=["over a relay", "an open peer"]
)
def test_who_does_not_answer_then_is_no_partner(record: PeerRecord, losses: int, times: int) -> None:
    made, line = sent(record, *[LOST] * losses)
    assert made.locked is None
    assert made._matching.exhausted
    assert (line.sent, line.noted) == (times, ["lost"])


def test_what_was_never_dialled_is_not_sent_again() -> None:
    made, line = sent(CLOSED[0], NotDialled("others at its addresses did not answer"))
    assert made.locked is None
    assert line.sent == 1
