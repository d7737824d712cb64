"""Asks a question at the terminal without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

ANSWER_S = 600.0
"""Seconds to wait for an answer. No answer means no."""
YES = frozenset({"y", "yes"})
MAX_ANSWER = 256
"""Longest answer that is read, in bytes."""


async def ask_terminal(question: str, say: Callable[[str], None]) -> bool | None:
    """Print a question and return the answer. None: input or output is not a terminal.

    Any answer other than `y` or `yes`, a closed input, and no answer within `ANSWER_S` all mean no."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    say(f"{question} [y/N]")
    return await read_answer(sys.stdin.fileno(), ANSWER_S)


async def read_answer(descriptor: int, patience_s: float) -> bool:
    """Read one line from an open terminal or pipe; return whether it is `y` or `yes`. False after `patience_s`
    seconds."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def readable() -> None:
        if not line.done():
            line.set_result(_read(descriptor))

    loop.add_reader(descriptor, readable)
    try:
        answer = await asyncio.wait_for(line, patience_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return answer.decode(errors="replace").strip().lower() in YES


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, MAX_ANSWER)
    except OSError:  # the terminal is gone
        return b""
