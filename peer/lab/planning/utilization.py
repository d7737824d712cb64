"""The link bandwidth at which machines compute instead of waiting.

One inner step is a chain of equal nodes: the forward passes of layers 0..L-1, then from the last layer down the
gradient of the layer's parameters and that of its inputs (which layer 0 does not need): 3L - 1 nodes. The all-reduce of
a due layer starts when its parameter gradient is computed and the single link is free, in that order, and takes
params/L * bits / bandwidth; the link has no latency. The result is needed `delay` steps after the next step: the
layer's forward pass in that step waits for the all-reduce. Utilization is computing time divided by total time, once
the schedule has settled. This is the model of the bandwidth table of Streaming DiLoCo (arXiv 2501.18512, Table 4),
reconstructed from the paper's text; where the text is ambiguous, this module decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from peer.lab.planning.checks import between
from peer.lab.planning.workload import Workload

TARGETS = (50, 80, 90, 95, 99)
SETTLING, MEASURED = 4, 4
"""Periods simulated before and during the measurement of the waiting. A repeated schedule settles within a few
periods."""
HALVINGS = 30


def bandwidths(work: Workload, targets: Sequence[int] = TARGETS) -> dict[int, float]:
    """Return for each target utilization (per cent) the lowest bandwidth that reaches it, in Gbit/s."""
    timeline = Timeline.of(work)
    return {target: timeline.bandwidth(target / 100) / 1e9 for target in targets}


def utilization(work: Workload, gbit_per_s: float) -> float:
    """Return the share of computing time, 0..1, over a link of this bandwidth. Raises UsageError."""
    between("the bandwidth in Gbit/s", gbit_per_s, 1e-12, 1e12)
    return Timeline.of(work).utilization(gbit_per_s * 1e9)


@dataclass(frozen=True)
class Timeline:
    """One period of a workload's steps and all-reduces. Computes the utilization at a bandwidth, and the bandwidth for
    a utilization."""

    layers: int
    step_seconds: float
    layer_bits: float
    delay: int
    due: tuple[tuple[int, ...], ...]
    """For each step of a period, the layers to reduce after it, the last layer first."""

    @classmethod
    def of(cls, work: Workload) -> Timeline:
        streaming = work.preset == "streaming-diloco"
        return cls(
            layers=work.layers,
            step_seconds=work.step_seconds,
            layer_bits=work.params * work.bits / work.layers,
            delay=work.delay if streaming else 0,
            due=_streamed(work) if streaming else _whole(work.layers, 1 if work.preset == "ddp" else work.every),
        )

    @cached_property
    def bits(self) -> float:
        """Bits reduced in one period."""
        return self.layer_bits * sum(len(layers) for layers in self.due)

    def bandwidth(self, target: float) -> float:
        """Return the lowest bandwidth in bit/s at which the utilization reaches `target`, 0 < target < 1. Found by
        bisection: more bandwidth never takes more time, because the order of transfers does not depend on it."""
        assert 0 < target < 1
        high = self.bits / (len(self.due) * self.step_seconds)
        while self.utilization(high) < target:
            high *= 2
        low = high / 2
        while self.utilization(low) >= target:
            low /= 2
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.utilization(middle) >= target else (middle, high)
        return high

    def utilization(self, bandwidth: float) -> float:
        """Return the share of computing time, 0..1, at a bandwidth in bit/s."""
        computed = len(self.due) * self.step_seconds
        taken = computed + self._stalled(self.layer_bits / bandwidth)
        # A long delay hides an overloaded link for many periods, but in the long run nothing is faster than the link.
        return computed / max(taken, self.bits / bandwidth)

    def _stalled(self, reduction_seconds: float) -> float:
        """Return the seconds that the machines wait in a settled period if the reduction of one layer takes
        `reduction_seconds`."""
        node = self.step_seconds / (3 * self.layers - 1)
        awaited: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        late = settled = link = 0.0
        for step in self._eventful:
            begin = step * self.step_seconds
            for layer, arrival in sorted(awaited.pop(step, ())):
                late = max(late, arrival - layer * node - begin)
            for layer in self.due[step % len(self.due)]:
                gradient = begin + late + self.step_seconds - 2 * layer * node
                link = max(link, gradient) + reduction_seconds
                awaited[step + 1 + self.delay].append((layer, link))
            if step < SETTLING * len(self.due):
                settled = late
        return (late - settled) / MEASURED

    @cached_property
    def _eventful(self) -> list[int]:
        """The steps after which a layer is due or in which a result is awaited. All other steps only take their time,
        and are skipped."""
        last = (SETTLING + MEASURED) * len(self.due)
        sent = [step for step, layers in enumerate(self.due) if layers]
        starts = [start + step for start in range(0, last, len(self.due)) for step in sent]
        return sorted({step for start in starts for step in (start, start + 1 + self.delay) if step < last})


def _whole(layers: int, every: int) -> tuple[tuple[int, ...], ...]:
    return ((),) * (every - 1) + (tuple(reversed(range(layers))),)


def _streamed(work: Workload) -> tuple[tuple[int, ...], ...]:
    fragments = work.layers // work.fragment_layers
    due: list[list[int]] = [[] for _ in range(work.every)]
    for fragment in range(fragments):
        due[fragment * work.every // fragments].extend(range(fragment, work.layers, fragments))
    return tuple(tuple(sorted(layers, reverse=True)) for layers in due)
