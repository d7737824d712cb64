"""What a volunteer asks of the running daemon at its control socket: pause and resume."""

from __future__ import annotations

from typing import Any

from peer.daemon.node import Say
from peer.daemon.rest import Rest
from peer.errors import UsageError
from peer.protocol.ruling import Ruling


def pause_or_resume(command: str, request: dict[str, Any], rest: Rest, ruling: Ruling, say: Say) -> dict[str, Any]:
    """What holds afterwards, of the volunteer's own word and of the operator's. Raises UsageError."""
    if command == "pause":
        rest.pause(_seconds(request.get("for_s")))
        say(rest.why())
    else:
        rest.resume()
        say("told to go on")
    return {"paused": rest.report(), "paused_by_the_operator": ruling.paused}


def _seconds(given: Any) -> float | None:
    """Raises UsageError."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError("for_s is a number of seconds", "E.g. peer pause --for 2h")
    return float(given)
