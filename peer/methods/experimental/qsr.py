"""The quadratic synchronization rule (arXiv 2310.14423): rounds grow longer as the learning rate falls."""

from __future__ import annotations

from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import GROUPED, Method

GROWTH_LR = 4.4e-3
"""`Method.growth_lr`. As in the paper for AdamW, it is 1.1 times the peak learning rate, here the manifest's
default."""

ENTRY = MethodEntry(
    presets=(
        Preset(
            name="qsr",
            method=Method(
                rule="sgd",
                outer_lr=1.0,
                outer_momentum=0.0,
                consensus=0.0,
                codec="fp32",
                result_codec="fp32",
                growth_lr=GROWTH_LR,
                **GROUPED,
            ),
            purpose="a group in a long run: its rounds grow while the learning rate falls (arXiv 2310.14423)",
            since=3,
        ),
    ),
)
