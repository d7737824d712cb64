"""When Python looks for garbage in cycles. It looks through the old objects only when a quarter as many new ones have
come to them, and an imported torch is 340,000 of them: a daemon gets there seldom. Until then finished calls that refer
to themselves by way of their exception stay, with all that their frames hold, and then the event loop stands still for
a fifth of a second."""

from __future__ import annotations

import gc

THRESHOLDS = (700, 2, 2)
"""New objects until the youngest are looked through, and how often that is done until the older ones are too."""


def settle() -> None:
    """Once, when all is loaded and built (takes 0.2 s): what there is now stays for good and is never looked through
    again. The rest is so little (a ms) that it is all looked through after some 6,000 new objects."""
    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: it sets the number of old objects that the new ones are compared with
    gc.set_threshold(*THRESHOLDS)
