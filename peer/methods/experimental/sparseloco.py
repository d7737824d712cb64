"""SparseLoCo (arXiv 2508.15706): members of a group send only the largest elements of their pseudo-gradients. The
remainder is added to the next one (error feedback)."""

from __future__ import annotations

from collections.abc import Iterator

from peer.methods.codec_specs import SPARSE
from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import GROUPED, Caution, Method

TOPK_LOST = {20: 4.0, 50: 5.7}
"""Number of exchanges -> percent by which the loss with `topk` was above that without exchanges, at the better of the
learning rates tried (results/methods_loss.json). Longer runs were not measured."""
DILOCO_GAINED = 4.6
"""Percent by which the loss with fp32 (the preset `diloco`) was below that without exchanges, after 20 exchanges."""


def cautions(method: Method, exchanges: int) -> Iterator[Caution]:
    """Warn of `topk` in any method of a group, not only in the preset."""
    if method.codec == "topk" and method.one_state:
        measured = " and ".join(f"{lost:g} % after {count}" for count, lost in TOPK_LOST.items())
        longer = f"this run of {exchanges:,} is longer than any that was measured" if exchanges > max(TOPK_LOST) else ""
        yield (
            "codec",
            "topk sends a 64th of each update, and the rest waits. On real text the loss was above that of no exchange "
            f"by {measured} exchanges, while fp32 gained {DILOCO_GAINED:g} % in 20"
            f"{f': {longer}' if longer else ''}",
        )


ENTRY = MethodEntry(
    presets=(
        Preset(
            name="sparseloco",
            method=Method(
                rule="sgd",
                outer_lr=1.0,
                outer_momentum=0.0,
                consensus=0.0,
                codec="topk",
                result_codec=SPARSE,
                **GROUPED,
            ),
            purpose="a group on the narrowest links, in a long run: 2 to 3 bits an element in all (arXiv 2508.15706)",
            since=3,
        ),
    ),
    cautions=cautions,
)
