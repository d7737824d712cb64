"""Every method, in the order in which help and docs show them. The schema of manifests takes its names from here."""

from __future__ import annotations

from peer.methods import diloco, gasloc, noloco, sgd
from peer.methods.entry import MethodEntry, Preset
from peer.methods.experimental import eager, heloco, qsr, rda, snoo, sparseloco
from peer.methods.rule import OuterRule

ENTRIES: tuple[MethodEntry, ...] = (
    noloco.ENTRY,
    diloco.ENTRY,
    gasloc.ENTRY,
    snoo.ENTRY,
    qsr.ENTRY,
    sparseloco.ENTRY,
    eager.ENTRY,
    heloco.ENTRY,
    rda.ENTRY,
    sgd.ENTRY,
)
PRESETS: dict[str, Preset] = {preset.name: preset for entry in ENTRIES for preset in entry.presets}
RULES: dict[str, OuterRule] = {
    rule.name: rule
    for rule in sorted((entry.rule for entry in ENTRIES if entry.rule), key=lambda rule: not rule.consensus)
}
"""Those that draw partners together come first."""


def new_in(since: int) -> dict[str, tuple[str, ...]]:
    """Return the presets and rules that came with this format of manifests."""
    presets = tuple(name for name, preset in PRESETS.items() if preset.since == since)
    return {"preset": presets, "rule": tuple(name for name, rule in RULES.items() if rule.since == since)}
