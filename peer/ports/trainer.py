"""Interface between daemon and trainer: requests, snapshots, counters, and the source of token shards."""

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
    """The report of a trainer after its start."""

    device: str
    device_reason: str
    """Why this device and precision, for a person to read."""
    tokens_per_step: int
    micro_batch: int = 0
    """Windows that pass the model at once; 0: not known."""
    micro_batch_reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase of the start: `torch import`, `waiting for the state`, `data`, `model`."""
    data: str = ""
    """Description of the training data, for people to read. For the volunteer's own texts also what was used and left
    out."""
    data_place: str = ""
    """Place in the data where training begins and why there, for people to read."""


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """Request to train and then snapshot a fragment at a step boundary.

    The boundary is that after `steps` inner steps since the last snapshot of any fragment (clock in steps), or the one
    nearest to `until` (clock in seconds, on `peer.clock.monotonic.boottime`)."""

    key: RoundKey
    steps: int | None
    until: float | None
    hold: bool
    """Stop after the snapshot until `apply`. False: continue to train at once, in the round after `key.round`."""
    lr_scale: float = 1.0
    """Factor of the inner learning rate from now on, as the operator's amendments set it."""
    pause_after: int | None = None
    """Without `hold`: train at most this many inner steps, then wait until the result of this snapshot is applied or
    `release` is called. None: never wait."""
    round_s: float | None = None
    """With `until`: seconds between two rounds, by which the trainer decides whether to start one more step
    (`peer.protocol.schedule.margin`). None: take the boundary nearest to `until`."""


@dataclass(frozen=True, slots=True)
class WorkDetails:
    """Further facts about the work of a snapshot. Places in the data are texts of `peer.protocol.data_span`."""

    skipped: int = 0
    """Steps whose update was skipped because loss or gradient was not finite."""
    data_from: str = ""
    """Place in the peer's data where the work since the base begins. Empty: not known."""
    data_to: str = ""
    """Place where the next batch begins."""
    data_skipped: str = ""
    """Shards that were skipped between `data_from` and `data_to`."""


@dataclass(frozen=True, slots=True)
class WorkSnapshot:
    """A snapshot of one fragment, and the work since the fragment's base (the last apply, or the start)."""

    key: RoundKey
    params: torch.Tensor
    """Flat fp32 of the fragment: a view into the arena, valid until the next request of this fragment. It must not be
    modified, because a solo step may use it after a failed exchange."""
    steps: int
    tokens: int
    """Tokens since the base (`processed` minus base), which the ledger counts for this fragment."""
    processed: int
    """Token counter of the trainer at the snapshot. It becomes the fragment's base when this work is applied."""
    loss: float
    """Mean training loss over the steps since the base, in nats per token; NaN: no step."""
    seconds: float
    """Seconds spent in inner steps since the base."""
    details: WorkDetails = WorkDetails()


@dataclass(frozen=True, slots=True)
class Merge:
    """How the trainer merges the result of an outer step: `params <- alpha * params + (1 - alpha) * outer_params`.

    The merge happens at the first step boundary that is `after_steps` inner steps after the snapshot, or at the first
    one not before `after` (on `peer.clock.monotonic.boottime`). With neither, or when the trainer is held, it happens
    at once.

    `shift`: the given values are a difference, which is added to the params. It belongs to no snapshot: the base and
    the work since then stay as they are, and `alpha`, `after_steps` and `after` are ignored."""

    alpha: float = 0.0
    after_steps: int | None = None
    after: float | None = None
    shift: bool = False


AT_ONCE = Merge()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss of some parameters on the fixed hold-out of the run."""

    loss: float
    """Mean, in nats per token."""
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of the trainer, stored in a file. They survive a kill of trainer and daemon, and never decrease."""

    tokens: int
    """Tokens processed in total."""
    steps: int
    base: tuple[int, ...]
    """For each fragment, the value of `tokens` up to which its work has been applied or dropped."""
    seconds_training: float
    seconds_waiting: float
    """Seconds in which the trainer was held between a snapshot and the apply."""

    @property
    def has_work(self) -> bool:
        """Whether an inner step was finished that no round has used yet."""
        return self.tokens > min(self.base)


@dataclass(frozen=True, slots=True)
class ProbeTerms:
    """Parameters of a probe, which compares the losses of our params and the partner's."""

    seed: int
    """64 bits that choose the windows. No other peer can know them."""
    share: float
    """Part of our work that counts: our own params are `outer_params + share * (snapshot - outer_params)`."""
    taken: float
    """Fraction of the way from our params to the partner's that clipping keeps before the two are averaged: 0 to 1
    (`Clip.taken`)."""
    within_s: float
    """Time limit of the trainer, in seconds."""


class Trainer(Protocol):
    """The training process, seen by the daemon. Any call raises `TrainerDied` when the process is gone or ends during
    the call; `start` may then be called again."""

    async def start(self, outer_params: torch.Tensor, round_: int, resume: Path | None) -> TrainerInfo:
        """Prepare to train from `outer_params` (flat fp32, whole model). Training begins with the first `work`.

        Sets every base counter to the tokens processed so far. `resume`: a folder that `save` wrote. Its params, inner
        optimizer and step in the round are restored, and the base counters stay. If its token count differs from the
        counter's, only the inner optimizer is restored."""

    async def work(self, request: WorkRequest) -> WorkSnapshot:
        """Train as requested, and return the snapshot. Only one request at a time.

        A request that comes late (its steps are done or its time is past) gets the next step boundary. If the call is
        cancelled, the trainer is held."""

    async def apply(
        self, key: RoundKey, outer_params: torch.Tensor, base: int, next_round: int, merge: Merge = AT_ONCE
    ) -> None:
        """Merge `outer_params` (flat fp32 of the fragment) into the fragment's params at the step boundary that `merge`
        names, and set the base counter to `base`. Return when that is done.

        `base` is the `processed` of the snapshot whose work the result contains. A held trainer continues at the next
        `work`, with step 0 of `next_round`. Applies of other fragments, one `work`, and one later snapshot of the
        fragment may be pending at the same time. If a merge and a snapshot fall on the same boundary, the merge comes
        first. With `merge.shift` there is no snapshot, and `base` and `next_round` are ignored. If the call is
        cancelled, the merge still happens, unless the trainer dies."""

    def release(self, key: RoundKey) -> None:
        """Report that nothing will be applied for this snapshot, so that the trainer does not wait for it. Never
        raises."""

    def hold(self) -> None:
        """Stop at the next step boundary until the next `work`. Pending merges are done there. Never raises."""

    async def evaluate(self, outer_params: torch.Tensor | None) -> Evaluation:
        """Return the loss of `outer_params` (whole model) on the fixed hold-out. None: of the trainer's own params.
        These do not change. If the call is cancelled, the trainer soon stops evaluating and continues."""

    async def probe(
        self, key: RoundKey, outer_params: torch.Tensor, partner: torch.Tensor, terms: ProbeTerms
    ) -> ProbeLosses | str:
        """Return losses on random windows of the run's training data, with the fragment's params replaced in turn.
        Return a sentence instead if there are none. The probe happens at a step boundary and takes as long as two inner
        steps at most.

        `outer_params`, `partner`: flat fp32 of the fragment, whose last snapshot is that of `key`. The trainer's own
        params do not change. Raises OSError when the params cannot be passed to the trainer."""

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        """Return the losses of a whole model (flat fp32) on windows of the run's data that `seed` chooses. Return a
        sentence instead if there are none. Called before the first `start`. Takes `within_s` seconds at most, from when
        the trainer is ready."""

    async def save(self, folder: Path) -> int:
        """Write params, inner optimizer and place in the data into `folder` (safetensors and JSON) at a step boundary.
        Return the token count there. Pending merges are not included. Raises OSError when the write fails (a full
        disk); the trainer continues."""

    def counters(self) -> Counters:
        """Read the counters from their file. Works without a running trainer."""

    async def stop(self) -> None:
        """End the process within 2 s, whatever it is doing. Never raises."""


@dataclass(frozen=True, slots=True)
class ShardSkip:
    """A shard from which no batch was drawn, because no peer had it."""

    epoch: int
    place: int
    """Position in this peer's order of the epoch."""
    shard: int
    """Number of the shard in the data index."""
    digest: str
    reason: str


ShardAnswer = Callable[[str, Path | None, str], None]
"""Receives a shard's digest and its file. File None: there is no file, and the third argument is the reason."""


class ShardSource(Protocol):
    """Fetches token shards for the trainer, in the daemon. No call blocks or raises."""

    def begin(self, answer: ShardAnswer) -> None:
        """Forget all earlier requests: a new trainer process has started, and receives its answers through `answer`."""

    def want(self, shards: Sequence[str], ask: Sequence[str], wrong: Sequence[str]) -> None:
        """Cache these shards, in the order in which they are needed, and no others. Each shard in `ask` gets one
        answer. `wrong`: shards whose file, as answered earlier, did not have the expected content."""

    def skipped(self, skip: ShardSkip) -> None:
        """Write to the journal that a shard was skipped."""


@dataclass(frozen=True, slots=True)
class TrainerProgress:
    """Latest progress of the trainer, for status lines. Sent at most four times a second."""

    round: int = 0
    step: int = 0
    """Inner step in the round."""
    loss: float = math.nan
    """Loss of that step, in nats per token."""
    tokens_per_s: float = 0.0
    """While it trains, including the rests of the owner's share."""
    step_s: float = math.nan
    """Median seconds of the latest inner steps, including rests; NaN: no step yet."""
    steps: int = 0
    """Inner steps of this process."""
    waiting: str = ""
    """What the trainer waits for instead of training, for people to read. Empty: it trains."""
    longest_s: float = math.nan
    """Seconds of the longest of the latest inner steps, without rests; NaN: no step yet."""
