"""The memory of who was met when, so that no two peers meet too often.

The rule bounds what grinding a key until its scores win can buy. Proven peers are many, or they are few among many
fresh keys. So a proven peer is measured against the proven ones alone: fresh keys must not keep old friends apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from peer.protocol.messages import PeerId

MAX_MET = 1024
"""Met peers that are remembered, in sight or not."""
LEAST_LIVE = 8
"""Live peers below which any two may meet as often as they like."""


@dataclass(slots=True)
class Acquaintance:
    """The last rounds in which this peer met each other peer. With `LEAST_LIVE` live peers or more, two peers meet at
    most twice in n/2 rounds. So grinding a key until its scores win buys little."""

    _met: dict[PeerId, list[int]] = field(default_factory=dict)

    def met(self, peer: PeerId, round_: int) -> None:
        """Note a meeting."""
        recent = self._met.setdefault(peer, [])
        recent.append(round_)
        del recent[:-2]

    def met_too_often(self, peer: PeerId, round_: int, live: int, proven: Collection[PeerId] = ()) -> bool:
        """Whether this peer met `peer` too often. `live`: live peers, this one included. `proven`: the proven ones
        among them, without this one."""
        live = len(proven) + 1 if peer in proven else live
        recent = self._met.get(peer, [])
        return live >= LEAST_LIVE and len(recent) == 2 and recent[0] > round_ - live // 2

    def all_met_too_often(self, round_: int, live: int, proven: Collection[PeerId] = ()) -> set[PeerId]:
        """Return all peers that were met too often."""
        if live < LEAST_LIVE:
            return set()
        return {peer for peer in self._met if self.met_too_often(peer, round_, live, proven)}

    def forget_absent(self, present: Iterable[PeerId]) -> None:
        """Keep only peers that are present, once more than `MAX_MET` are remembered. Most of a large swarm is out of
        sight in any one round, so shorter memories keep absent peers."""
        if len(self._met) <= MAX_MET:
            return
        keep = set(present)
        self._met = {peer: rounds for peer, rounds in self._met.items() if peer in keep}
