"""The amendments a daemon holds: kept in its run folder, asked of others every few seconds, handed on to whoever asks.
A new one reaches everybody in a few hops even when the operator's node is seen by some only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from peer.codes import Code
from peer.errors import HomeUnusable, JoinRefused, ManifestError
from peer.membership.operators_word import ASK_TIMEOUT_S, OperatorsWord
from peer.observe import events
from peer.ports.transport import Transport
from peer.protocol.messages import MAX_ROUND, WIRE_VERSION, PeerId, PeerRecord
from peer.protocol.policy.amendments import Amendment, RunPolicy, describe, policy_at, superseded
from peer.run.amendments import Chain, SignedAmendment, keep, load

AMENDMENTS = "amendments.jsonl"
"""File of a run's folder that keeps them."""
MAX_HANDED_ON = 64
"""In one answer; who lacks more asks again."""


class AmendmentSync(OperatorsWord):
    """One daemon's. `told` is called with every amendment that is new here."""

    def __init__(
        self,
        chain: Chain,
        path: Path | None,
        emit: Callable[[events.Event], None],
        told: Callable[[Amendment], None] = lambda amendment: None,
        *,
        in_steps: bool = False,
        rounds: int = MAX_ROUND,
        round_now: Callable[[], int] = lambda: 0,
    ) -> None:
        """Reads what was kept (None: nothing is, in simulations). A kept file that does not check counts as
        far as it does; the rest is asked anew. `in_steps`: the run's rounds are counted in inner steps. `rounds`: how
        many the run has; an amendment of a later one never holds.
        `round_now`: returns the round under way here (0: not known), in which an amendment that comes begins to hold at
        the earliest."""
        self._round_now = round_now
        self._came_in: dict[int, int] = {}
        """The round in which an amendment came, by its number. Those kept by an earlier process are not in it."""
        super().__init__(lambda peer, code, why: emit(events.AmendmentRefused(peer=peer, code=code, reason=why)))
        self._chain = chain
        self._in_steps = in_steps
        self._last = rounds - 1
        self._ruled: tuple[int, int, RunPolicy] = (-1, -1, RunPolicy())
        self._path = path
        self._emit = emit
        self._told = told
        try:
            if path is not None:
                load(path, chain)
        except ManifestError as damaged:
            emit(events.AmendmentRefused(peer="", code=Code.KEPT, reason=damaged.found))

    def ruling(self, round_: int) -> RunPolicy:
        """Return what holds in this round, by the amendments known here. The operator's own key is never kept out: no
        peer would hear of the next amendment. Asked at every call of another peer: the last answer is kept."""
        known = len(self._chain.amendments)
        if self._ruled[:2] != (round_, known):
            now = policy_at(self._chain.amendments, min(round_, self._last), in_steps=self._in_steps)
            self._ruled = round_, known, now.without(self._chain.operator)
        return self._ruled[2]

    def newest(self, count: int) -> list[Amendment]:
        """Return the last ones, each from the round on in which it began to hold here. Those that never hold are left
        out."""
        never = superseded(self._chain.amendments)
        return [self._as_held(one) for one in self._chain.amendments if one.number not in never][-count:]

    def _as_held(self, amendment: Amendment) -> Amendment:
        return replace(amendment, round=max(amendment.round, self._came_in.get(amendment.number, 0)))

    def latest(self, count: int) -> list[str]:
        """Return the last ones, for a person."""
        never = superseded(self._chain.amendments)
        return [describe(self._as_held(one), never.get(one.number)) for one in self._chain.amendments[-count:]]

    @property
    def count(self) -> int:
        return len(self._chain.signed)

    def since(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        """For one who asks: what it lacks, in order."""
        lacking = self._chain.since(held, head)
        return [(signed.raw, signed.signature) for signed in lacking[:MAX_HANDED_ON]]

    def read(self, operators_file: Path) -> None:
        """Take what the operator has added to the file beside the manifest. Raises ManifestError."""
        before = self.count
        try:
            load(operators_file, self._chain)
        finally:
            self._new_since(before)

    async def _take(self, transport: Transport, record: PeerRecord) -> bool:
        held = self.count
        given = await transport.fetch_amendments(record, held, self._chain.head, ASK_TIMEOUT_S)
        for raw, signature in given[:MAX_HANDED_ON]:
            self._chain.extend(SignedAmendment(raw, signature))
        return self.count > held

    def _new_since(self, before: int) -> None:
        if self.count == before:
            return
        came_in = self._round_now()
        for new in self._chain.amendments[before:]:
            self._came_in[new.number] = came_in
            amendment = self._as_held(new)
            self._emit(events.Amended(number=amendment.number, round=amendment.round, change=describe(amendment)))
            self._told(amendment)
        try:
            if self._path is not None:
                keep(self._path, self._chain)
        except HomeUnusable as error:  # obeyed all the same; after a restart the others tell again
            self._emit(events.AmendmentRefused(peer="", code=Code.NOT_KEPT, reason=error.found))


def ensure_admitted(now: RunPolicy, me: PeerId) -> None:
    """Raises JoinRefused when the operator keeps this peer out."""
    if me in now.banned:
        why = now.banned[me]
        raise JoinRefused(f"the operator of this run has banned this peer: {why}", "Ask the operator of the run.")
    if me in now.revoked:
        why = now.revoked[me]
        raise JoinRefused(f"the operator of this run revoked your invitation: {why}", "Ask the operator of the run.")
    if now.wire is not None and not now.wire[0] <= WIRE_VERSION <= now.wire[1]:
        low, high = now.wire
        raise JoinRefused(
            f"the operator has moved this run to wire versions {low} to {high}; this program speaks {WIRE_VERSION}",
            "Update this program: peer help install update",
        )
