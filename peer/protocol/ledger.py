"""The ledger of work: integers, in tokens times elements of the fragment. Every inner step's work ends in exactly one
of three places. It is applied (it entered an outer step), dropped (named in the journal), or outstanding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkShare:
    """The shares of a fragment's work, done after its base, when its round is due."""

    share: float
    """Factor on the pseudo-gradient, in (0, 1]."""
    applied: int
    dropped: int


def cut_work(tokens: int, elements: int, steps: int, nominal_steps: float) -> WorkShare:
    """Scale work that piled up over skipped rounds by min(1, nominal / steps) and drop the cut share. The
    pseudo-gradient of several rounds at full size would undo a run.

    `nominal_steps`: inner steps between two exchanges of the fragment (clock in steps), or this peer's usual number."""
    total = tokens * elements
    if steps <= nominal_steps:
        return WorkShare(1.0, total, 0)
    share = nominal_steps / steps
    applied = int(total * share)
    return WorkShare(share, applied, total - applied)
