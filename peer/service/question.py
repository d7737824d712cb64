"""One call of a service manager's own command."""

from __future__ import annotations

import subprocess
from pathlib import Path

from peer.errors import ServiceUnavailable
from peer.service.plan import STOP_S

ANSWER_S = STOP_S + 30.0
"""Longest wait: stopping a service waits until its peer has drained."""


def answer_of(program: str, *arguments: str) -> str:
    """Return what a manager's command prints. Raises ServiceUnavailable when it is missing, fails, or takes longer than
    `ANSWER_S` seconds."""
    name = Path(program).name
    try:
        result = subprocess.run(  # noqa: S603 - our own words
            [program, *arguments],
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ServiceUnavailable(f"there is no {name} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailable(f"{name} {' '.join(arguments)} did not end in {ANSWER_S:.0f} s") from error
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
        raise ServiceUnavailable(f"{name} {' '.join(arguments)}: {said}")
    return result.stdout
