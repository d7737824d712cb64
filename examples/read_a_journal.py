"""Prints the loss of every round that a peer evaluated, from the journals in its home.

Run it: python examples/read_a_journal.py [HOME]

A home has a folder for each run, with a journal of one event per line. An incomplete last line is skipped, so that the
script can read while the peer writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from peer.observe.event_codec import read_lines
from peer.observe.events import Evaluated, RoundEnded
from peer.run.home import default_home


def losses(journal: Path) -> Iterator[tuple[int, float, int]]:
    """Yield round, loss in nats per token, and the number of rounds exchanged so far."""
    exchanged = 0
    for line in read_lines(journal):
        event = line[0] if line is not None else None
        if isinstance(event, RoundEnded):
            exchanged += event.outcome == "exchanged"
        elif isinstance(event, Evaluated):
            yield event.round, event.loss, exchanged


def main() -> None:
    home = Path(sys.argv[1]) if len(sys.argv) > 1 else default_home()
    journals = sorted(home.glob("runs/*/journal.jsonl"))
    if not journals:
        raise SystemExit(f"{home} holds no run yet; begin with: peer join TICKET --home {home}")
    for journal in journals:
        print(f"run {journal.parent.name}\nround   loss  exchanged")
        for number, loss, exchanged in losses(journal):
            print(f"{number:5}  {loss:5.3f}  {exchanged:9}")


if __name__ == "__main__":
    main()
