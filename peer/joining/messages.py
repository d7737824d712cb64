"""Messages and errors of a joiner that waits for the run or gives up."""

from __future__ import annotations

from peer.discovery.multiaddr import split
from peer.errors import ClockWrong, SwarmUnreachable
from peer.ports.directory import DialReport
from peer.protocol.messages import RunId

CLOCK_LIMIT_S = 60.0
"""Largest clock difference, in seconds, at which directory records are accepted. A manifest may set a smaller one."""


def check_clock(contact: DialReport, limit_s: float = CLOCK_LIMIT_S) -> None:
    """Raise ClockWrong when the clocks of the nodes that answered differ from ours by more than `limit_s` seconds."""
    offset = contact.clock_offset_s
    if offset is None or abs(offset) <= limit_s:
        return
    raise ClockWrong(
        f"this machine's clock is {abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} the clocks of the "
        f"others (at most {limit_s:.0f} s are taken)"
    )


def waiting_reason(contact: DialReport, problem: str) -> str:
    """Return one line on why the join waits: the addresses that do not answer, or `problem` when some do."""
    if contact.tried and all(contact.tried.values()):
        return "nobody answers: " + "; ".join(
            f"{split(address)[0]}: {reason}" for address, reason in contact.tried.items()
        )
    return problem


def unreachable(contact: DialReport, run_id: RunId, problem: str, waited_s: float) -> SwarmUnreachable:
    """Return the error of a join that gave up: every address that was tried with its result, and the advice that
    follows from them."""
    listed = "".join(f"\n  {address}\n    {reason or 'answers'}" for address, reason in contact.tried.items())
    run = f"run {run_id.hex()[:16]}"
    if not contact.tried:
        return SwarmUnreachable(
            f"no address of {run} is known here, and nobody called within {waited_s:.0f} s",
            "Give the run's ticket, or an address with --initial-peers /ip4/…/tcp/…/p2p/….",
        )
    if not all(contact.tried.values()):
        return SwarmUnreachable(
            f"no peer of {run} gave its manifest within {waited_s:.0f} s: {problem}{listed}",
            "The addresses are alive, so ask the operator whether this run is over or its bootstrap node starts anew; "
            "then try again.",
        )
    return SwarmUnreachable(f"nobody of {run} answered within {waited_s:.0f} s:{listed}", _advice(contact))


def _advice(contact: DialReport) -> str:
    reasons = " ".join(contact.tried.values())
    advice = []
    if "another key" in reasons:
        advice.append("Where another key answers, the ticket is out of date or wrong: ask the operator for a new one.")
    if "our own key" in reasons:
        advice.append("A copy of the node's home has its key. Make a new one with: peer id new --home HOME")
    if "refused" in reasons:
        advice.append("Where the connection was refused, the operator has to start the bootstrap node again.")
    if any(words in reasons for words in ("no answer", "no route", "name is not known", "no peer")):
        check = "For the rest, check" if advice else "Check"
        advice.append(f"{check} this machine's connection and firewall, then ask the operator.")
    return " ".join(advice) or SwarmUnreachable.fix
