"""The speed of a machine, from what its trainer measured."""

from __future__ import annotations

from typing import Any

import pytest

from peer.lab.planning import measuring
from peer.run.manifest import Manifest


def test_operations_are_six_a_parameter_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Manifest] = []

    def measured(manifest: Manifest, steps: int, **choices: Any) -> dict[str, Any]:
        seen.append(manifest)
        return {"tokens_per_s": 1000.0, "parameters": manifest.model.parameters, "device": "cpu"}

    monkeypatch.setattr(measuring, "measure", measured)
    flops, told = measuring.measured_flops(1e9)
    assert seen[0].model.parameters == pytest.approx(5e6, rel=0.03)  # not a billion, which would take minutes
    assert flops == 6 * seen[0].model.parameters * 1000
    assert "1,000 tokens/s" in told
    measuring.measured_flops(1e6)
    assert seen[1].model.parameters == pytest.approx(1e6, rel=0.03)
