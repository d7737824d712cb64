"""Names that other versions or programs read are the same as in the golden files. For an intended change run `python -m
tests.golden.freeze --write`, and state the reason in the commit."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from peer.identity import Identity
from peer.observe.event_codec import decode, encode
from peer.observe.events import KINDS
from peer.protocol.wire.frames import PayloadReader, PayloadWriter
from peer.run.manifest import load_signed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.ticket import Ticket
from peer.signed_record import unseal
from peer.state.checkpoint import CheckpointStore
from peer.trainer import checkpoint as saved
from peer.trainer.config import TrainerConfig
from peer.trainer.data import load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params
from tests.golden import freeze, live, names
from tests.golden.shapes import differences, plain


@pytest.mark.processes
@pytest.mark.parametrize("name", freeze.STILL)
def test_names_are_as_they_were(name: str, tmp_path: Path) -> None:
    assert freeze.changes(name, freeze.STILL[name](tmp_path)) == []


def test_a_line_of_every_kind_is_read_and_written_again_alike() -> None:
    assert freeze.LINES.read_bytes() == names.journal_lines()
    for line, kind in zip(freeze.LINES.read_bytes().splitlines(keepends=True), KINDS, strict=True):
        event, t = decode(line)
        assert (event.kind, encode(event, t)) == (kind, line)


def test_an_old_journal_is_read_whole() -> None:
    """Events of older versions lack newer fields, which must have defaults."""
    for line in (freeze.RUN / "journal.jsonl").read_bytes().splitlines(keepends=True):
        assert json.loads(line).items() <= json.loads(encode(*decode(line))).items()


def test_old_bytes_are_read() -> None:
    frozen = freeze.frozen("wire_bytes")
    assert unseal(bytes.fromhex(frozen["signed record"])) == names.record()
    assert Ticket.decode(frozen["ticket"]).run_id == names.RUN
    assert Identity.from_bytes(bytes.fromhex(frozen["key file"])).peer_id == frozen["peer id"]
    reader = PayloadReader(7)
    whole = PayloadWriter()
    reader.take(whole.chunk(b"payload"))
    reader.take(bytes.fromhex(frozen["END frame"]))
    assert reader.complete


def test_an_old_checkpoint_is_gone_on_from() -> None:
    """Resumes the outer state of an older version's checkpoint, and the trainer's part in a real inner loop."""
    signed = load_signed(freeze.RUN / "manifest.toml")
    manifest = signed.manifest
    layout = layout_for(manifest.model, resolve(manifest.sync))
    checkpoint, _ = CheckpointStore(freeze.RUN / "checkpoints").latest(signed.run_id, layout.digest())
    assert checkpoint is not None
    params, momentum = checkpoint.load()
    assert params.shape == momentum.shape == (layout.elements,)
    assert float(momentum.abs().max()) > 0
    config = TrainerConfig.of(manifest, "a")
    corpus = load_corpus(config.data, None, config.train.context)
    first = first_params(manifest.model, 1, layout)
    loop = InnerLoop(config, layout, choose_device("cpu"), corpus, first.clone())
    place = saved.load(checkpoint.folder, loop, checkpoint.facts["tokens"])
    assert place is not None
    assert (place.tokens, loop.round) == (checkpoint.facts["tokens"], place.round)
    assert loop.optimizer.age == place.age > 0
    assert not torch.equal(loop.params, first)


@pytest.mark.processes
@pytest.mark.parametrize("role", freeze.PRESETS)
def test_daemons_say_and_keep_what_they_did(role: str, tmp_path: Path) -> None:
    """Compares the names that real daemons show and store. The first peer of the pair resumes the run folder of an
    older version."""
    kept = freeze.RUN if role == "pair" else None
    swarm, frozen = live.Swarm(tmp_path, freeze.PRESETS[role], kept), freeze.frozen_swarm(role)
    seen = asyncio.run(live.watched(swarm, frozen))
    assert differences(asdict(frozen), plain(asdict(seen)), role) == []
    if kept is not None:
        assert "resumed from own checkpoint" in swarm.peers[0].log.read_text()
