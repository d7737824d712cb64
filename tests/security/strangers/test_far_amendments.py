"""An amendment mistakenly set for a far round neither applies now nor blocks the next ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.identity import Identity
from peer.lab.sim.virtual_clock import run_virtual
from peer.membership.statement_sync import StatementSync
from peer.observe.events import AmendmentRefused, Event
from peer.protocol.messages import MAX_ROUND, PeerId, RunId
from peer.protocol.policy.amendments import Change
from peer.run.statements.kinds import AMENDMENT
from peer.run.statements.log import StatementLog

RUN, ROUNDS = RunId(b"F" * 32), 8000
OPERATOR, LIAR = Identity.generate(), PeerId(Identity.generate().peer_id)


def peer(journal: list[Event] | None = None) -> StatementSync:
    emit = (lambda event: None) if journal is None else journal.append
    return StatementSync(StatementLog(RUN, OPERATOR.peer_id, rounds=ROUNDS), emit)


@pytest.mark.parametrize("far", [ROUNDS - 1, ROUNDS, MAX_ROUND - 1])
@pytest.mark.parametrize("slip", [Change.PAUSE, Change.REFOUND, Change.WIRE])
def test_a_ban_holds_at_once_behind_a_slip_and_the_slip_can_be_replaced(slip: Change, far: int) -> None:
    more: dict[Change, dict[str, Any]] = {Change.REFOUND: {"digest": "ab" * 32}, Change.WIRE: {"low": 900, "high": 999}}
    operators = peer()
    operators.log.amend(OPERATOR, far, slip, "a slip", **more.get(slip, {}))
    operators.log.amend(OPERATOR, 333, Change.BAN, "lies", peer=LIAR)

    async def told(record: Any, held: int, head: bytes, timeout_s: float) -> list[tuple[bytes, bytes]]:
        return operators.on_amendments(held, head)

    journal = list[Event]()
    other = peer(journal)
    network = cast(Any, SimpleNamespace(fetch_amendments=told))
    run_virtual(other.fetch_from(network, cast(Any, SimpleNamespace(peer_id="o")), [AMENDMENT]))
    assert list(other.log.policy(333).banned) == [LIAR]
    before = other.log.policy(ROUNDS - 2)
    assert (before.paused, before.founded, before.wire) == (None, b"", None)
    mended: dict[Change, tuple[Change, dict[str, Any]]] = {
        Change.PAUSE: (Change.GO_ON, {}),
        Change.REFOUND: (Change.REFOUND, {"digest": "cd" * 32}),
        Change.WIRE: (Change.WIRE, {"low": 1, "high": 9}),
    }
    change, fields = mended[slip]
    operators.log.amend(OPERATOR, 334, change, "mended", **fields)
    run_virtual(other.fetch_from(network, cast(Any, SimpleNamespace(peer_id="o")), [AMENDMENT]))
    last = other.log.policy(MAX_ROUND)
    assert last.paused is None
    assert last.founded == (b"\xcd" * 32 if slip is Change.REFOUND else b"")
    assert last.wire == ((1, 9) if slip is Change.WIRE else None)
    assert not [event for event in journal if isinstance(event, AmendmentRefused)]
