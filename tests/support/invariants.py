"""Checks the promises of the project on a simulated swarm, from what its peers journaled, sent and hold.

witness = Witness(swarm)      # before the run
await swarm.run(plan)
assert not witness.broken()   # sentences, each with peer and round"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.setting import number_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.observe.events import Event
from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.wire.payload import Source
from tests.support.group_consistency import one_truth
from tests.support.step_replay import Values

CAUSES = (events.TrainerDeath, events.Started, events.Refounded, events.Paused)
TOGETHER_S = 1.0
"""A peer that began within this many seconds was present from the beginning."""
SLOP_S = 2.0
"""Tolerance in seconds, because a round's snapshot is taken at the step boundary next to its time."""


@dataclass(repr=False)  # asyncio's runner calls repr on what `run_virtual` returns
class Witness:
    """Watches a swarm from its beginning, and collects violations."""

    swarm: SimulatedSwarm
    found: list[str] = field(default_factory=list)
    """Violations that were noticed while the swarm ran."""
    values: Values = field(init=False)

    def __post_init__(self) -> None:
        self.values = Values(self.swarm, self.found)
        self.swarm.network.on_payload_sent = self._gave
        for peer in self.swarm.peers:
            peer.listeners.append(self.values.heard)

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _gave(self, sender: PeerId, key: RoundKey | None, source: Source | None) -> None:
        """Check that a peer sends nothing before it has a complete state in its present life."""
        peer = self.swarm.peers[number_of(sender)]
        if peer.life.outer is None or peer.life.round_loop is None:
            what = "a state" if key is None else f"a payload for round {key.round}"
            self.found.append(f"4 no amnesia: {sender} gave {what} before it had a complete state")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def broken(self) -> list[str]:
        """Return a sentence for each broken promise."""
        pairs = self.swarm.method.topology == "pair"
        checks = [self._conservation(), self._outcomes(), self._newcomers(), self._progress(), self._goes_on()]
        checks += [self._reasons(), self._partners() if pairs else one_truth(self.swarm, self.values)]
        return [*self.found, *(sentence for check in checks for sentence in check)]

    def _conservation(self) -> Iterator[str]:
        for peer in self.swarm.peers:
            if (wrong := peer.ledger().imbalance) != 0:
                yield f"2 conservation: {peer.peer_id} is off by {wrong}: {peer.ledger()}"

    def _outcomes(self) -> Iterator[str]:
        """Check that each (round, fragment) has at most one outcome in each life of a peer."""
        for peer in self.swarm.peers:
            seen: set[tuple[int, int]] = set()
            for event in peer.events:
                if isinstance(event, events.Started):
                    seen.clear()  # after a restart from an older checkpoint a round may be played again
                if isinstance(event, events.RoundEnded):
                    if (event.round, event.fragment) in seen:
                        yield f"1 no third value: {peer.peer_id} ended round {event.round} twice"
                    seen.add((event.round, event.fragment))

    def _partners(self) -> Iterator[str]:
        """Check that partners agree. A peer that is named as a partner must name the other too, must report that the
        other failed in that round (only one side received everything), or must have ended before an outcome."""
        said = {str(peer.peer_id): _by_round(peer) for peer in self.swarm.peers}
        for peer in self.swarm.peers:
            for event in peer.events:
                if not isinstance(event, events.RoundEnded) or event.outcome != "exchanged":
                    continue
                theirs = said[event.partner].get(event.round, [])
                ended = any(isinstance(one, events.RoundEnded) for one in theirs)
                named = {_named(one) for one in theirs} if ended else set()
                if named and peer.peer_id not in named:
                    what = f"{peer.peer_id} mixed {event.partner}, which names {sorted(named)}"
                    yield f"1 no third value: round {event.round}: {what}"

    def _newcomers(self) -> Iterator[str]:
        """Check that a peer that joined later has trained for one sync_every before its first exchange."""
        for peer in self.swarm.peers:
            began: float | None = None
            for at, event in zip(peer.times, peer.events, strict=True):
                if isinstance(event, events.TrainingBegan) and at > TOGETHER_S:
                    began = at
                if isinstance(event, events.RoundEnded) and event.outcome == "exchanged" and began is not None:
                    if at < began + self.swarm.rounds.sync_every - SLOP_S:
                        yield f"4 no amnesia: {peer.peer_id} exchanged {at - began:.1f} s after it had begun"
                    began = None

    def _progress(self) -> Iterator[str]:
        """Check that work is dropped only with a cause in the journal."""
        for peer in self.swarm.peers:
            cause = False
            for event in peer.events:
                cause = cause or isinstance(event, CAUSES)
                if isinstance(event, events.Dropped) and not cause:
                    yield f"8 local progress: {peer.peer_id} dropped work although nothing had died: {event.reason}"

    def _reasons(self) -> Iterator[str]:
        """Check that every round without a complete exchange has a reason."""
        for peer in self.swarm.peers:
            for event in peer.events:
                if isinstance(event, events.RoundEnded) and event.outcome != "exchanged" and not event.reason:
                    yield f"10 reasons: {peer.peer_id} does not say why round {event.round} ended {event.outcome}"

    def _goes_on(self) -> Iterator[str]:
        """Check that a peer that is alive at the end has played the last round, or has journaled that its machine was
        suspended then."""
        for peer in self.swarm.peers:
            task = peer.life.task
            whole = task is not None and task.done() and not task.cancelled() and not peer.killed
            played = [e.round for e in peer.events if isinstance(e, events.RoundEnded | events.RoundMissed)]
            # a suspended machine skips rounds, and journals it
            if any(isinstance(e, events.Woke) for e in peer.events):
                played += [e.to_round - 1 for e in peer.events if isinstance(e, events.Skipped)]
            if whole and (not played or max(played) < self.swarm.total_rounds - 1) and not _late(peer, self.swarm):
                yield f"8 local progress: {peer.peer_id} ended with round {max(played, default=None)}"


def _named(event: Event) -> str:
    return event.partner if isinstance(event, events.RoundEnded) else getattr(event, "peer", "")


def _by_round(peer: SimulatedPeer) -> dict[int, list[Event]]:
    """Return round -> a peer's outcomes and failed partners."""
    said: dict[int, list[Event]] = {}
    for event in peer.events:
        if isinstance(event, events.RoundEnded | events.PartnerFailed):
            said.setdefault(event.round, []).append(event)
    return said


def _late(peer: SimulatedPeer, swarm: SimulatedSwarm) -> bool:
    """Return whether a peer came back when the run was over or about to end."""
    began = [event.round for event in peer.events if isinstance(event, events.TrainingBegan)]
    return not began or began[-1] >= swarm.total_rounds - 1
