"""A question to the person at the terminal, which holds up nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

ANSWER_S = 600.0
"""Seconds that a person has for an answer. Silence then means no."""
YES = frozenset({"y", "yes"})
MAX_ANSWER = 256
"""Bytes of an answer."""


async def ask_terminal(question: str, say: Callable[[str], None]) -> bool | None:
    """Ask, and read one line of standard input. None when input or output is no terminal.

    An answer other than `y` or `yes`, a closed input and silence for `ANSWER_S` all mean no."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    say(f"{question} [y/N]")
    return await read_answer(sys.stdin.fileno(), ANSWER_S)


async def read_answer(descriptor: int, patience_s: float) -> bool:
    """Read one line from an open terminal or pipe; return whether it agrees."""
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
