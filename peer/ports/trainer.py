"""What crosses the seam between the daemon and a trainer: requests, snapshots, counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from peer.protocol.messages import RoundKey
from peer.protocol.pair.probe_verdict import ProbeLosses
from peer.protocol.policy.donors import StateLosses


@dataclass(frozen=True, slots=True)
class TrainerInfo:
    """What a started trainer tells about itself."""

    device: str
    device_reason: str
    """Why this device and precision, for a person to read."""
    tokens_per_step: int
    micro_batch: int = 0
    """Windows that go through the model at once; 0: it does not say."""
    micro_batch_reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What each phase of its start took: `torch import`, `waiting for the state`, `data`, `model`."""
    data: str = ""
    """What it trains on, for a person; of own texts what was taken and what was left out."""
    data_place: str = ""
    """Where in its data it begins, and why there, for a person."""


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """Train, then snapshot a fragment at a step boundary: after `steps` steps counted from the last snapshot of any
    fragment (clock in steps), or at the boundary nearest to `until` (on the clock of `peer.clock.monotonic.steady`)."""

    key: RoundKey
    steps: int | None
    until: float | None
    hold: bool
    """Stop after the snapshot until `apply`; else go on training at once, in the round after `key.round`."""
    lr_scale: float = 1.0
    """Of the inner learning rate, from now on: the operator's word."""
    pause_after: int | None = None
    """Not held: train on for at most so many inner steps, then wait until the result of this snapshot is applied, or
    `release` says that there will be none. None: never wait."""
    round_s: float | None = None
    """With `until`: seconds between two rounds, by which is judged whether one more step is begun
    (`peer.protocol.schedule.margin`). None: the boundary nearest to `until` is the one."""


@dataclass(frozen=True, slots=True)
class WorkDetails:
    """More about a snapshot's work. The places in the data are written as `peer.protocol.data_span` does."""

    skipped: int = 0
    """Steps whose update was left out, because the loss or the gradient was not finite."""
    data_from: str = ""
    """Where in the peer's data the work since base begins. Empty: not told."""
    data_to: str = ""
    """Where the next batch begins."""
    data_skipped: str = ""
    """Shards that were passed over between the two."""


@dataclass(frozen=True, slots=True)
class WorkSnapshot:
    """A snapshot, and what was done for it since the fragment's base (the last apply or start)."""

    key: RoundKey
    params: torch.Tensor
    """fp32, flat, the fragment's elements: a view into the arena, valid until the next request of this fragment. Only
    to be read: a solo step may follow an exchange that failed."""
    steps: int
    tokens: int
    """processed - base: what the ledger counts for this fragment."""
    processed: int
    """The trainer's token counter at the snapshot: becomes the fragment's base when this work is applied."""
    loss: float
    """Mean training loss in nats a token over the steps since base; NaN without steps."""
    seconds: float
    """Time in inner steps since base."""
    details: WorkDetails = WorkDetails()


@dataclass(frozen=True, slots=True)
class Merge:
    """How the result of an outer step enters the trainer's params: `params <- alpha * params + (1 - alpha) *
    outer_params`, at the first step boundary that is `after_steps` inner steps behind the snapshot, or not before
    `after` (on the clock of `peer.clock.monotonic.steady`); with neither, or when the trainer is held: at once.

    `shift`: what is given is a difference, and is added. It comes from no snapshot: the base stays, and the work since
    then; `alpha`, `after_steps` and `after` do not count."""

    alpha: float = 0.0
    after_steps: int | None = None
    after: float | None = None
    shift: bool = False


AT_ONCE = Merge()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Of given parameters on the run's fixed hold-out."""

    loss: float
    """Mean nats a token."""
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Counters:
    """The trainer's file-backed counters; they survive a kill of trainer and daemon and never go back."""

    tokens: int
    """Tokens processed in all."""
    steps: int
    base: tuple[int, ...]
    """For each fragment: `tokens` up to which its work has been applied or dropped."""
    seconds_training: float
    seconds_waiting: float
    """Held after a snapshot until the apply."""

    @property
    def has_work(self) -> bool:
        """Whether a step was finished that no round has taken up yet."""
        return self.tokens > min(self.base)


@dataclass(frozen=True, slots=True)
class ProbeTerms:
    """What a probe of a partner's params looks at."""

    seed: int
    """64 bits, of which nobody else knows: they draw the windows."""
    share: float
    """The part of our work that counts: our own params are outer_params + share * (snapshot - outer_params)."""
    taken: float
    """The part of the way to the partner's params that would be gone before the two are averaged."""
    within_s: float
    """Seconds that the trainer may take for it."""


class Trainer(Protocol):
    """The inner loop behind one small seam. Any call raises `TrainerDied` when the process is gone or goes while
    waiting; `start` may then be called again."""

    async def start(self, outer_params: torch.Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        """Make ready to train from `outer_params` (fp32, flat, whole model). Sets every base counter to the tokens
        processed so far, except with `resume`: a folder that `save` wrote, which restores params, inner optimizer,
        step in the round and leaves the base counters as they are (its token count must equal the counter's, else the
        folder is used for the inner optimizer only). Held until the first `work`."""

    async def work(self, request: WorkRequest) -> WorkSnapshot:
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
        are. Cancelled, the trainer gives it up soon and goes on."""

    async def probe(
        self, key: RoundKey, outer_params: torch.Tensor, partner: torch.Tensor, terms: ProbeTerms
    ) -> ProbeLosses | str:
        """Return losses on windows from anywhere in the run's training data, with the fragment's params replaced; or
        why there are none, for a person. It happens at a step boundary and takes two inner steps at most.

        `outer_params` and `partner`: flat fp32 of the fragment, whose last snapshot is `key`'s. The trainer's own
        params stay as they are. Raises OSError where the params cannot be handed over."""

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        """Return the losses of a whole model, flat fp32, on windows that `seed` draws from the run's data; or why there
        are none, for a person. It comes before the first `start`, and takes `within_s` seconds at most once the trainer
        is ready."""

    async def save(self, folder: Path) -> int:
        """Write params, inner optimizer and position into `folder` (safetensors and JSON) at a step boundary; the token
        count there. What is not merged yet is not in it. Raises OSError when that fails (a full disk); the trainer goes
        on."""

    def counters(self) -> Counters:
        """Read now, from the file: works without a running trainer."""

    async def stop(self) -> None:
        """End the process within 2 s, whatever it is doing. Never raises."""


@dataclass(frozen=True, slots=True)
class ShardSkip:
    """A shard that no batch was drawn from, because nobody had it."""

    epoch: int
    place: int
    """In this peer's order of the epoch."""
    shard: int
    """Number in the data index."""
    digest: str
    reason: str


ShardAnswer = Callable[[str, Path | None, str], None]
"""Takes a shard's digest and its file, or None and the reason why there is none."""


class ShardSource(Protocol):
    """The daemon's part that finds shards for its trainer. No call waits or raises."""

    def begin(self, answer: ShardAnswer) -> None:
        """Forget what was asked: a new trainer process asks from here on."""

    def want(self, shards: Sequence[str], ask: Sequence[str], wrong: Sequence[str]) -> None:
        """Keep these shards, in the order in which they are needed, and no others. Each of `ask` gets one answer.
        The files given for `wrong` had other content."""

    def skipped(self, skip: ShardSkip) -> None:
        """Journal a shard that was passed over."""


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """The last that was heard, for status lines; told at most four times a second."""

    round: int = 0
    step: int = 0
    """In the round."""
    loss: float = math.nan
    """Of that step, nats a token."""
    tokens_per_s: float = 0.0
    """While it trains, rests of the owner's share included."""
    step_s: float = math.nan
    """Median of the last inner steps, rests included; NaN before the first one."""
    steps: int = 0
    """Of this process."""
    waiting: str = ""
    """What it waits for instead of training, for a person. Empty: for nothing."""
    longest_s: float = math.nan
    """Of the longest of the last inner steps, without rests; NaN before the first one."""
