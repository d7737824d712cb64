"""The policy of a live run: the changes that an operator may make, and the policy that results for each round. The
chain of amendments is append-only and signed (`peer.run.statements`). This module computes only their effects.

An amendment takes effect in its round, and lasts until a later amendment on the same matter takes effect. A later
amendment may name an earlier round. The previous one then never takes effect, so an operator can correct an amendment
that has not taken effect yet."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from peer.protocol.messages import PeerId

NOBODY = PeerId("")
NO_REASON = "no reason was given"


class Change(enum.StrEnum):
    """The kinds of amendments."""

    LR_SCALE = "lr_scale"
    """Multiply the inner learning rate by `value`. Values of several amendments are not multiplied: the latest
    counts."""
    PAUSE = "pause"
    """Stop training and exchanges. Peers still answer and donate."""
    GO_ON = "go_on"
    """End a pause."""
    WIRE = "wire"
    """Peers must support a wire version from `low` to `high`."""
    BAN = "ban"
    UNBAN = "unban"
    REVOKE = "revoke"
    """The invitations of `peer` are invalid until an UNBAN."""
    REFOUND = "refound"
    """All peers continue from the state whose digest is `digest`."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """One change by the operator. Fields that its kind does not use have their defaults."""

    number: int
    """1, 2, 3, …"""
    round: int
    """First round in which it has effect."""
    change: Change
    reason: str
    """The operator's reason, which every volunteer can read."""
    value: float = 1.0
    low: int = 0
    high: int = 0
    peer: PeerId = NOBODY
    digest: bytes = b""
    """BLAKE3 of `outer_params` in fp32, little endian, in layout order."""

    @property
    def matters(self) -> frozenset[tuple[str, PeerId]]:
        """What the amendment decides. Of two amendments on one matter, the one with the greater number has effect."""
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
    """The policy of one round, as the amendments before it determine."""

    lr_scale: float = 1.0
    paused: str | None = None
    """The operator's reason during a pause. None: not paused."""
    wire: tuple[int, int] | None = None
    banned: Mapping[PeerId, str] = field(default_factory=dict)
    """Reason for each banned peer, never empty."""
    revoked: Mapping[PeerId, str] = field(default_factory=dict)
    """Reason for each peer whose invitation the operator revoked, never empty."""
    founded: bytes = b""
    """Digest of the state from which all peers continue. Empty: the run's first state."""
    founded_round: int = 0
    """Round in which `founded` took effect."""

    @property
    def kept_out(self) -> Mapping[PeerId, str]:
        """Peers that may not take part, with the reason: banned, or with a revoked invitation."""
        return {**self.revoked, **self.banned} if self.revoked else self.banned

    def without(self, peer: PeerId) -> RunPolicy:
        """Return this policy with `peer` admitted."""
        if peer not in self.kept_out:
            return self
        return replace(self, banned=_without(self.banned, peer), revoked=_without(self.revoked, peer))


def policy_at(amendments: Iterable[Amendment], round_: int, *, in_steps: bool = False) -> RunPolicy:
    """Return the policy of a round.

    `in_steps`: rounds are counted in inner steps. Then no round starts during a pause, so a GO_ON takes effect as soon
    as it is known."""
    now = RunPolicy()
    for amendment in amendments:
        ends_the_pause = in_steps and now.paused is not None and amendment.change is Change.GO_ON
        if amendment.round <= round_ or ends_the_pause:
            now = _after(now, amendment)
    return now


def superseded(amendments: Sequence[Amendment]) -> dict[int, int]:
    """Return the amendments that never take effect because a later one on the same matter names an earlier round. Maps
    their number to the number of the later one."""
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
    """Describe an amendment in a sentence, with its first round. Round 0 means from when it became known, because no
    amendment exists before the run starts. `instead`: number of the amendment that replaces it."""
    if instead is not None:
        return f"amendment {amendment.number}, replaced by {instead}: {describe_change(amendment)}"
    when = f"from round {amendment.round} on" if amendment.round else "from when it was known"
    return f"amendment {amendment.number}, {when}: {describe_change(amendment)}"


def describe_change(amendment: Amendment) -> str:
    """Describe what an amendment changes, with the operator's reason."""
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
