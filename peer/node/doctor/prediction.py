"""Predicts the speed and the traffic of this machine in the run, from measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from peer.methods.method import Method
from peer.observe.formatting import amount, duration
from peer.protocol.policy.upload_quota import DAY_S
from peer.protocol.schedule import RoundClock
from peer.run.load import bytes_a_day

START_S = 5.0
"""Seconds of a start that are not measured: addresses, statements, clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrial:
    """The result of a few inner steps of the run's model on this machine."""

    device: str
    micro_batch: int
    reason: str
    """Reason for this micro-batch."""
    step_s: float
    """Seconds from one inner step to the next, including the rests that the user asked for."""
    tokens_per_step: int
    prepared_s: float
    """Seconds until the trainer was ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoad:
    """The transfers of a run: payload bytes each way in one `sync_every`, and bytes of the state that a joiner
    fetches."""

    method: Method
    clock: RoundClock
    sync_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted speed and traffic of this machine in the run. A field is None if it is not known."""

    device: str | None = None
    micro_batch: int | None = None
    tokens_per_day: int | None = None
    bytes_per_day_up: int | None = None
    bytes_per_day_down: int | None = None
    first_exchange_s: float | None = None
    """Seconds from the start of `peer join` to the first exchange."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the prediction as lines for a person."""
        up, down = self.bytes_per_day_up, self.bytes_per_day_down
        first = (
            "not known"
            if self.first_exchange_s is None
            else f"about {duration(self.first_exchange_s)} after start, estimated"
        )
        tokens = "not known" if self.tokens_per_day is None else f"{self.tokens_per_day:,}, estimated from steps"
        return [
            f"device          {self.device or 'not known'}",
            f"micro-batch     {'not known' if self.micro_batch is None else self.micro_batch}",
            f"tokens a day    {tokens}",
            f"bytes a day     {_bytes(up)} up, {_bytes(down)} down, estimated",
            f"first exchange  {first}",
        ]


def predict(
    trial: StepTrial | None, load: RunLoad | None, down: float | None, now: float, daily_upload: int | None = None
) -> Prediction:
    """Predict a day of training without pauses. `down`: download rate, bytes per second. `now`: run time.
    `daily_upload`: the user's limit in bytes."""
    if trial is None:
        return Prediction()
    each_way = None if load is None else _bytes_a_day(load, trial.step_s)
    up = each_way if each_way is None or daily_upload is None else min(each_way, daily_upload)
    return Prediction(
        device=trial.device,
        micro_batch=trial.micro_batch,
        tokens_per_day=round(trial.tokens_per_step / trial.step_s * DAY_S),
        bytes_per_day_up=up,
        bytes_per_day_down=each_way,
        first_exchange_s=None if load is None else _first_exchange(trial, load, down, now),
    )


def _bytes_a_day(load: RunLoad, step_s: float) -> int | None:
    """Return the bytes per day each way. With a clock in steps this follows from the measured time of a step."""
    every_s = load.clock.sync_every * (1.0 if load.clock.kind == "seconds" else step_s)
    return bytes_a_day(load.method, load.sync_bytes, every_s)


def _first_exchange(trial: StepTrial, load: RunLoad, down: float | None, now: float) -> float | None:
    """Return the seconds until the first exchange: the state must arrive, and one `sync_every` of work follows."""
    if not load.method.exchanges or down is None:
        return None
    joined_s = START_S + max(trial.prepared_s, load.state_bytes / down)
    clock = load.clock
    if clock.kind == "steps":
        return joined_s + clock.sync_every * trial.step_s
    if not clock.start:
        return None
    ready = max(now + joined_s, clock.start)
    return clock.due_at(clock.first_round_for(ready)) - now


def _bytes(nbytes: int | None) -> str:
    return "not known" if nbytes is None else amount(nbytes, "bytes")
