"""Counters for metrics that the journal's totals do not have, counted since the daemon's start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from peer.codes import Code, counted_as
from peer.observe import events
from peer.observe.metrics import EXCHANGE_BOUNDS


class EventCounters:
    """Counts journal events for the metrics. Append its method `count` to the journal's listeners. Memory is
    bounded."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(EXCHANGE_BOUNDS) + 1)
        self._exchange_s = 0.0
        self._partner_failures: Counter[Code] = Counter()
        self._counts = dict.fromkeys(("trainer_restarts", "checkpoints", "checkpoint_failures"), 0)
        self._checkpoint: tuple[float, events.Checkpointed] | None = None
        self._trainer_is_dead = False

    def count(self, event: events.Event, t: float) -> None:
        """Count one event. `t`: its time, seconds since the epoch."""
        match event:
            case events.RoundEnded(outcome="exchanged"):
                self._buckets[bisect_left(EXCHANGE_BOUNDS, event.seconds)] += 1
                self._exchange_s += event.seconds
            case events.PartnerFailed():
                self._partner_failures[counted_as(event.code)] += 1
            case events.TrainerDeath():
                self._trainer_is_dead = True
            case events.TrainerStarted():
                self._counts["trainer_restarts"] += self._trainer_is_dead
                self._trainer_is_dead = False
            case events.Checkpointed():
                self._counts["checkpoints"] += 1
                self._checkpoint = (t, event)
            case events.CheckpointFailed():
                self._counts["checkpoint_failures"] += 1

    def report(self, now: float) -> dict[str, Any]:
        """Return the facts `counted` of the metrics.

        `now`: seconds since the epoch, as the journal's times. `exchange_seconds` has the number of exchanges in each
        bucket of `EXCHANGE_BOUNDS`, then those above the last bound, and the sum of seconds. `checkpoint` is absent
        before the first one."""
        body: dict[str, Any] = {
            "exchange_seconds": {"buckets": list(self._buckets), "sum": self._exchange_s},
            "partner_failures": dict(self._partner_failures),
            **self._counts,
        }
        if self._checkpoint is not None:
            at, event = self._checkpoint
            body["checkpoint"] = {"seconds": event.seconds, "bytes": event.bytes, "age_s": max(0.0, now - at)}
        return body
