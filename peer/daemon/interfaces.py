"""The four things the coordinator talks to. Each has a real and an in-memory implementation and one conformance
suite, so that the production coordinator runs unchanged under the real network and under a virtual clock.

Implementations satisfy these structurally; `peer.net` and `peer.trainer` never import this module."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from peer.net.directory.contact import Contact
from peer.net.handler import Handler
from peer.protocol.messages import (
    Answer,
    Offer,
    PeerId,
    PeerRecord,
    Probed,
    RoundKey,
    Sink,
    Source,
    StateIndex,
    SwapReport,
    Told,
    Vouched,
    Welcome,
)
from peer.protocol.quorum import Base
from peer.protocol.roster import Join, JoinReply
from peer.protocol.shards import Opening, Receipt, ResultSink
from peer.trainer.seam import AT_ONCE, Counters, Evaluation, Merge, TrainerInfo, Work, WorkRequest

__all__ = [
    "Clock",
    "Counters",
    "Directory",
    "Evaluation",
    "GroupTransport",
    "Handler",
    "Trainer",
    "TrainerInfo",
    "Transport",
    "Work",
    "WorkRequest",
]


class Clock(Protocol):
    """Run time: seconds since the epoch on the swarm's common clock (corrected by what was measured at Hello)."""

    def now(self) -> float: ...

    @property
    def correction(self) -> float:
        """What `now` differs from this machine's uncorrected clock, seconds."""

    def raw(self, run_time: float) -> float:
        """The same moment on the clock that the trainer, a process of its own, reads: `peer.steady.steady`."""

    async def sleep(self, seconds: float) -> None: ...

    def observe(self, offset_s: float) -> None:
        """A Hello measured another peer's run clock minus our uncorrected one. Feeds the correction; a no-op where
        there is only one clock."""


class Directory(Protocol):
    """Who takes part in the run. Never raises for an absent network: it goes on looking in the background."""

    async def announce(self, record: PeerRecord) -> None:
        """Sign and publish our record; replaces the former one. Repeated by the caller at a third of its life."""

    async def withdraw(self) -> None:
        """Publish a record of status LEAVING that expires at once, best effort within a second."""

    async def peers(self) -> dict[PeerId, PeerRecord]:
        """The live records of this run but our own: signature, run id and expiry checked, latest per peer. Not
        changed afterwards."""

    @property
    def good_until(self) -> float:
        """No record that `peers` gave last expires before then."""

    def contact(self) -> Contact:
        """How the addresses given at the start are answered, and how far our clock is from the others'."""


class GroupTransport(Protocol):
    """Calls among the members of a group; bounded and failing as those of `Transport`."""

    async def join_round(self, leader: PeerRecord, join: Join, timeout_s: float) -> JoinReply:
        """Ask a peer to lead a round, or who does. It may hold the call for `join.wait_s`."""

    async def contribute(
        self, owner: PeerRecord, opening: Opening, source: Source | None, sink: ResultSink, timeout_s: float
    ) -> Receipt:
        """Send our part of a shard to its owner (`source` None: nothing is sent) and wait for the result: returns when
        `sink` holds it, complete and verified. Raises when it does not: `sink` is then to be thrown away. An owner that
        falls silent is noticed within five seconds; where both sides go on over another connection it is lost after
        ten more. Nothing is read of `source` once the result has begun."""

    async def held(self, by: PeerRecord, fragment: int, timeout_s: float) -> Base:
        """Which state of a fragment a peer has now."""

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        """A part of a fragment's state (`peer.state.fragments`), of just this length; its digest is the caller's to
        check, over all parts."""


class Transport(Protocol):
    """Calls to other peers. Every call says Hello first when it has to, is bounded by its timeout, and raises only
    `PartnerLost`, `PartnerRefused` or `BadPayload`."""

    @property
    def group(self) -> GroupTransport: ...

    async def forget_connections(self) -> None:
        """After a sleep: the next call to each peer connects anew."""

    async def hello(self, to: PeerRecord, timeout_s: float) -> Welcome: ...

    async def offer(self, to: PeerRecord, offer: Offer, timeout_s: float) -> Answer: ...

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        source: Source,
        sink: Sink,
        timeout_s: float,
        dial: bool,
        told: Told | None = None,
    ) -> SwapReport:
        """Exchange payloads with a locked partner; both sides call this, one of them with `dial`: see
        `peer.protocol.pairing.initiates`. Returns when `sink` holds the partner's complete verified payload, whatever
        became of ours. Raises when it does not: `sink` is then to be thrown away. Neither source nor sink is touched
        after that: what they lie in is used again. `told`: what the partner is told of us; the report holds what it
        told."""

    async def probe(self, by: PeerRecord, endpoints: tuple[str, ...], timeout_s: float) -> Probed:
        """Ask a peer to dial us, at these endpoints and where it sees us calling from."""

    async def vouch(self, by: PeerRecord, about: PeerId, timeout_s: float) -> Vouched:
        """Ask a peer whether it reaches another one, which does not answer us."""

    async def fetch_amendments(
        self, to: PeerRecord, held: int, head: bytes, timeout_s: float
    ) -> list[tuple[bytes, bytes]]:
        """(raw, signature) of the operator's amendments behind the `held` we have, unchecked."""

    async def fetch_manifest(self, to: PeerRecord, timeout_s: float) -> tuple[bytes, bytes]: ...

    async def describe_state(
        self, donor: PeerRecord, timeout_s: float, fresh: bool = False, wanted: str = ""
    ) -> StateIndex:
        """The snapshot that a donor offers. `fresh`: of its state as it is now, not the one it offered before.
        `wanted`: this one, if it still keeps it."""

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes:
        """One piece, its digest verified."""


class Trainer(Protocol):
    """The inner loop behind one small seam. Any call raises `TrainerDied` when the process is gone or goes while
    waiting; `start` may then be called again."""

    async def start(self, outer_params: torch.Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        """Make ready to train from `outer_params` (fp32, flat, whole model). Sets every base counter to the tokens
        processed so far, except with `resume`: a folder that `save` wrote, which restores params, inner optimizer,
        step in the round and leaves the base counters as they are (its token count must equal the counter's, else the
        folder is used for the inner optimizer only). Held until the first `work`."""

    async def work(self, request: WorkRequest) -> Work:
        """One at a time. A request that comes late, its steps done or its moment past, gets the next step boundary.
        Cancelled, it holds the trainer."""

    async def apply(
        self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int, merge: Merge = AT_ONCE
    ) -> None:
        """At the step boundary that `merge` names, merge `outer_params` (fp32, flat, the fragment) into the fragment's
        params and set its base counter to `base`. A trainer that was held goes on with the next `work`, in `next_round`
        with step 0. Returns when it is done. Applies of other fragments, and a `work`, may be pending meanwhile; so may
        one later snapshot of the fragment be out. Where a merge and a snapshot fall together, the merge comes first.
        `base` names the snapshot by its `processed`; with `merge.shift` there is none, and `base` and `next_round` do
        not count. Cancelled, it leaves the merge to come; a death takes it along."""

    def release(self, key: RoundKey) -> None:
        """Nothing will be applied for this snapshot: do not wait for it. Never raises."""

    def hold(self) -> None:
        """Stop at the next step boundary until the next `work`; what waits to be merged is merged there. Never
        raises."""

    async def evaluate(self, outer_params: torch.Tensor | None) -> Evaluation:
        """Loss of these parameters (whole model) on the fixed hold-out, None: of the trainer's own, which stay as they
        are."""

    async def save(self, folder: Path) -> int:
        """Write params, inner optimizer and position into `folder` (safetensors and JSON) at a step boundary; the token
        count there. What is not merged yet is not in it. Raises OSError when that fails (a full disk); the trainer goes
        on."""

    def counters(self) -> Counters:
        """Read now, from the file: works without a running trainer."""

    async def stop(self) -> None:
        """End the process within 2 s, whatever it is doing. Never raises."""
