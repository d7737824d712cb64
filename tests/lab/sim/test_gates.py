"""A stopped or killed simulated process does nothing more, whatever it was about to do."""

from __future__ import annotations

import asyncio
import contextvars

from peer.lab.sim.virtual_clock import GATE, Gate, run_virtual


def test_what_was_about_to_run_waits_until_the_gate_is_open_again() -> None:
    ran: list[str] = []

    async def say(what: str) -> None:
        ran.append(what)

    async def main() -> None:
        loop, gate = asyncio.get_running_loop(), Gate()
        inside = contextvars.copy_context()
        inside.run(GATE.set, gate)
        first = loop.create_task(say("first"), context=inside)
        other = loop.create_task(say("another machine"))
        gate.close()
        late = loop.create_task(say("late"), context=inside)
        await asyncio.sleep(10.0)
        assert ran == ["another machine"]
        gate.open()
        await asyncio.gather(first, other, late)

    run_virtual(main())
    assert ran == ["another machine", "first", "late"]


def test_one_that_shuts_the_gate_is_the_last_to_run_in_its_turn() -> None:
    ran: list[str] = []

    async def main() -> None:
        loop, gate = asyncio.get_running_loop(), Gate()
        inside = contextvars.copy_context()
        inside.run(GATE.set, gate)

        def kill() -> None:
            ran.append("kill")
            gate.close()

        loop.call_soon(kill)
        loop.call_soon(ran.append, "dead", context=inside)
        loop.call_soon(ran.append, "alive")
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert ran == ["kill", "alive"]
