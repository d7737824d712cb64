"""The policy of a live run: the changes that an operator may make, and the policy of each round. The chain of
amendments is append-only and signed (`peer.run.statements`). This module computes only the effects.

An amendment holds from its round on, until a later one of the chain on the same matter holds. A later one may name an
earlier round: the one before it then never holds, and so an operator can correct what has not happened yet."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from peer.protocol.messages import PeerId

NOBODY = PeerId("")
NO_REASON = "no reason was given"


class Change(enum.StrEnum):
    """The kinds of amendment."""

    LR_SCALE = "lr_scale"
    """Multiply the inner learning rate by `value`. Only the last one holds."""
    PAUSE = "pause"
    """No training and no exchange. Peers still answer and donate."""
    GO_ON = "go_on"
    WIRE = "wire"
    """Peers must speak a wire version from `low` to `high`."""
    BAN = "ban"
    UNBAN = "unban"
    REVOKE = "revoke"
    """The invitations of `peer` count no more, until an UNBAN."""
    REFOUND = "refound"
    """Everybody goes on from the state whose digest is `digest`."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """One change. Fields that its kind does not use are as here."""

    number: int
    """1, 2, 3, …"""
    round: int
    """The first round in which it holds."""
    change: Change
    reason: str
    """The operator's reason, for every volunteer to read."""
    value: float = 1.0
    low: int = 0
    high: int = 0
    peer: PeerId = NOBODY
    digest: bytes = b""
    """BLAKE3 of `outer_params`, fp32 little endian, in layout order."""

    @property
    def matters(self) -> frozenset[tuple[str, PeerId]]:
        """What it decides: of two amendments on one matter the one with the greater number holds."""
        match self.change:
            case Change.PAUSE | Change.GO_ON:
                return frozenset({("pause", NOBODY)})
            case Change.BAN | Change.REVOKE:
                return frozenset({(self.change.value, self.peer)})
            case Change.UNBAN:
                return frozenset({(Change.BAN.value, self.peer), (Change.REVOKE.value, self.peer)})
            case _:
                return frozenset({(self.change.value, NOBODY)})


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The policy of one round."""

    lr_scale: float = 1.0
    paused: str | None = None
    """The operator's reason while paused."""
    wire: tuple[int, int] | None = None
    banned: Mapping[PeerId, str] = field(default_factory=dict)
    """Peer to reason, which is never empty."""
    revoked: Mapping[PeerId, str] = field(default_factory=dict)
    """As `banned`: those whose invitation the operator took back."""
    founded: bytes = b""
    """Digest of the state that all peers begin from. Empty: the run's first one."""
    founded_round: int = 0
    """The round in which that took effect."""

    @property
    def kept_out(self) -> Mapping[PeerId, str]:
        """The peers that take no part, and why: the banned, and those whose invitation was revoked."""
        return {**self.revoked, **self.banned} if self.revoked else self.banned

    def without(self, peer: PeerId) -> RunPolicy:
        """Return the policy that does not keep this peer out."""
        if peer not in self.kept_out:
            return self
        return replace(self, banned=_without(self.banned, peer), revoked=_without(self.revoked, peer))


def policy_at(amendments: Iterable[Amendment], round_: int, *, in_steps: bool = False) -> RunPolicy:
    """Return the policy after all amendments that have taken effect by `round_`, in order. `in_steps`: rounds are
    counted in inner steps. No round comes during a pause then, so the resuming amendment holds as soon as it is
    known."""
    now = RunPolicy()
    for amendment in amendments:
        ends_the_pause = in_steps and now.paused is not None and amendment.change is Change.GO_ON
        if amendment.round <= round_ or ends_the_pause:
            now = _after(now, amendment)
    return now


def superseded(amendments: Sequence[Amendment]) -> dict[int, int]:
    """Return the numbers of amendments that never hold, as later ones on the same matter name an earlier round, each
    with the number of the later one."""
    found, first = dict[int, int](), dict[tuple[str, PeerId], Amendment]()
    for one in reversed(amendments):
        others = [first.get(matter) for matter in one.matters]
        sooner = [other.number for other in others if other is not None and other.round < one.round]
        if len(sooner) == len(others):
            found[one.number] = max(sooner)
        for matter in one.matters:
            first[matter] = min(first.get(matter, one), one, key=lambda other: other.round)
    return found


def _after(now: RunPolicy, amendment: Amendment) -> RunPolicy:
    match amendment.change:
        case Change.LR_SCALE:
            return replace(now, lr_scale=amendment.value)
        case Change.PAUSE:
            return replace(now, paused=amendment.reason)
        case Change.GO_ON:
            return replace(now, paused=None)
        case Change.WIRE:
            return replace(now, wire=(amendment.low, amendment.high))
        case Change.BAN:
            return replace(now, banned={**now.banned, amendment.peer: amendment.reason or NO_REASON})
        case Change.UNBAN:
            return replace(
                now, banned=_without(now.banned, amendment.peer), revoked=_without(now.revoked, amendment.peer)
            )
        case Change.REVOKE:
            return replace(now, revoked={**now.revoked, amendment.peer: amendment.reason or NO_REASON})
        case Change.REFOUND:
            return replace(now, founded=amendment.digest, founded_round=amendment.round)


def _without(peers: Mapping[PeerId, str], peer: PeerId) -> dict[PeerId, str]:
    return {other: why for other, why in peers.items() if other != peer}


def describe(amendment: Amendment, instead: int | None = None) -> str:
    """Describe an amendment in a sentence, with the round from which on it holds. Round 0 stands for the time at which
    it became known: nothing is amended before a run begins. `instead`: number of the one that holds in its place."""
    if instead is not None:
        return f"amendment {amendment.number}, replaced by {instead}: {describe_change(amendment)}"
    when = f"from round {amendment.round} on" if amendment.round else "from when it was known"
    return f"amendment {amendment.number}, {when}: {describe_change(amendment)}"


def describe_change(amendment: Amendment) -> str:
    """Describe what an amendment changes, and the operator's reason."""
    match amendment.change:
        case Change.LR_SCALE:
            what = f"learning rate times {amendment.value:g}"
        case Change.PAUSE:
            what = "pause"
        case Change.GO_ON:
            what = "resume"
        case Change.WIRE:
            what = f"wire versions {amendment.low} to {amendment.high}"
        case Change.BAN:
            what = f"{amendment.peer} is banned"
        case Change.UNBAN:
            what = f"{amendment.peer} is no longer banned"
        case Change.REVOKE:
            what = f"the invitation of {amendment.peer} is revoked"
        case Change.REFOUND:
            what = f"everybody goes on from the state {amendment.digest.hex()[:16]}"
    return what + (f" ({amendment.reason})" if amendment.reason else "")
