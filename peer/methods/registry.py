"""The registry of all methods. Its order is that of help and docs, and the schema of manifests gets its names here."""

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
"""Name -> outer rule. The rules with a consensus come first."""


def new_in(since: int) -> dict[str, tuple[str, ...]]:
    """Return the names of the presets and rules that were introduced with this format of manifests."""
    presets = tuple(name for name, preset in PRESETS.items() if preset.since == since)
    return {"preset": presets, "rule": tuple(name for name, rule in RULES.items() if rule.since == since)}
