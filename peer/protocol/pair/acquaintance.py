"""Limit on how often the same two peers are paired.

A peer could generate keys until its scores with a victim win in every round. Under this limit that gains little. For a
pair with a proven peer, only the proven peers count as live, because otherwise many fresh keys could keep proven peers
apart for longer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from peer.protocol.messages import PeerId

MAX_MET = 1024
"""Above this number of remembered peers, absent ones are forgotten."""
LEAST_LIVE = 8
"""With fewer live peers, any two may be paired in every round."""


@dataclass(slots=True)
class Acquaintance:
    """The last two rounds in which this peer was paired with each other peer. With n live peers (`LEAST_LIVE` or more),
    two peers are paired at most twice in n/2 rounds."""

    _met: dict[PeerId, list[int]] = field(default_factory=dict)

    def met(self, peer: PeerId, round_: int) -> None:
        """Record that this peer was paired with `peer` in this round."""
        recent = self._met.setdefault(peer, [])
        recent.append(round_)
        del recent[:-2]

    def met_too_often(self, peer: PeerId, round_: int, live: int, proven: Collection[PeerId] = ()) -> bool:
        """Return whether `peer` must not be a partner in this round. `live`: number of live peers, including this one.
        `proven`: the proven peers among them, without this one."""
        live = len(proven) + 1 if peer in proven else live
        recent = self._met.get(peer, [])
        return live >= LEAST_LIVE and len(recent) == 2 and recent[0] > round_ - live // 2

    def all_met_too_often(self, round_: int, live: int, proven: Collection[PeerId] = ()) -> set[PeerId]:
        """Return all peers that must not be a partner in this round."""
        if live < LEAST_LIVE:
            return set()
        return {peer for peer in self._met if self.met_too_often(peer, round_, live, proven)}

    def forget_absent(self, present: Iterable[PeerId]) -> None:
        """Forget peers that are not in `present`, if more than `MAX_MET` are remembered. Below that absent peers are
        kept, because most peers of a large swarm are not visible in any one round."""
        if len(self._met) <= MAX_MET:
            return
        keep = set(present)
        self._met = {peer: rounds for peer, rounds in self._met.items() if peer in keep}
