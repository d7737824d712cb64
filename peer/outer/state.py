"""A peer's outer state, which is evaluated, archived, donated, and moved by the outer rule."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from blake3 import blake3
from torch import Tensor

from peer.outer.look_ahead import LookAhead
from peer.outer.pages import zeros
from peer.outer.rules import (
    BLOCK,
    blocks,
    descend_,
    gasloc_,
    nesterov_,
    noloco_,
    noloco_apart_,
    pair_mean_,
    pseudo_gradient_,
    scale_work_,
    sgd_,
    step_along_,
)
from peer.outer.values import GroupState, MeanGradient, NoStep, OuterRule, OuterValues, OwnWork, PartnerParams
from peer.protocol.model.layout import Layout


@dataclass(slots=True)
class OuterState:
    """`outer_params` and `outer_momentum` of the model, flat fp32 in layout order.

    The momentum takes memory where it was written: a rule that has none never does. The params may lie in memory that
    is shared with the trainer, which only reads them.

    `peer.rounds.commit` alone moves them, through `step_with`, which runs in a worker thread: one at a time for a
    fragment, and different fragments at once."""

    layout: Layout
    params: Tensor
    momentum: Tensor
    ahead: dict[int, LookAhead] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The own part of eager updates, by the number of its fragment. It is there from the first update on."""
    _under_way: int = field(default=0, init=False, repr=False)
    _begun: int = field(default=0, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @classmethod
    def fresh(cls, layout: Layout, params: Tensor) -> OuterState:
        """Momentum zero: pair topology, first start and joiners alike."""
        assert params.shape == (layout.elements,), (params.shape, layout.elements)
        return cls(layout, params.to(torch.float32), zeros(layout.elements))

    @property
    def busy(self) -> bool:
        """A step is under way in a thread: nobody may copy the params now."""
        return self._under_way > 0

    @property
    def begun(self) -> int:
        """How many steps have ever begun. A copy made in another thread is whole if this is the same before and after,
        and neither time `busy`."""
        return self._begun

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around every `step_with`, from before it is handed to its thread until it is done: `busy` meanwhile. Several
        may be under way."""
        with self._lock:
            self._under_way += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def fragment(self, fragment: int) -> Tensor:
        """A view of one fragment of `params`."""
        return self._views(fragment)[0]

    def step_with(self, fragment: int, values: OuterValues, rule: OuterRule) -> bytes:
        """Take the outer step of a fragment that these values make. Return the digest of its state afterwards where the
        members of a group compare it, else nothing: hashing takes longer than a step."""
        match values:
            case OwnWork() as own:
                self.step(
                    fragment,
                    own.params,
                    None,
                    rule=rule.rule,
                    outer_lr=rule.outer_lr,
                    outer_momentum=rule.outer_momentum,
                    share=own.share,
                )
            case PartnerParams(own, partner):
                elements = own.params.numel()
                self.step(
                    fragment,
                    own.params,
                    partner[:elements],
                    rule=rule.rule,
                    outer_lr=rule.outer_lr,
                    outer_momentum=rule.outer_momentum,
                    share=own.share,
                    consensus=rule.consensus,
                    partner_outer=partner[elements:],
                )
            case MeanGradient(gradient, spans):
                self.descend(
                    fragment,
                    gradient,
                    spans,
                    rule=rule.rule,
                    outer_lr=rule.outer_lr,
                    outer_momentum=rule.outer_momentum,
                )
                return self.digest(fragment)
            case GroupState(params, momentum):
                self.put(fragment, params, momentum)
                return self.digest(fragment)
            case NoStep(digest):
                return digest
        return b""

    def step(
        self,
        fragment: int,
        own: Tensor,
        partner: Tensor | None,
        *,
        rule: str,
        outer_lr: float,
        outer_momentum: float,
        share: float = 1.0,
        consensus: float | None = None,
        partner_outer: Tensor | None = None,
    ) -> None:
        """One outer step of a fragment with the partner's decoded params, or solo (`partner` None: the means are over
        one). `own`, `partner` and `partner_outer` are flat fp32 of the fragment's length and only read; temporaries are
        of a block, and made before anything is moved.

        share: the part of the own work since the last outer step that counts; the partner has already scaled its own,
        and with gasloc taken its outer_lr of it. consensus: None is outer_lr. With another value a pair of noloco needs
        `partner_outer`, the partner's decoded outer_params of before its step; a solo step does not, since nobody's are
        the mean of its own."""
        outer, momentum = self._views(fragment)
        assert rule in ("noloco", "gasloc", "sgd") or (rule == "nesterov" and partner is None), rule
        if rule != "noloco" or partner is None or consensus in (None, outer_lr):
            partner_outer = None
        else:
            assert partner_outer is not None, "with a consensus of its own the partner's outer_params are needed too"
        for given in (own, partner, partner_outer):
            assert given is None or given.shape == outer.shape, (given.shape, outer.shape)
        consensus = outer_lr if consensus is None else consensus
        space = torch.empty(2, min(BLOCK, outer.numel()))
        for part in blocks(outer.numel()):
            params, speed = outer[part], momentum[part]
            mean, other = space[:, : params.numel()]
            mean.copy_(own[part])
            if rule == "nesterov":
                pseudo_gradient_(mean, params, share)
                nesterov_(params, speed, mean, outer_lr=outer_lr, outer_momentum=outer_momentum)
                continue
            if rule == "gasloc":
                step_along_(mean, params, share * outer_lr)
                theirs = None if partner is None else other.copy_(partner[part])
                gasloc_(params, speed, mean, theirs, outer_momentum=outer_momentum, consensus=consensus)
                continue
            scale_work_(mean, params, share)
            if partner is not None:
                pair_mean_(partner[part], mean)
            if rule == "sgd" or (partner_outer is None and outer_momentum == 0.0):
                sgd_(params, mean, outer_lr=outer_lr)  # a momentum of zero takes no memory as long as nobody writes it
            elif partner_outer is None:
                noloco_(params, speed, mean, outer_lr=outer_lr, outer_momentum=outer_momentum)
            else:
                pair_mean_(params, other.copy_(partner_outer[part]))
                terms = params, speed, mean, other
                noloco_apart_(*terms, outer_lr=outer_lr, outer_momentum=outer_momentum, consensus=consensus)

    def pseudo_gradient(self, fragment: int, own: Tensor, share: float = 1.0) -> Tensor:
        """Return this peer's contribution to its group, (outer_params - own) * share, written into `own`. `own`
        is the snapshot of the fragment, flat fp32; share as in `step`."""
        return pseudo_gradient_(own, self.fragment(fragment), share)

    def put(self, fragment: int, params: Tensor, momentum: Tensor) -> None:
        """Take over another peer's state of a fragment, flat fp32 both. Around it `stepping`, as around a step.

        `params` then holds what was added to ours."""
        outer, own_momentum = self._views(fragment)
        for part in blocks(outer.numel()):
            added = torch.sub(params[part], outer[part])
            outer[part].copy_(params[part])
            params[part].copy_(added)
        own_momentum.copy_(momentum)

    def refound(self, params: Tensor) -> None:
        """Replace the params of the model by a state that the operator names; momentum zero. Around it `stepping`."""
        self.params.copy_(params)
        for part in blocks(self.momentum.numel()):
            if self.momentum[part].any():  # zeros that nothing wrote to take no memory
                self.momentum[part].zero_()

    def descend(
        self,
        fragment: int,
        mean_gradient: Tensor,
        spans: Sequence[tuple[int, int]],
        *,
        rule: str,
        outer_lr: float,
        outer_momentum: float,
    ) -> None:
        """One outer step of a fragment along the group's mean pseudo-gradient, bit for bit the same on every member.

        mean_gradient: flat fp32 of the fragment's length, overwritten. spans: ascending half-open ranges of elements of
        the fragment in which it holds a value; in between, where a shard's owner died, it may hold anything, and params
        and momentum stay as they are."""
        outer, momentum = self._views(fragment)
        assert mean_gradient.shape == outer.shape, (mean_gradient.shape, outer.shape)
        edges = [0, *(edge for span in spans for edge in span), outer.numel()]
        assert all(left <= right for left, right in pairwise(edges)), spans
        for start, end in spans:
            params, speed, gradient = outer[start:end], momentum[start:end], mean_gradient[start:end]
            if rule == "sgd":
                descend_(params, gradient, outer_lr=outer_lr)
            else:
                assert rule == "nesterov", rule
                nesterov_(params, speed, gradient, outer_lr=outer_lr, outer_momentum=outer_momentum)

    def digest(self, fragment: int) -> bytes:
        """BLAKE3 over the little-endian fp32 bytes of the fragment's outer_params, then of its momentum; 32 bytes. Two
        members of a group with equal digests are equal after the next step too."""
        hasher = blake3()
        for values in self._views(fragment):
            hasher.update(values.numpy().astype("<f4", copy=False).data.cast("B"))
        return hasher.digest()

    def _views(self, fragment: int) -> tuple[Tensor, Tensor]:
        """(params, momentum) of one fragment."""
        start, end = self.layout.fragment_span(fragment)
        return self.params[start:end], self.momentum[start:end]
