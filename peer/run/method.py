"""A resolved synchronization method: five independent choices (schedule, topology, outer rule, codecs, merge)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A resolved method. Made by `peer.run.presets.resolve`, which refuses what cannot be."""

    topology: str
    """`pair`: a random partner a round. `group`: everybody of the round. `solo`: nobody."""
    rule: str
    """Rule of the outer step: `noloco`, `nesterov` or `sgd`."""
    outer_lr: float
    outer_momentum: float
    consensus: float
    """NoLoCo's gamma: the pull towards the partner's outer_params. Zero for the other rules."""
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
    fragment_sync_delay: float = 0.0
    """Seconds or inner steps from a round's snapshot to the earliest merge of the result. 0: the trainer waits."""
    fragment_update_alpha: float = 0.0
    """Part of the local value that the merge keeps. 0: it is replaced by outer_params."""
    max_group: int = 0
    """The largest group, 0 without one."""
    founders: int = 0
    """Number of peers that a group begins with: its first result takes more than half. 0: of those seen."""

    @property
    def round_length(self) -> float:
        """Seconds or inner steps from one round to the next. Each round is one fragment's."""
        return self.sync_every / self.fragments

    @property
    def payload(self) -> str:
        """The kind of payload a peer sends (`peer.run.codec_specs.KINDS`)."""
        return "pseudo_gradient" if self.topology == "group" else "params"

    @property
    def vectors(self) -> int:
        """How many vectors of a fragment's length a peer sends in a round. In pairs, params alone suffice when
        consensus = outer_lr. Otherwise outer_params travel with them."""
        if self.topology == "solo":
            return 0
        return 2 if self.topology == "pair" and self.consensus != self.outer_lr else 1
