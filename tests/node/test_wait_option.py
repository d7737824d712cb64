"""`peer join --wait` bounds the wait for a donor, whether or not the manifest is in the home already."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.node.daemon_parts import DaemonParts
from peer.run.manifest import default_text, parse_manifest
from peer.run.options import JoinOptions
from peer.run.statements.log import StatementLog

MANIFEST = parse_manifest(default_text().encode())
RUN = b"r" * 32


@pytest.mark.parametrize("wait_s", [3.0, 600.0])
def test_the_wait_for_a_donor_is_the_one_asked_for(wait_s: float) -> None:
    options = JoinOptions(home=Path("home"), run_id=cast(Any, RUN), wait_s=wait_s)
    others = {field.name: SimpleNamespace() for field in dataclasses.fields(DaemonParts)}
    others["reputation"] = SimpleNamespace(proven=())
    others["journal"] = SimpleNamespace(append=None)
    parts = DaemonParts(**cast(Any, {**others, "options": options}))
    statements = SimpleNamespace(log=StatementLog.of(cast(Any, RUN), MANIFEST, lambda: 1e9))
    local = SimpleNamespace(clock=SimpleNamespace(now=lambda: 1e9), folder=SimpleNamespace(path=None))
    node = SimpleNamespace(handler=SimpleNamespace(statements=statements), local=local, join_context=lambda: None)
    terms = parts.fetch_terms(cast(Any, node), MANIFEST, cast(Any, SimpleNamespace(weigh=None)))
    assert terms.patience_s == wait_s
