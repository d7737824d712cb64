"""The workload whose utilization is computed: model size, step time and synchronization."""

from __future__ import annotations

from dataclasses import dataclass

from peer.errors import UsageError
from peer.lab.planning.checks import between

PRESETS = ("ddp", "diloco", "streaming-diloco")


@dataclass(frozen=True, slots=True)
class Workload:
    """A model size, a step time and a synchronization method. Raises UsageError for impossible values.

    `ddp` reduces every layer after every step, `diloco` every layer after each `every` steps; both wait for the result
    at once and ignore `delay` and `fragment_layers`. `streaming-diloco` reduces fragments of `fragment_layers` layers,
    strided over the depth, each once in `every` steps, evenly spread, and merges a result `delay` steps later."""

    params: float
    layers: int
    step_seconds: float
    """Seconds of computing in one inner step."""
    preset: str = "streaming-diloco"
    every: int = 100
    """Inner steps between two reductions of the same layer."""
    fragment_layers: int = 3
    delay: int = 1
    """Inner steps until a result merges."""
    bits: float = 16.0
    """Bits of one parameter on the wire."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(f"no preset is called {self.preset}", f"Choose one of: {', '.join(PRESETS)}.")
        between("--params", self.params, 1, 1e18)
        between("--layers", self.layers, 1, 1000)
        between("--step-seconds", self.step_seconds, 1e-6, 1e6)
        between("--every", self.every, 1, 1_000_000)
        between("--fragment-layers", self.fragment_layers, 1, 1000)
        between("--delay", self.delay, 0, 1_000_000)
        between("--bits", self.bits, 0.01, 64)
        if self.preset == "streaming-diloco":
            self._check_streaming()

    def _check_streaming(self) -> None:
        if self.layers % self.fragment_layers:
            fitting = ", ".join(str(size) for size in range(1, self.layers + 1) if self.layers % size == 0)
            raise UsageError(
                f"--fragment-layers {self.fragment_layers} does not divide --layers {self.layers}",
                f"Give one of: {fitting}.",
            )
        if self.delay >= self.every:
            raise UsageError(
                f"--delay {self.delay} is not below --every {self.every}",
                "A fragment has to be merged before it is due again: lower --delay or raise --every.",
            )
