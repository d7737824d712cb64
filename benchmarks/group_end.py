"""A process that plays a group member in benchmarks: it does a daemon's round with the other members, as
`benchmarks.round_end` does with a partner. The roster, the exchange, the outer step and the write to the arena are the
daemon's own code; there is no trainer and no directory. Commands: `greet` once, then `swap` for each round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from benchmarks.round_end import NOMINAL, STEPS, TOKENS, RoundEnd
from peer.codec.registry import EVERY
from peer.errors import PartnerLost
from peer.exchange.group.context import GroupContext, GroupTerms
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.member import GroupMember
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.strategy import ExchangeControls
from peer.lab.bench.daemon_process import AN_HOUR_S, RUN, WAIT_S, Setting, main
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.methods.codec_specs import result_codec_for
from peer.methods.registry import PRESETS
from peer.observe import events
from peer.ports.trainer import AT_ONCE, WorkSnapshot
from peer.protocol.ledger import cut_work
from peer.protocol.messages import PeerId, PeerRecord, Reach, RoundKey, Status
from peer.rounds.commit import Snapshot
from peer.rounds.inflight import InFlightRound
from peer.transport.signing import KeySigner

WINDOW_S = 20.0
"""Seconds of the window. Long enough for a loaded machine; the roster closes earlier, when all members are in it."""
PRESET_OF = {"fp32": "diloco", "int4": "streaming-diloco"}
"""Codec of the contributions -> preset."""


@dataclass
class Seen:
    """Stands in for the peer table, with members that never change."""

    detector: FailureDetector
    peers: dict[PeerId, PeerRecord] = field(default_factory=dict)
    banned: Callable[[], Container[PeerId]] = frozenset

    def own_reach(self) -> Reach:
        return Reach.DIRECT

    def relay_rate(self) -> float:
        return 0.0


class GroupEnd(RoundEnd):
    """A group member. `set_partner` names all others at once."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._seen = Seen(FailureDetector(self._clock.now))
        self._works["greet"] = self._greet
        method = PRESETS[PRESET_OF[setting.codec]].method
        terms = GroupTerms(
            run_id=RUN,
            me=PeerId(self._identity.peer_id),
            elements=(setting.elements,),
            mean=MeanTerms(codec=EVERY[setting.codec], result_codec=EVERY[result_codec_for(setting.codec)]),
            max_group=method.max_group,
        )
        reputation, transport = Reputation(self._clock.now, self._note), self._transport
        signer = KeySigner(self._identity)
        context = GroupContext(terms, signer, transport, self._clock, self._seen, reputation, self._bulk_thread)
        self._group = GroupMember(context)
        self._willing.register(group=self._group)
        self._groups = GroupStrategy(
            method,
            self.state,
            self._group,
            self._buffers,
            self._bulk_thread,
            ExchangeControls(lambda: True, lambda: "", _nothing),
        )
        self._landing = self._lands(method, self._groups)

    def set_partner(self, other: dict[str, Any]) -> None:
        now = self._clock.now()
        for one in other["others"]:
            peer = PeerId(one["peer"])
            record = PeerRecord(
                peer, RUN, (one["endpoint"],), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + AN_HOUR_S
            )
            self._seen.peers[peer] = record

    async def _greet(self, command: dict[str, Any]) -> None:
        """Connect to the others in advance, because a roster does not wait for connections."""
        await asyncio.gather(*(self._transport.hello(record, WINDOW_S) for record in self._seen.peers.values()))

    async def _swap(self, command: dict[str, Any]) -> None:
        """Do one group round. Raises PartnerLost if a member is missing."""
        key, now = RoundKey(command["round"], 0), self._clock.now()
        self.journal.clear()
        cut = cut_work(TOKENS, self.state.layout.elements, STEPS, NOMINAL[command.get("work", "whole")])
        work = WorkSnapshot(key, self._own, STEPS, TOKENS, TOKENS, 1.0, 1.0)
        flight = InFlightRound(key, self._groups.open_round(key, now, now + WINDOW_S), self._landing)
        flight.ready.set_result(Snapshot(work, cut, now + WAIT_S, AT_ONCE, now))
        await flight.task
        last = self.journal.pop()
        if not isinstance(last, events.RoundEnded) or len(last.partner.split()) < len(self._seen.peers) or last.reason:
            raise PartnerLost(f"not everybody was in the round: {last}")


def _nothing(*_: object) -> None: ...


if __name__ == "__main__":
    main(GroupEnd)
