"""Fuzz targets: our own files, after a crash, a disk error or changes by another program."""

from __future__ import annotations

import functools
import io
import json
import os
import struct
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors import SafetensorError
from safetensors.torch import save

from peer.codes import Code
from peer.identity import Identity
from peer.observe import events
from peer.observe.event_codec import DamagedLine, decode, encode, parse_lines
from peer.observe.totals import Totals, fold
from peer.state.checkpoint import STATE, Checkpoint, CheckpointStore, _check_tensors
from peer.state.files import blake3_hex
from peer.state.sealed_state import OUTER, SkippedCheckpoint, canonical, unseal
from peer.trainer.arena import BASE, MAGIC, TOKENS, VERSION, counters_of, parse_words
from tests.fuzz.engine import Target
from tests.fuzz.mutate import LITERALS
from tests.fuzz.parts import join, split
from tests.fuzz.wire import NOW, OWNER, RUN, Refused

LAYOUT_DIGEST = b"l" * 32
PARAMS = torch.linspace(-1, 1, 12)
TENSORS = save({"outer_params": PARAMS, "outer_momentum": PARAMS * 0})
FACTS = {"round": 3, "tokens": 4096}
HEADERS = (b'"F32"', b'"BF16"', b'"I64"', b'"shape":[', b"[2,6]", b'"data_offsets":[0,48]', b'"__metadata__":{},')


VALUES: dict[str, Any] = {"int": 5, "float": 1.5, "str": "x", "bool": True, "Outcome": "exchanged"}
VALUES |= {"AnyCode": Code.LATE}


def sealed(outer: bytes, **changes: object) -> bytes:
    entry = {"bytes": len(outer), "blake3": blake3_hex(outer)}
    state = {
        "format": 1, "run_id": RUN.hex(), "layout_digest": LAYOUT_DIGEST.hex(), "facts": FACTS, "files": {OUTER: entry},
    }  # fmt: skip
    return seal(state | changes)


def seal(state: object) -> bytes:
    return json.dumps({"state": state, "blake3": blake3_hex(canonical(state))}).encode()


def seal_again(raw: bytes) -> bytes:
    """Return a state.json with a valid digest."""
    try:
        return seal(json.loads(raw)["state"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return raw


def state_file() -> Target:
    def run(raw: bytes) -> None:
        state = unseal(raw)
        assert OUTER in state["files"]
        assert sum(entry["bytes"] for entry in state["files"].values()) < 10**5000
        assert isinstance(state["run_id"] + state["layout_digest"], str)

    corpus = (sealed(TENSORS), sealed(b"", facts={}))
    return Target(
        name="state-file",
        run=run,
        corpus=corpus,
        refuses=(SkippedCheckpoint,),
        tokens=LITERALS,
        mend=seal_again,
        limit=65536,
    )


def tensors() -> Target:
    """Load a safetensors file with a valid digest, from memory."""
    handle = os.memfd_create("tensors")
    path = Path(f"/proc/self/fd/{handle}")

    def run(raw: bytes) -> None:
        os.ftruncate(handle, len(raw))
        os.pwrite(handle, raw, 0)
        _check_tensors(path)

    corpus = (TENSORS, save({"outer_params": torch.zeros(0), "outer_momentum": torch.zeros(0)}))
    refuses = (SkippedCheckpoint, SafetensorError)
    return Target(name="tensors", run=run, corpus=corpus, refuses=refuses, tokens=HEADERS + LITERALS, mend=_length)


def _length(raw: bytes) -> bytes:
    """Set the header's length to a valid value, if the end of the header can be found."""
    end = raw.rfind(b"}}") + 2
    return struct.pack("<Q", max(end - 8, 0)) + raw[8:]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="peer-fuzz-")


def checkpoint() -> Target:
    """Load state.json and tensors of a folder through the checkpoint store."""
    store = CheckpointStore(Path(_folder().name))
    folder = store.folder / "checkpoint-7"
    folder.mkdir(exist_ok=True)

    def run(raw: bytes) -> None:
        state, outer = (*split(raw, 2), b"", b"")[:2]
        (folder / STATE).write_bytes(state)
        (folder / OUTER).write_bytes(outer)
        found, skipped = store.latest(RUN, LAYOUT_DIGEST)
        if found is None:
            raise Refused(" ".join(word for word in skipped[0].split()[1:4] if word.isalpha()))
        params, momentum = Checkpoint.load(found)
        assert params.dtype == momentum.dtype == torch.float32
        assert params.shape == momentum.shape

    def mend(raw: bytes) -> bytes:
        """Make a state.json that matches the tensors."""
        outer = (*split(raw, 2), b"", b"")[1]
        return join(sealed(outer), outer)

    corpus = (mend(join(b"", TENSORS)),)
    return Target(name="checkpoint", run=run, corpus=corpus, refuses=(Refused,), tokens=HEADERS + LITERALS, mend=mend)


def _any(kind: type[events.Event]) -> events.Event:
    """Return an instance of this event kind. Derived from its fields, so that new kinds are covered automatically."""
    hints = {field.name: str(field.type) for field in fields(kind)}
    return kind(**{name: VALUES[hint] for name, hint in hints.items()})


def _lines() -> list[bytes]:
    ended = events.RoundEnded(
        round=3, fragment=0, outcome="solo", partner="", reason="alone", applied=400, dropped=0, upto=4, steps=2,
        bytes_sent=1, bytes_received=2, seconds=0.5,
    )  # fmt: skip
    told: list[events.Event] = [
        events.Started(peer_id="p", run_id="r", version="1", resumed=""),
        events.TrainingBegan(round=2),
        events.RoundDue(round=3, fragment=0, deadline=NOW),
        ended,
        events.Dropped(fragment=0, dropped=7, upto=5, reason="late"),
        events.Skipped(from_round=3, to_round=5, reason="behind"),
        events.Evaluated(round=3, loss=float("nan"), bits_per_byte=1.5),
        events.Left(exit_code=0),
    ]
    totals = Totals()
    for number, event in enumerate(told):
        totals = fold(totals, event, NOW + number)
    told += [_any(kind) for kind in events.KINDS.values() if kind is not events.Carried]
    told.insert(0, events.Carried(totals=totals.to_json()))
    return [encode(event, NOW + number) for number, event in enumerate(told)]


def _unsure(totals: Totals) -> str:
    """Replace infinities by NaN, as both are written as null."""
    return repr(totals).replace("-inf", "nan").replace("inf", "nan")


def journal() -> Target:
    """Replay a journal. The resulting totals can be written and read again."""

    def run(raw: bytes) -> None:
        totals, skipped = Totals(), 0
        for line in parse_lines(io.BytesIO(raw)):
            try:
                if line is None:
                    raise DamagedLine
                totals = fold(totals, *line)
            except DamagedLine:
                skipped += 1
        again, _ = decode(encode(events.Carried(totals=totals.to_json()), NOW))
        assert _unsure(fold(Totals(), again, NOW)) == _unsure(totals)
        if skipped:
            raise Refused("lines skipped")

    lines = _lines()
    corpus = (b"".join(lines[1:4]), b"".join(lines[4:9]), lines[0], lines[0] + lines[4], *lines[9:])
    tokens = (*LITERALS, b'"upto":{"1":2}', b'"val_loss":[[1,2,3]]', b'"live":[[1,2]]', b"\n", b'"rounds":[["due",1]]')
    return Target(name="journal", run=run, corpus=corpus, refuses=(Refused,), tokens=tokens, limit=65536)


def counters() -> Target:
    """Read the trainer's counter file. While a trainer runs, a base may briefly exceed the tokens."""

    def run(raw: bytes) -> None:
        words = parse_words(raw, 2)
        if words is None:
            raise Refused("damaged")
        got = counters_of(words)
        assert len(got.base) == 2
        assert 0 <= got.tokens < 2**63
        assert got.seconds_training >= 0

    words = np.zeros(BASE + 2, "<u8")
    words[:3] = (MAGIC, VERSION, 2)
    words[TOKENS:] = range(1000, 1000 + len(words) - TOKENS)
    return Target(name="counters", run=run, corpus=(words.tobytes(),), refuses=(Refused,), limit=256)


def identity() -> Target:
    def run(raw: bytes) -> None:
        assert Identity.from_bytes(raw).to_bytes() == raw

    def mend(raw: bytes) -> bytes:
        """Correct the public half of the key."""
        seed = raw[4:36].ljust(32, b"\0")
        return raw[:4] + Identity(Ed25519PrivateKey.from_private_bytes(seed)).to_bytes()[4:]

    corpus = (OWNER.to_bytes(), mend(OWNER.to_bytes()[:5]))
    return Target(name="identity", run=run, corpus=corpus, refuses=(ValueError,), mend=mend, limit=200)


TARGETS = (state_file, tensors, checkpoint, journal, counters, identity)
