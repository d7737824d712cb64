from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.state.checkpoint import STATE, CheckpointStore
from peer.state.files import blake3_hex
from peer.state.sealed_state import OUTER, canonical

RUN, LAYOUT = b"r" * 32, b"l" * 32
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=10,
)


def written(folder: Path, values: torch.Tensor, facts: dict[str, Any]) -> CheckpointStore:
    store = CheckpointStore(folder)
    store.commit(store.begin(), values, -values, RUN, LAYOUT, facts)
    return store


@settings(max_examples=25)
@given(facts=st.dictionaries(st.text(max_size=9), json_like, max_size=5), elements=st.integers(1, 50))
def test_a_checkpoint_gives_back_what_was_put_in(
    tmp_path_factory: pytest.TempPathFactory, facts: dict[str, Any], elements: int
) -> None:
    values = torch.linspace(-1, 1, elements)
    found, skipped = written(tmp_path_factory.mktemp("c"), values, facts).latest(RUN, LAYOUT)
    assert skipped == []
    assert found is not None
    assert found.facts == facts
    params, momentum = found.load()
    assert torch.equal(params, values)
    assert torch.equal(momentum, -values)


@settings(max_examples=60)
@given(st.data())
def test_a_changed_byte_anywhere_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    store = written(tmp_path_factory.mktemp("c"), torch.linspace(-1, 1, 20), {"round": 3})
    path = store.folder / "checkpoint-1" / data.draw(st.sampled_from([STATE, OUTER]))
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    before = bytes(raw)
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    found, skipped = store.latest(RUN, LAYOUT)
    if found is None:
        assert len(skipped) == 1
    else:  # white space of the JSON, or a character written another way
        assert path.name == STATE
        assert json.loads(raw)["state"] == json.loads(before)["state"]


def seal(state: Any) -> bytes:
    return json.dumps({"state": state, "blake3": blake3_hex(canonical(state))}).encode()


GOOD: dict[str, Any] = {
    "format": 1, "run_id": RUN.hex(), "layout_digest": LAYOUT.hex(), "facts": {},
    "files": {OUTER: {"bytes": 0, "blake3": blake3_hex(b"")}},
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": 3}, {"layout_digest": None}, {"facts": []}, {"files": []}, {"files": {}},
        {"files": {OUTER: []}}, {"files": {OUTER: {"bytes": "1", "blake3": ""}}}, {"files": {OUTER: {"bytes": 1}}},
        {"files": GOOD["files"] | {"../x": {"bytes": 0, "blake3": ""}}}, {"format": 0.5, "files": None},
    ],
)  # fmt: skip
def test_a_state_of_another_shape_is_skipped_though_its_seal_holds(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / STATE).write_bytes(seal(GOOD | change))
    found, skipped = CheckpointStore(tmp_path).latest(RUN, LAYOUT)
    assert found is None
    assert skipped == ["checkpoint-1: state.json is not what this program writes"]
