"""A peer's outer state: `outer_params` and momentum, which the outer rule moves and which are evaluated, saved and
served."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from blake3 import blake3
from torch import Tensor

from peer.outer.arithmetic import BLOCK, blocks, pseudo_gradient_
from peer.outer.look_ahead import LookAhead
from peer.outer.pages import zeros
from peer.outer.values import (
    GroupState,
    MeanGradient,
    NoStep,
    OuterValues,
    OwnWork,
    PartnerParams,
    StepBlock,
    StepMethod,
    StepRule,
)
from peer.protocol.model.fragments import tensor_spans
from peer.protocol.model.layout import Layout


@dataclass(slots=True)
class OuterState:
    """The model's outer state: `outer_params` and `outer_momentum`, flat fp32 in layout order.

    The momentum uses memory only once it is written, so a rule without momentum never needs any. The params may be in
    memory shared with the trainer, which only reads them.

    During a run only `peer.rounds.commit` changes the state. It calls `step_with` in a worker thread: at most one step
    of a fragment at a time, while steps of different fragments may run concurrently."""

    layout: Layout
    params: Tensor
    momentum: Tensor
    ahead: dict[int, LookAhead] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Own part of eager updates by fragment number. An entry exists from the first update on."""
    _under_way: int = field(default=0, init=False, repr=False)
    _begun: int = field(default=0, init=False, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @classmethod
    def fresh(cls, layout: Layout, params: Tensor) -> OuterState:
        """Return a state with zero momentum, for pairs, first starts and joiners."""
        assert params.shape == (layout.elements,), (params.shape, layout.elements)
        return cls(layout, params.to(torch.float32), zeros(layout.elements))

    @property
    def busy(self) -> bool:
        """Whether a step is running in a thread. The params must not be copied then."""
        return self._under_way > 0

    @property
    def begun(self) -> int:
        """Number of steps started so far. A copy that another thread made is consistent if this number is the same
        before and after it, and `busy` was false both times."""
        return self._begun

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Context around each `step_with`, from before it is passed to its thread until it has ended. Sets `busy`.
        Contexts of several steps may overlap."""
        with self._lock:
            self._under_way += 1
            self._begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def fragment(self, fragment: int) -> Tensor:
        """Return a view of one fragment of `params`."""
        return self._views(fragment)[0]

    def step_with(self, fragment: int, values: OuterValues, method: StepMethod) -> bytes:
        """Apply the outer step that these values describe. In a group, return the digest of the fragment's new state,
        which the members compare. In pairs and alone, return empty bytes, because hashing would take longer than the
        step."""
        match values:
            case OwnWork() as own:
                self._meet(fragment, own, None, method)
            case PartnerParams(own, partner):
                self._meet(fragment, own, partner, method)
            case MeanGradient(gradient, spans):
                self._descend(fragment, gradient, spans, method)
                return self.digest(fragment)
            case GroupState(params, momentum):
                self.put(fragment, params, momentum)
                return self.digest(fragment)
            case NoStep(digest):
                return digest
        return b""

    def _meet(self, fragment: int, own: OwnWork, partner: Tensor | None, method: StepMethod) -> None:
        """Apply the step of a pair, or of a peer alone.

        The inputs are only read. Temporaries have the size of a block and are allocated before anything changes, so
        that a lack of memory leaves the state intact."""
        rule, (outer, momentum) = method.outer_rule, self._views(fragment)
        elements = outer.numel()
        theirs = None if partner is None else partner[:elements]
        their_outer = None if partner is None or partner.numel() == elements else partner[elements:]
        for given in (own.params, theirs, their_outer):
            assert given is None or given.shape == outer.shape, (given.shape, outer.shape)
        space = torch.empty(2, min(BLOCK, elements))
        for part in blocks(elements):
            params = outer[part]
            mine, spare = space[:, : params.numel()]
            mine.copy_(own.params[part])
            block = StepBlock(
                outer=params,
                momentum=momentum[part],
                own=mine,
                share=own.share,
                partner=None if theirs is None else theirs[part],
                partner_outer=None if their_outer is None else their_outer[part],
                spare=spare,
            )
            rule.step(block, method)

    def contribution(
        self, fragment: int, own: Tensor, rule: StepRule, share: float = 1.0, base: Tensor | None = None
    ) -> Tensor:
        """Return this peer's contribution to its group: (base - own) * share, corrected if the rule does so.

        own: snapshot of the fragment, flat fp32, which is overwritten. base: params from which the work is counted.
        None: outer_params."""
        gradient = pseudo_gradient_(own, self.fragment(fragment) if base is None else base, share)
        if rule.corrects:  # only then: reading the momentum would allocate its pages
            momentum = self._views(fragment)[1]
            for start, end in tensor_spans(self.layout, fragment):
                rule.correct(gradient[start:end], momentum[start:end])
        return gradient

    def put(self, fragment: int, params: Tensor, momentum: Tensor) -> None:
        """Replace the state of a fragment by that of another peer: `params` and `momentum`, flat fp32. The caller holds
        `stepping`.

        Afterwards `params` contains the difference to the previous outer_params."""
        outer, own_momentum = self._views(fragment)
        for part in blocks(outer.numel()):
            added = torch.sub(params[part], outer[part])
            outer[part].copy_(params[part])
            params[part].copy_(added)
        own_momentum.copy_(momentum)

    def refound(self, params: Tensor) -> None:
        """Replace the params of the whole model by the state that a `refound` amendment names, with zero momentum. The
        caller holds `stepping`."""
        self.params.copy_(params)
        for part in blocks(self.momentum.numel()):
            if self.momentum[part].any():  # do not write to pages that are still zero: that would allocate them
                self.momentum[part].zero_()

    def _descend(
        self, fragment: int, mean_gradient: Tensor, spans: Sequence[tuple[int, int]], method: StepMethod
    ) -> None:
        """Apply the step along the group's mean pseudo-gradient: bit for bit the same on every member."""
        rule, (outer, momentum) = method.outer_rule, self._views(fragment)
        assert mean_gradient.shape == outer.shape, (mean_gradient.shape, outer.shape)
        edges = [0, *(edge for span in spans for edge in span), outer.numel()]
        assert all(left <= right for left, right in pairwise(edges)), spans
        for start, end in spans:
            rule.descend(outer[start:end], momentum[start:end], mean_gradient[start:end], method)

    def digest(self, fragment: int) -> bytes:
        """Return the BLAKE3 digest (32 bytes) of the fragment's outer_params, then of its momentum, as little-endian
        fp32.

        Members of a group with equal digests also have equal states after the next step."""
        hasher = blake3()
        for values in self._views(fragment):
            hasher.update(values.numpy().astype("<f4", copy=False).data.cast("B"))
        return hasher.digest()

    def _views(self, fragment: int) -> tuple[Tensor, Tensor]:
        """Return views (params, momentum) of one fragment."""
        start, end = self.layout.fragment_span(fragment)
        return self.params[start:end], self.momentum[start:end]
