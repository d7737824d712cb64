"""What the parts of a group share: its fixed terms, and the services of the daemon that they use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from peer.aio.threads import Offload
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.throughput import TransferMeter
from peer.membership.failure_detector import FailureDetector
from peer.membership.reputation import Reputation
from peer.ports.clock import Clock
from peer.ports.signer import Signer
from peer.ports.transport import GroupCalls
from peer.protocol.messages import PeerId, PeerRecord, Reach, RoundKey, RunId, Status

T = TypeVar("T")

KEEP_ROUNDS = 2
"""Number of finished rounds that are remembered with their results, for members that ask late."""


class GroupPeerTable(Protocol):
    """The part of `peer.membership.peer_table.PeerTable` that a group needs."""

    @property
    def peers(self) -> Mapping[PeerId, PeerRecord]: ...

    @property
    def banned(self) -> Callable[[], Container[PeerId]]: ...

    @property
    def detector(self) -> FailureDetector: ...

    def own_reach(self) -> Reach: ...

    def relay_rate(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTerms:
    """The terms of a group that do not change while the peer runs."""

    run_id: RunId
    me: PeerId
    elements: tuple[int, ...]
    """Elements of each fragment."""
    mean: MeanTerms
    max_group: int
    """Most members of a round."""
    founders: int = 0
    """Number of members that the group is expected to begin with, by the manifest; 0: not given."""
    max_upload: float | None = None
    """Bytes per second; None: no cap."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The services that all parts of a group use."""

    terms: GroupTerms
    signer: Signer
    transport: GroupCalls
    clock: Clock
    peer_table: GroupPeerTable
    reputation: Reputation
    offload: Offload
    transfers: TransferMeter = field(default_factory=TransferMeter)
    """Progress of the transfers under way."""

    def live(self, even_finished: bool = False) -> set[PeerId]:
        """Return the peers that can take part, ourselves included: training, in good standing, and not considered dead
        by the failure detector. `even_finished`: also the peers that have finished all their rounds."""
        fit = {Status.TRAINING, Status.FINISHED} if even_finished else {Status.TRAINING}
        return (self._acceptable(fit) - self.peer_table.detector.membership.peers_out()) | {self.terms.me}

    def counted(self) -> int:
        """Return the number of peers that a quorum is computed from. It includes peers that do not answer, so that a
        member that is cut off does not conclude that the others have left."""
        return len(self._acceptable({Status.TRAINING}) | {self.terms.me})

    def _acceptable(self, fit: set[Status]) -> set[PeerId]:
        banned = self.peer_table.banned()
        able = [p for p, record in self.peer_table.peers.items() if record.status in fit and p not in banned]
        return set(self.reputation.acceptable(able))

    def refusal_reason(self, peer: PeerId) -> str:
        """Return why calls of this peer are refused, as text for a person; empty if they are not."""
        if why := self.reputation.exclusion_reason(peer):
            return f"standing: {why}"
        return "banned by the operator" if peer in self.peer_table.banned() else ""


def drop_finished_rounds(table: OrderedDict[RoundKey, T], over: Callable[[T], bool]) -> None:
    """Delete finished rounds from the table, except the last KEEP_ROUNDS. `over`: returns whether a round has
    finished."""
    past = [key for key, value in table.items() if over(value)]
    for key in past[:-KEEP_ROUNDS]:
        del table[key]
