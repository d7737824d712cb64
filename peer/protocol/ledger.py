"""How work is counted: integers, in tokens times elements of the fragment. Every inner step's work ends in exactly one
of three places: applied (it entered an outer step), dropped (named in the journal), or outstanding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkShare:
    """What becomes of the work since a fragment's base when its round comes."""

    share: float
    """Factor on the pseudo-gradient, in (0, 1]."""
    applied: int
    dropped: int


def cut_work(tokens: int, elements: int, steps: int, nominal_steps: float) -> WorkShare:
    """Work that piled up over skipped rounds is scaled by min(1, nominal / steps) and the cut share is dropped: a
    pseudo-gradient of several rounds sent whole undoes a run.

    `nominal_steps`: inner steps of one sync_every (clock in steps), or what this peer usually does in one."""
    total = tokens * elements
    if steps <= nominal_steps:
        return WorkShare(1.0, total, 0)
    share = nominal_steps / steps
    applied = int(total * share)
    return WorkShare(share, applied, total - applied)
