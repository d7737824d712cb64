"""Eager updates (arXiv 2502.12996): a group's member applies its own part of a step at once, and that of the others
when it arrives. The step itself is in `peer.outer.look_ahead`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.methods.diloco import DILOCO
from peer.methods.entry import MethodEntry, Preset
from peer.methods.experimental.sparseloco import DILOCO_GAINED
from peer.methods.method import STREAMED, Caution, Method, Refusal

EAGER_GAINED = {20: 0.3, 50: 1.5}
"""Number of exchanges -> percent by which the loss with `eager` was below that without exchanges, at the better of the
learning rates tried (results/methods_loss.json)."""
EAGER_MOMENTUM_LOST = 6.5
"""Percent by which the loss was above that without exchanges, with an outer_momentum of 0.5 and 20 exchanges."""
AT_ONCE: dict[str, Any] = {"fragment_sync_delay": 0.0, "fragment_update_alpha": 0.0}


def follows(chosen: Method) -> dict[str, Any]:
    """Return no delay and no part of the local value for an eager method, which applies its own part at once."""
    return AT_ONCE if chosen.eager and chosen.schedule == "streaming" else {}


def refusals(method: Method) -> Iterator[Refusal]:
    """Refuse eager updates outside of groups with several fragments, and together with a delay or a local part."""
    if not method.eager:
        return
    if not method.one_state or method.fragments < 2:
        yield (
            "eager",
            'eager updates are for topology = "group" and at least two fragments: while one is exchanged, the others '
            "are due",
        )
    if method.schedule == "streaming":
        for name in AT_ONCE:
            if value := getattr(method, name):
                yield (
                    name,
                    f"an eager member takes its own part at once and loses nothing by it, so it has no {value:g}",
                )


def cautions(method: Method, exchanges: int) -> Iterator[Caution]:
    """Warn of eager updates, and of a momentum with them, by the losses that were measured."""
    if not method.eager:
        return
    gained = " and ".join(f"{percent:g} % after {count}" for count, percent in EAGER_GAINED.items())
    yield (
        "eager",
        f"the others' part of a step comes a period late. On real text it gained {gained} exchanges over no exchange, "
        f"where diloco gained {DILOCO_GAINED:g} % in 20",
    )
    if method.outer_momentum > 0:
        yield (
            "outer_momentum",
            "with eager, a momentum repeats a step that is a period late already. With 0.5 the loss was "
            f"{EAGER_MOMENTUM_LOST:g} % above that of no exchange after 20 exchanges. 0 is the preset's",
        )


_EAGER: dict[str, Any] = DILOCO | STREAMED | AT_ONCE | {"outer_momentum": 0.0}

ENTRY = MethodEntry(
    presets=(
        Preset(
            name="eager",
            method=Method(schedule="streaming", codec="fp32", result_codec="fp32", eager=True, **_EAGER),
            purpose="a group whose exchanges take nearly as long as its rounds, in a long run (arXiv 2502.12996)",
            since=3,
        ),
    ),
    refusals=refusals,
    cautions=cautions,
    follows=follows,
)
