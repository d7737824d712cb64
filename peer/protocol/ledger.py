"""Ledger of work, in integers: tokens times elements of the fragment. The work of every inner step ends as exactly one
of applied (it entered an outer step), dropped (named in the journal) or outstanding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkShare:
    """How much of a fragment's work since its base is applied when its round is due."""

    share: float
    """Factor of the pseudo-gradient, in (0, 1]."""
    applied: int
    """Tokens times elements that are applied."""
    dropped: int
    """Tokens times elements that are dropped."""


def cut_work(tokens: int, elements: int, steps: int, nominal_steps: float) -> WorkShare:
    """Scale down work that accumulated over skipped rounds by min(1, nominal / steps), and count the rest as dropped.
    The pseudo-gradient of several rounds at full size could make training diverge.

    `nominal_steps`: inner steps between two exchanges of the fragment (clock in steps), or this peer's usual number."""
    total = tokens * elements
    if steps <= nominal_steps:
        return WorkShare(1.0, total, 0)
    share = nominal_steps / steps
    applied = int(total * share)
    return WorkShare(share, applied, total - applied)
