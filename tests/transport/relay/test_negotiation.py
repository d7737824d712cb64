"""The negotiation between the two ends of a circuit, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from peer.errors import PartnerLost
from peer.transport.relay.negotiation import (
    DECLINES,
    OPENED_NOTHING,
    Check,
    Punch,
    agree_as_caller,
    agree_as_target,
)
from peer.transport.relay.pipe import Stream
from peer.transport.relay.punch import PUNCH_S
from peer.transport.relay.wire import AGREED, CARRY, NONCE_BYTES, PUNCH, PUNCHED, STEP_S
from tests.support.memory_streams import connection, is_gone, run_streams


class Circuit:
    """Both ends of a circuit, and of a punched connection that opens after some seconds."""

    def __init__(self, opens_s: float = 0.1) -> None:
        self.caller, self.target = connection()
        self.ours, self.theirs = connection()
        self.opens_s = opens_s

    def punch(self, opened: Stream, seconds: float | None = None) -> Punch:
        async def punch(check: Check) -> Stream:
            passes = False
            try:
                await asyncio.sleep(self.opens_s if seconds is None else seconds)
                passes = await check(opened)
            finally:
                if not passes:
                    opened.abort()
            if not passes:
                raise PartnerLost("somebody else answers there")
            return opened

        return punch

    async def agree(self, caller: Punch | None, target: Punch | None) -> tuple[Stream, str, Stream]:
        """Run the negotiation. Return the caller's connection and reason, and the target's connection."""
        (mine, why), theirs = await asyncio.gather(
            agree_as_caller(self.caller, caller), agree_as_target(self.target, target)
        )
        return mine, why, theirs

    async def both_punch(self) -> tuple[Stream, str, Stream]:
        return await self.agree(self.punch(self.ours), self.punch(self.theirs))


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_streams(test())

    run.__name__ = test.__name__
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


async def passes(one: Stream, other: Stream) -> bool:
    """Return whether each end receives exactly what the other sends next."""
    one.send(b"TLS")
    other.send(b"SLT")
    return (await other.reader.readexactly(3), await one.reader.readexactly(3)) == (b"TLS", b"SLT")


@scenario
async def test_both_use_a_punched_connection_and_let_go_of_the_relay() -> None:
    circuit = Circuit()
    mine, why, theirs = await circuit.both_punch()
    assert (mine, why, theirs) == (circuit.ours, "", circuit.theirs)
    assert await passes(mine, theirs)
    assert is_gone(circuit.caller)
    assert is_gone(circuit.target)


@scenario
async def test_a_caller_that_does_not_want_to_punch_waits_for_nothing() -> None:
    circuit = Circuit()
    assert await agree_as_caller(circuit.caller, None) == (circuit.caller, "")
    assert await agree_as_target(circuit.target, circuit.punch(circuit.theirs)) is circuit.target
    assert await passes(circuit.caller, circuit.target)
    assert now() == 0.0


@scenario
async def test_a_target_may_decline() -> None:
    circuit = Circuit()
    assert await circuit.agree(circuit.punch(circuit.ours), None) == (circuit.caller, DECLINES, circuit.target)
    assert await passes(circuit.caller, circuit.target)
    assert now() == 0.0


@pytest.mark.parametrize("caller_opens", [True, False])
def test_what_opens_late_or_at_one_end_alone_is_left_to_the_relay(caller_opens: bool) -> None:
    @scenario
    async def attempt() -> None:
        circuit = Circuit()
        late = PUNCH_S + 0.5
        one = circuit.punch(circuit.ours, 0.1 if caller_opens else late)
        other = circuit.punch(circuit.theirs, late if caller_opens else 0.1)
        assert await circuit.agree(one, other) == (circuit.caller, OPENED_NOTHING, circuit.target)
        assert await passes(circuit.caller, circuit.target)
        assert now() == pytest.approx(PUNCH_S)
        await asyncio.sleep(0)
        assert is_gone(circuit.ours)
        assert is_gone(circuit.theirs)

    attempt()


@scenario
async def test_one_that_cannot_punch_at_once_says_so_at_once() -> None:
    async def fails(check: Check) -> Stream:
        raise PartnerLost("no punched connection: network is unreachable")

    circuit = Circuit()
    assert await circuit.agree(fails, circuit.punch(circuit.theirs)) == (
        circuit.caller,
        OPENED_NOTHING,
        circuit.target,
    )
    assert now() == 0.0
    circuit = Circuit()
    began = now()
    found = await circuit.agree(circuit.punch(circuit.ours), fails)
    assert found == (circuit.caller, OPENED_NOTHING, circuit.target)
    assert now() - began <= PUNCH_S + 0.1


@scenario
async def test_a_caller_tries_nobody_who_does_not_know_the_nonce() -> None:
    circuit = Circuit()
    stranger, theirs = connection()

    async def lie() -> None:
        await stranger.reader.readexactly(NONCE_BYTES)
        stranger.send(b"x" * NONCE_BYTES)

    lying = asyncio.create_task(lie())
    found = await circuit.agree(circuit.punch(theirs), circuit.punch(circuit.theirs))
    assert found == (circuit.caller, OPENED_NOTHING, circuit.target)
    await lying
    assert is_gone(theirs)


@scenario
async def test_a_target_tries_nobody_who_does_not_know_the_nonce() -> None:
    circuit = Circuit()
    stranger, theirs = connection()
    stranger.send(b"x" * NONCE_BYTES + PUNCHED)
    found = await circuit.agree(circuit.punch(circuit.ours), circuit.punch(theirs))
    assert found == (circuit.caller, OPENED_NOTHING, circuit.target)
    assert is_gone(theirs)
    assert PUNCHED not in await _rest_of(stranger)


async def _rest_of(stream: Stream) -> bytes:
    with contextlib.suppress(OSError):
        return await stream.reader.read()
    return b""


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_target_that_does_not_answer_is_lost(hangs_up: bool) -> None:
    @scenario
    async def attempt() -> None:
        circuit = Circuit()
        if hangs_up:
            circuit.target.close()
        with pytest.raises(PartnerLost):
            await agree_as_caller(circuit.caller, circuit.punch(circuit.ours))
        assert now() == (0.0 if hangs_up else STEP_S)

    attempt()


@scenario
async def test_a_target_that_falls_silent_after_it_agreed_costs_the_time_of_a_punch() -> None:
    circuit = Circuit()
    circuit.target.send(AGREED)
    assert await agree_as_caller(circuit.caller, circuit.punch(circuit.ours)) == (circuit.caller, OPENED_NOTHING)
    assert now() == pytest.approx(PUNCH_S)


@scenario
async def test_a_target_that_speaks_nonsense_is_lost() -> None:
    circuit = Circuit()
    circuit.target.send(b"?")
    with pytest.raises(PartnerLost, match="another protocol"):
        await agree_as_caller(circuit.caller, circuit.punch(circuit.ours))


@pytest.mark.parametrize(
    "said",
    [b"?", b"\x16\x03\x01", PUNCH + b"n" * NONCE_BYTES + b"?", PUNCH + b"n" * 3, PUNCH, b""],
    ids=["nonsense", "TLS", "nonsense instead of a choice", "half a nonce", "no nonce", "nothing"],
)
@pytest.mark.parametrize("hangs_up", [True, False])
@pytest.mark.parametrize("punches", [True, False])
def test_a_caller_that_speaks_nonsense_or_says_nothing_is_lost_in_time(
    said: bytes, hangs_up: bool, punches: bool
) -> None:
    @scenario
    async def attempt() -> None:
        circuit = Circuit()
        circuit.caller.send(said)
        if hangs_up:
            circuit.caller.writer.write_eof()
        with pytest.raises(PartnerLost):
            await agree_as_target(circuit.target, circuit.punch(circuit.theirs) if punches else None)
        assert now() <= PUNCH_S + STEP_S
        await asyncio.sleep(0)
        assert not punches or not said.startswith(PUNCH + b"nnnn") or is_gone(circuit.theirs)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    attempt()


@scenario
async def test_a_caller_that_chooses_both_gets_one_and_the_other_is_closed() -> None:
    circuit, nonce = Circuit(opens_s=0.0), b"n" * NONCE_BYTES
    circuit.ours.send(nonce + PUNCHED)
    circuit.caller.send(PUNCH + nonce + CARRY)
    chosen = await agree_as_target(circuit.target, circuit.punch(circuit.theirs))
    await asyncio.sleep(0.1)  # virtual
    other = circuit.theirs if chosen is circuit.target else circuit.target
    assert chosen in (circuit.target, circuit.theirs)
    assert is_gone(other)
    assert not is_gone(chosen)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 1.0])
@pytest.mark.parametrize("opens_s", [0.1, 9.0])
def test_both_sides_may_be_cancelled_at_any_time(after_s: float, opens_s: float) -> None:
    @scenario
    async def attempt() -> None:
        circuit = Circuit(opens_s)
        tasks = [
            asyncio.create_task(agree_as_caller(circuit.caller, circuit.punch(circuit.ours))),
            asyncio.create_task(agree_as_target(circuit.target, circuit.punch(circuit.theirs))),
        ]
        await asyncio.wait(tasks, timeout=after_s)
        ended = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        if not any(ended) and after_s > 0.05:
            assert is_gone(circuit.ours) or after_s < opens_s
            assert is_gone(circuit.theirs) or after_s < opens_s

    attempt()


@pytest.mark.parametrize("seed", range(20))
def test_however_long_the_parts_take_both_come_to_the_same_connection(seed: int) -> None:
    """Each end decides by itself, but by the nonce and the caller's choice both use the same connection."""
    caller_s, target_s = 0.15 * seed, 0.37 * (seed * 7 % 11)

    @scenario
    async def attempt() -> None:
        circuit = Circuit()
        one, other = circuit.punch(circuit.ours, caller_s), circuit.punch(circuit.theirs, target_s)
        mine, why, theirs = await circuit.agree(one, other)
        assert (mine is circuit.ours) == (theirs is circuit.theirs) == (max(caller_s, target_s) < PUNCH_S)
        assert bool(why) == (mine is circuit.caller)
        assert await passes(mine, theirs)

    attempt()
