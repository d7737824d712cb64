"""The promises of the project, checked on a simulated swarm by what its peers journaled, sent and hold.

witness = Witness(swarm)      # before the run
await swarm.run(plan)
assert not witness.broken()   # sentences, each with peer and round"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from peer.observe import events
from peer.observe.events import Event
from peer.protocol.messages import PeerId, RoundKey, Source
from peer.testing.member import SimulatedPeer
from peer.testing.swarm import SimulatedSwarm

CAUSES = (events.TrainerDied, events.Started, events.Refounded)


@dataclass
class Witness:
    """Watches a swarm from its beginning."""

    swarm: SimulatedSwarm
    found: list[str] = field(default_factory=list)
    """What was wrong at the moment it was seen."""
    results: dict[tuple[int, int], dict[int, bytes]] = field(default_factory=dict)
    """Groups: (round, fragment) to peer number to the digest of what it holds after the step."""
    _held: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.swarm.network.gave = self._gave
        for peer in self.swarm.peers:
            peer.listeners.append(self._heard)

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _gave(self, sender: PeerId, key: RoundKey | None, source: Source | None) -> None:
        """No amnesia: nothing goes out of a peer that has no complete state in this life."""
        peer = next(one for one in self.swarm.peers if one.peer_id == sender)
        if peer.life.outer is None or peer.life.coordinator is None:
            what = "a state" if key is None else f"a payload for round {key.round}"
            self.found.append(f"4 no amnesia: {sender} gave {what} before it had a complete state")

    def _heard(self, peer: SimulatedPeer, event: Event) -> None:
        if isinstance(event, events.Started | events.TrainingBegan | events.Refounded) or peer.number not in self._held:
            if peer.life.outer is not None:
                self._held[peer.number] = peer.outer.params.clone()
            return
        stepped = event.fragment if isinstance(event, events.RoundEnded) else None
        self._old_but_for(peer, stepped, event.kind)
        if isinstance(event, events.RoundEnded) and event.outcome == "exchanged":
            self.results.setdefault((event.round, event.fragment), {})[peer.number] = peer.outer.digest(event.fragment)

    def _old_but_for(self, peer: SimulatedPeer, stepped: int | None, kind: str) -> None:
        """No third value: only an outer step that is journaled with it moves a fragment, and only that fragment."""
        if kind != "round_ended" and kind != "evaluated":
            return  # a step and its line are one; between them and other lines there may be a step under way
        before, after = self._held[peer.number], peer.outer.params
        for fragment in range(len(peer.layout.fragments)):
            start, end = peer.layout.fragment_span(fragment)
            moved = not torch.equal(before[start:end], after[start:end])
            if moved and fragment != stepped:
                self.found.append(
                    f"1 no third value: {peer.peer_id} moved fragment {fragment} without a journaled step"
                )
        self._held[peer.number] = after.clone()

    # -- afterwards --------------------------------------------------------------------------------------------------

    def broken(self) -> list[str]:
        """Every promise that was broken, a sentence each."""
        pairs = self.swarm.method.topology == "pair"
        checks = [self._conservation(), self._outcomes(), self._progress(), self._goes_on()]
        checks.append(self._partners() if pairs else self._one_truth())
        return [*self.found, *(sentence for check in checks for sentence in check)]

    def _conservation(self) -> Iterator[str]:
        for peer in self.swarm.peers:
            if (wrong := peer.ledger().imbalance) != 0:
                yield f"2 conservation: {peer.peer_id} is off by {wrong}: {peer.ledger()}"

    def _outcomes(self) -> Iterator[str]:
        """One outcome a (round, fragment) and life."""
        for peer in self.swarm.peers:
            seen: set[tuple[int, int]] = set()
            for event in peer.events:
                if isinstance(event, events.Started):
                    seen.clear()  # from an older checkpoint a round may be played again
                if isinstance(event, events.RoundEnded):
                    if (event.round, event.fragment) in seen:
                        yield f"1 no third value: {peer.peer_id} ended round {event.round} twice"
                    seen.add((event.round, event.fragment))

    def _partners(self) -> Iterator[str]:
        """A pair is one of two: who is named as partner names the other too, or says that the other failed in that
        round (only one side got everything), or never came to an outcome."""
        peers = {str(peer.peer_id): peer for peer in self.swarm.peers}
        for peer in self.swarm.peers:
            for event in peer.events:
                if not isinstance(event, events.RoundEnded) or event.outcome != "exchanged":
                    continue
                named = {_named(theirs) for theirs in _of_round(peers[event.partner], event.round)}
                if named and peer.peer_id not in named:
                    what = f"{peer.peer_id} mixed {event.partner}, which names {sorted(named)}"
                    yield f"1 no third value: round {event.round}: {what}"

    def _one_truth(self) -> Iterator[str]:
        for (round_, fragment), held in self.results.items():
            if len(set(held.values())) > 1:
                yield f"3 one truth: round {round_} fragment {fragment} came out differently: {sorted(held)}"

    def _progress(self) -> Iterator[str]:
        """Work is dropped only for a cause that is in the journal."""
        groups = self.swarm.method.topology == "group"
        for peer in self.swarm.peers:
            cause = False
            for event in peer.events:
                cause = cause or isinstance(event, CAUSES)
                if isinstance(event, events.Dropped) and not (cause or groups):
                    yield f"8 local progress: {peer.peer_id} dropped work although nothing had died: {event.reason}"

    def _goes_on(self) -> Iterator[str]:
        """Who lives at the end has played the last round."""
        for peer in self.swarm.peers:
            task = peer.life.task
            whole = task is not None and task.done() and not task.cancelled() and not peer.killed
            played = [e.round for e in peer.events if isinstance(e, events.RoundEnded | events.RoundMissed)]
            if whole and (not played or max(played) < self.swarm.total_rounds - 1) and not _late(peer, self.swarm):
                yield f"8 local progress: {peer.peer_id} ended with round {max(played, default=None)}"


def _named(event: Event) -> str:
    return event.partner if isinstance(event, events.RoundEnded) else getattr(event, "peer", "")


def _of_round(peer: SimulatedPeer, round_: int) -> Iterator[Event]:
    """Its outcome of a round, and the partners that failed it; nothing while there is no outcome."""
    said = [e for e in peer.events if isinstance(e, events.RoundEnded | events.PartnerFailed) and e.round == round_]
    return iter(said if any(isinstance(e, events.RoundEnded) for e in said) else [])


def _late(peer: SimulatedPeer, swarm: SimulatedSwarm) -> bool:
    """It came back when the run was over, or about to be."""
    began = [event.round for event in peer.events if isinstance(event, events.TrainingBegan)]
    return not began or began[-1] >= swarm.total_rounds - 1
