"""A resolved synchronization method: five independent choices (schedule, topology, outer rule, codecs, merge)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from peer.methods.rule import OuterRule
from peer.methods.topology import GROUP, PAIR, TOPOLOGIES, Topology
from peer.protocol.round_lengths import Growth
from peer.protocol.schedule import RoundClock

Refusal = tuple[str, str]
"""The key of a choice in [sync], and why it cannot be."""
Caution = tuple[str, str]
"""The key of a choice in [sync], and what it did."""

MAX_GROUP, WEIGHTS, MEAN, ACCEPTANCE = 16, "tokens", "weighted", "check"
PAIRED: dict[str, Any] = {"topology": PAIR.name, "acceptance": ACCEPTANCE}
GROUPED: dict[str, Any] = {"topology": GROUP.name, "max_group": MAX_GROUP, "weights": WEIGHTS, "mean": MEAN}
STREAMED: dict[str, Any] = {"fragments": 2, "fragment_layout": "strided", "fragment_update_alpha": 0.5}
WHOLE: dict[str, Any] = {"fragments": 1, "fragment_layout": "whole", "fragment_update_alpha": 0.0}
"""The choices that follow from a topology and from a schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A resolved method. Made by `peer.run.resolve.resolve`, which refuses what cannot be."""

    topology: str
    """The name of the topology (`peer.methods.topology.TOPOLOGIES`)."""
    rule: str
    """The name of the outer rule (`peer.methods.registry.RULES`)."""
    outer_lr: float
    outer_momentum: float
    consensus: float
    """NoLoCo's gamma: the pull towards the partner's outer_params. GASLoC's: the pull towards what the partner sends.
    Zero for the other rules."""
    codec: str
    """Codec of the payload that a peer sends: its params in pairs, its pseudo-gradients in groups."""
    result_codec: str = ""
    """Codec of the result that a shard owner sends to the group. Empty without a group."""
    schedule: str = "full"
    """`full`: the full model at once, and the trainer waits. `streaming`: a fragment at a time, during training."""
    fragments: int = 1
    fragment_layout: str = "whole"
    """The pattern of the cut: see `peer.protocol.model.fragments.cut`."""
    fragments_apart: bool = False
    """Embedding, last norm and head are a fragment of their own, the last one."""
    clock: str = "seconds"
    sync_every: float = 300.0
    """Seconds or inner steps between two exchanges of the same fragment."""
    growth_lr: float = 0.0
    """Learning rate below which rounds grow: `peer.protocol.round_lengths.quadratic_growth`. 0: they stay equal."""
    growth: Growth = ()
    """The growth of rounds that the manifest names. `peer manifest new` makes it from `growth_lr`."""
    fragment_sync_delay: float = 0.0
    """Seconds or inner steps from a round's snapshot to the earliest merge of the result. 0: the trainer waits."""
    eager: bool = False
    """Whether a group's member steps at once with its own part, and with the others' later."""
    fragment_update_alpha: float = 0.0
    """Part of the local value that the merge keeps. 0: it is replaced by outer_params."""
    max_group: int = 0
    """The largest group, 0 without one."""
    founders: int = 0
    """Number of peers that a group begins with: its first result takes more than half. 0: of those seen."""
    weights: str = ""
    """What a member weighs in a group's mean: `tokens`, or as much as any other (`equal`). Empty without a group."""
    mean: str = ""
    """A group's mean: `weighted`, or `rda`, the radial-directional one. Empty without a group."""
    acceptance: str = ""
    """What a partner's params must pass: `finite` (they are numbers of our kind), `clip` (no more of them is taken than
    is usual), or `check` (that, and the mean with them has no worse loss). Empty without pairs."""

    @property
    def round_length(self) -> float:
        """Seconds or inner steps of the shortest round. Each round is one fragment's."""
        return self.sync_every / self.fragments

    def round_clock(self, start: float = 0.0) -> RoundClock:
        """Return the clock of its rounds. `start`: when round 0 began, with a clock in seconds."""
        kind: Literal["steps", "seconds"] = "steps" if self.clock == "steps" else "seconds"
        return RoundClock(kind, self.sync_every, self.fragments, start, self.growth)

    @property
    def waits(self) -> bool:
        """Whether the trainer stands still for the result of a round."""
        return self.schedule == "full" or not (self.fragment_sync_delay or self.eager)

    @property
    def topology_spec(self) -> Topology:
        """The topology itself."""
        return TOPOLOGIES[self.topology]

    @property
    def exchanges(self) -> bool:
        """Whether anything crosses the wire."""
        return self.topology_spec.exchanges

    @property
    def paired(self) -> bool:
        """Whether it is two partners that exchange."""
        return self.topology_spec.paired

    @property
    def one_state(self) -> bool:
        """Whether all peers hold one state, outer_momentum included."""
        return self.topology_spec.one_state

    @property
    def peers(self) -> int:
        """How many exchange with each other in a round, at most."""
        return self.topology_spec.peers or self.max_group

    @property
    def payload(self) -> str:
        """The kind of payload a peer sends (`peer.methods.codec_specs.KINDS`)."""
        return self.topology_spec.payload

    @property
    def vectors(self) -> int:
        """How many vectors of a fragment's length a peer sends in a round."""
        if not self.exchanges:
            return 0
        return 2 if self.paired and self.sends_outer else 1

    @property
    def outer_rule(self) -> OuterRule:
        """The rule itself."""
        from peer.methods.registry import RULES  # its files make presets, which are methods

        return RULES[self.rule]

    @property
    def sends_outer(self) -> bool:
        """Whether outer_params travel with the params of a pair."""
        return self.outer_rule.sends_outer(self)

    @property
    def keeps_momentum(self) -> bool:
        """Whether the outer step writes a momentum."""
        return self.outer_rule.keeps_momentum(self)

    @property
    def sent_lr(self) -> float:
        """The part of its work that a peer of a pair sends."""
        return self.outer_rule.sent_lr(self)
