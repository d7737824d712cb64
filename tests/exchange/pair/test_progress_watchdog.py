"""How soon a partner that falls behind is noticed, and how rarely a partner in time is checked."""

from __future__ import annotations

import pytest

from peer.errors import PartnerSilent
from peer.exchange.deadlines import AWAY_S
from peer.exchange.pair.swap import _Watched
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, nap, run_virtual
from peer.protocol.wire.payload import BufferSink


def test_it_says_how_long_the_partner_cannot_be_behind() -> None:
    async def main() -> None:
        watched = _Watched(BufferSink(100), VirtualClock())

        def left() -> float:
            return watched.behind(EPOCH + 7.0, budget_s=22.0, slack_s=2.0)

        assert left() == pytest.approx(7.0, abs=1e-5), "until its first byte is due"
        watched.write(0, bytes(10))
        assert left() == pytest.approx(2.0 + 0.1 * 20.0, abs=1e-5), "until the next byte is due at its pace"
        await nap(4.1)
        with pytest.raises(PartnerSilent, match="too slowly"):
            left()
        watched.write(10, bytes(80))
        assert left() == pytest.approx(min(AWAY_S, 2.0 + 0.9 * 20.0 - 4.1), abs=1e-5)
        watched.write(90, bytes(10))
        await nap(100.0)
        assert left() == float("inf"), "all is here"

    run_virtual(main())


def test_one_that_sends_nothing_is_late_at_its_moment() -> None:
    async def main() -> None:
        watched = _Watched(BufferSink(100), VirtualClock())
        await nap(7.1)
        with pytest.raises(PartnerSilent, match="nothing in time"):
            watched.behind(EPOCH + 7.0, budget_s=22.0, slack_s=2.0)

    run_virtual(main())
