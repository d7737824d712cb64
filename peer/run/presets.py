"""A synchronization method is five independent choices; a preset names a set of them, the manifest may override."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from peer.errors import ManifestError
from peer.run.findings import Finding, listed
from peer.run.sections import SyncSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A resolved method."""

    topology: str
    """`pair`: a random partner a round. `solo`: nobody."""
    rule: str
    """Of the outer step: `noloco` or `sgd`."""
    outer_lr: float
    outer_momentum: float
    consensus: float
    """NoLoCo's gamma: the pull towards the partner's outer_params."""
    codec: str
    """What crosses the wire."""
    schedule: str = "full"
    """One fragment, the whole model."""
    clock: str = "seconds"
    sync_every: float = 300.0
    """Seconds or inner steps between two exchanges."""
    fragment_sync_delay: float = 0.0
    """How long after a round is due its result is merged; 0: at once."""
    fragment_update_alpha: float = 0.0
    """The merge: how much of the local value is kept; 0: replaced by outer_params."""


PRESETS = {
    "noloco": Method(topology="pair", rule="noloco", outer_lr=0.7, outer_momentum=0.5, consensus=0.7, codec="bf16"),
    "none": Method(topology="solo", rule="sgd", outer_lr=1.0, outer_momentum=0.0, consensus=0.0, codec="fp32"),
}
BYTES = {"fp32": 4, "bf16": 2}


def resolve(sync: SyncSection) -> Method:
    """The preset with the manifest's overrides. Raises ManifestError with every reason why it cannot be."""
    if findings := method_findings(sync):
        raise ManifestError(
            f"the method cannot be:\n{listed(findings)}", "Leave these keys out to get the preset's values."
        )
    return _method(sync)


def method_findings(sync: SyncSection) -> list[Finding]:
    """Every reason why this method cannot be; empty: it can."""
    method = _method(sync)
    wrong = _pair_findings(method) if method.rule == "noloco" else _control_findings(sync)
    return [Finding(("sync", field), reason) for field, reason in wrong]


def _method(sync: SyncSection) -> Method:
    given: dict[str, Any] = {
        name: value
        for name in ("outer_lr", "outer_momentum", "consensus", "codec")
        if (value := getattr(sync, name)) is not None
    }
    preset = PRESETS[sync.preset]
    if "outer_lr" in given and preset.rule == "noloco":
        given.setdefault("consensus", given["outer_lr"])
    return replace(preset, clock=sync.clock, sync_every=sync.sync_every, **given)


def _pair_findings(method: Method) -> Iterator[tuple[str, str]]:
    if method.consensus != method.outer_lr:
        yield (
            "consensus",
            f"consensus {method.consensus:g} differs from outer_lr {method.outer_lr:g}: only the fast parameters cross "
            "the wire, which is enough when the two are equal",
        )
    growth = spread_growth(method.outer_momentum, method.consensus)
    if growth >= 1:
        yield (
            "outer_momentum",
            f"outer_momentum {method.outer_momentum:g} with consensus {method.consensus:g} diverges: the variance of "
            f"the replicas would change by a factor of {growth:.3f} a round, which has to be below 1",
        )


def _control_findings(sync: SyncSection) -> Iterator[tuple[str, str]]:
    control = PRESETS["none"]
    for name in ("outer_lr", "outer_momentum", "consensus"):
        value, fixed = getattr(sync, name), getattr(control, name)
        if value not in (None, fixed):
            yield name, f"preset none is the control and takes no {name} ({value:g}) but its own ({fixed:g})"


def spread_growth(momentum: float, consensus: float) -> float:
    """By which factor the variance of the replicas shrinks (below 1) or grows a round under random pairs without
    gradients: the spectral radius of the map of second moments (E phi^2, E phi m, E m^2), two at a time."""
    a, g, k = momentum, consensus, 0.5
    to_w = np.array([g * g * k, -2 * a * g * k, a * a])
    to_p = np.array([-g * k, a, 0.0])
    step = np.array([np.array([1.0, 0.0, 0.0]) + 2 * to_p + to_w, to_p + to_w, to_w])
    return float(np.abs(np.linalg.eigvals(step)).max())


def bytes_per_round(method: Method, elements: int) -> int:
    """Payload a peer sends, and receives, in a round of a model with so many parameters."""
    return 0 if method.topology == "solo" else elements * BYTES[method.codec]


def describe(method: Method, elements: int) -> list[tuple[str, str]]:
    """What a method means and costs, for a person; `elements`: parameters of the model."""
    per_round = bytes_per_round(method, elements)
    every = f"{method.sync_every:g} {'inner steps' if method.clock == 'steps' else 'seconds'}"
    rule = f"{method.rule}, lr {method.outer_lr:g}, momentum {method.outer_momentum:g}"
    lines = [
        ("schedule", f"{method.schedule}, every {every}"),
        ("topology", method.topology),
        ("outer rule", rule + (f", consensus {method.consensus:g}" if method.rule == "noloco" else "")),
        ("codec", method.codec if per_round else "nothing crosses the wire"),
        ("each way a round", f"{per_round / 1e6:.2f} MB"),
    ]
    if method.clock == "seconds" and per_round:
        lines.append(("each way an hour", f"{per_round * 3600 / method.sync_every / 1e6:.0f} MB"))
    return lines
