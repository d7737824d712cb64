"""`Method`: a resolved synchronization method, with its choices of schedule, topology, outer rule, codecs and merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from peer.methods.rule import OuterRule
from peer.methods.topology import GROUP, PAIR, TOPOLOGIES, Topology
from peer.protocol.round_lengths import Growth
from peer.protocol.schedule import RoundClock

Refusal = tuple[str, str]
"""(key in the manifest's [sync], why its value is refused)."""
Caution = tuple[str, str]
"""(key in the manifest's [sync], what its value did in simulations)."""

MAX_GROUP, WEIGHTS, MEAN, ACCEPTANCE = 16, "tokens", "weighted", "check"
PAIRED: dict[str, Any] = {"topology": PAIR.name, "acceptance": ACCEPTANCE}
GROUPED: dict[str, Any] = {"topology": GROUP.name, "max_group": MAX_GROUP, "weights": WEIGHTS, "mean": MEAN}
STREAMED: dict[str, Any] = {"fragments": 2, "fragment_layout": "strided", "fragment_update_alpha": 0.5}
WHOLE: dict[str, Any] = {"fragments": 1, "fragment_layout": "whole", "fragment_update_alpha": 0.0}
"""Default choices for the topologies pair and group, and for the schedules streaming and full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A resolved method: the value of every choice in a manifest's [sync].

    `peer.run.resolve.resolve` makes it from a manifest, and refuses invalid methods."""

    topology: str
    """Name of the topology (`peer.methods.topology.TOPOLOGIES`)."""
    rule: str
    """Name of the outer rule (`peer.methods.registry.RULES`)."""
    outer_lr: float
    outer_momentum: float
    consensus: float
    """NoLoCo: gamma, the pull towards the partner's outer_params. GASLoC: the pull towards the values that the partner
    sends. Other rules: 0."""
    codec: str
    """Codec of the payload that a peer sends: params in pairs, pseudo-gradients in groups."""
    result_codec: str = ""
    """Codec of the result that a shard owner sends to the group. Empty: the topology is not group."""
    schedule: str = "full"
    """`full`: the whole model at once, while the trainer waits. `streaming`: one fragment at a time, during
    training."""
    fragments: int = 1
    fragment_layout: str = "whole"
    """How tensors are assigned to fragments: see `peer.protocol.model.fragments.cut`."""
    fragments_apart: bool = False
    """Whether embedding, last norm and head are a fragment of their own, the last one."""
    clock: str = "seconds"
    sync_every: float = 300.0
    """Time between two exchanges of the same fragment, in seconds or inner steps as `clock` says."""
    growth_lr: float = 0.0
    """Learning rate below which rounds grow (`peer.protocol.round_lengths.quadratic_growth`). 0: all have one
    length."""
    growth: Growth = ()
    """How rounds grow, by the manifest. `peer manifest new` computes it from `growth_lr`."""
    fragment_sync_delay: float = 0.0
    """Seconds or inner steps from a round's snapshot to the earliest merge of its result. 0: the trainer waits."""
    eager: bool = False
    """Whether a group's member applies its own part of a step at once, and the parts of the other members later."""
    fragment_update_alpha: float = 0.0
    """Weight of the local value in a merge. 0: outer_params replace it."""
    max_group: int = 0
    """Most members of a group. 0: the topology is not group."""
    founders: int = 0
    """Number of peers with which a group is expected to begin: its first result needs more than half of them. 0: more
    than half of the peers that are seen."""
    weights: str = ""
    """Weight of a member in a group's mean: its `tokens`, or `equal`. Empty: the topology is not group."""
    mean: str = ""
    """Kind of a group's mean: `weighted`, or `rda` (radial-directional). Empty: the topology is not group."""
    acceptance: str = ""
    """How a partner's params are checked. `finite`: they must be finite and have the right layout. `clip`: in addition,
    their distance from the own params is limited to the usual one. `check`: in addition, the mean with them must not
    have a worse loss. Empty: the topology is not pair."""

    @property
    def round_length(self) -> float:
        """Seconds or inner steps of the shortest round. In each round, one fragment is exchanged."""
        return self.sync_every / self.fragments

    def round_clock(self, start: float = 0.0) -> RoundClock:
        """Return the clock of the method's rounds. `start`: beginning of round 0, for a clock in seconds."""
        kind: Literal["steps", "seconds"] = "steps" if self.clock == "steps" else "seconds"
        return RoundClock(kind, self.sync_every, self.fragments, start, self.growth)

    @property
    def waits(self) -> bool:
        """Whether the trainer waits for the result of a round before it makes further steps."""
        return self.schedule == "full" or not (self.fragment_sync_delay or self.eager)

    @property
    def topology_spec(self) -> Topology:
        """The object of the topology that `topology` names."""
        return TOPOLOGIES[self.topology]

    @property
    def exchanges(self) -> bool:
        """Whether anything crosses the wire."""
        return self.topology_spec.exchanges

    @property
    def paired(self) -> bool:
        """Whether exchanges are between two partners."""
        return self.topology_spec.paired

    @property
    def one_state(self) -> bool:
        """Whether all peers hold one state, outer_momentum included."""
        return self.topology_spec.one_state

    @property
    def peers(self) -> int:
        """Most peers that exchange with each other in a round, including this one."""
        return self.topology_spec.peers or self.max_group

    @property
    def payload(self) -> str:
        """Kind of payload that a peer sends, a key of `peer.methods.codec_specs.KINDS`."""
        return self.topology_spec.payload

    @property
    def vectors(self) -> int:
        """Number of vectors of a fragment's length that a peer sends in a round."""
        if not self.exchanges:
            return 0
        return 2 if self.paired and self.sends_outer else 1

    @property
    def outer_rule(self) -> OuterRule:
        """The object of the rule that `rule` names."""
        # imported here, because the registry's files import this module to make presets
        from peer.methods.registry import RULES

        return RULES[self.rule]

    @property
    def sends_outer(self) -> bool:
        """Whether a peer of a pair sends its outer_params together with its params."""
        return self.outer_rule.sends_outer(self)

    @property
    def keeps_momentum(self) -> bool:
        """Whether the outer step writes outer_momentum."""
        return self.outer_rule.keeps_momentum(self)

    @property
    def sent_lr(self) -> float:
        """The fraction of a peer's own work that is contained in the values that it sends to its partner."""
        return self.outer_rule.sent_lr(self)
