"""Saves and evaluates a run's state before the daemon closes."""

from __future__ import annotations

import asyncio

from peer.errors import TrainerDied
from peer.ports.console import Say
from peer.rounds.evaluation import Evaluations
from peer.state.checkpointer import Checkpointer


async def save_last_state(checkpointer: Checkpointer, evaluations: Evaluations, round_: int, say: Say) -> None:
    """Write a checkpoint. Then evaluate the state, unless that was done already or would take too long on this
    machine."""
    await checkpointer.save_now(round_)
    if not (limit_s := evaluations.last_limit_s()):
        return
    try:
        async with asyncio.timeout(limit_s):
            await evaluations.evaluate(round_, at_last=True)
    except TimeoutError:
        say(f"the last state is not evaluated: that took longer than {limit_s:.0f} s")
    except TrainerDied as death:
        say(f"the last state is not evaluated: the trainer died: {death.cause}")
