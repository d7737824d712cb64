"""A trainer on shards waits for them while it handles commands, skips unavailable ones, and evaluates."""

from __future__ import annotations

import math
import queue
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from blake3 import blake3

from peer.clock.monotonic import boottime
from peer.run.files.artifact import ArtifactRef
from peer.run.files.token_index import TokenIndex
from peer.run.sections import DataSection, LlamaSection, TokenizerSection
from peer.trainer import checkpoint as saved
from peer.trainer.data.tokens import WAIT_S
from peer.trainer.models.llama import empty_model, first_params, layout_of, views_of
from peer.trainer.probing.files import probe_file
from tests.trainer.data.test_token_shards import built
from tests.trainer.test_trainer_worker import MODEL, TOKENS, Idle, Played, ScriptedLine

WIDE = LlamaSection(**MODEL.model_dump() | {"vocab_size": 1000})
NOBODY = "nobody has it"


class ShardLine(ScriptedLine):
    """Plays the daemon: answers requests for shards unless it is `silent`. Time passes while the trainer waits."""

    def __init__(self, folder: Path, index: TokenIndex) -> None:
        super().__init__()
        self.files = {entry.digest: folder / f"train-{n:05}.tokens" for n, entry in enumerate(index.train)}
        self.files[index.holdout[0].digest] = folder / "holdout-00000.tokens"
        self.nobody_has: set[str] = set()
        self.silent = False
        self.unanswered: list[str] = []
        self.heard: list[dict[str, Any]] = []
        self.now = 5000.0
        self.until = math.inf

    def send(self, message: dict[str, Any]) -> None:
        self.heard.append(message)
        self.unanswered += message.get("ask", ())
        if not self.silent:
            self.answer()
        super().send(message)

    def answer(self) -> None:
        for digest in self.unanswered:
            path = None if digest in self.nobody_has else str(self.files[digest])
            self.waiting.append({"op": "shard", "digest": digest, "path": path, "reason": NOBODY})
        self.unanswered.clear()

    def get(self, timeout: float | None = None) -> dict[str, Any]:
        if self.waiting or timeout is None:
            return super().get(timeout)
        self.now += timeout
        if self.now > self.until:
            raise Idle
        raise queue.Empty

    def skips(self) -> list[dict[str, Any]]:
        return [message["skipped"] for message in self.heard if "skipped" in message]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


class OnShards(Played):
    line: ShardLine

    def __init__(self, home: Path, folder: Path, index: TokenIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = (folder / "index.json").read_bytes()
        line, reference = ShardLine(folder, index), ArtifactRef(digest=blake3(raw).hexdigest(), size=len(raw))
        monkeypatch.setattr(time, "monotonic", lambda: line.now)
        tokenizer = TokenizerSection(
            kind="file", vocab_size=1000, end_token=0, file=ArtifactRef(digest="0" * 64, size=1)
        )
        data = DataSection(kind="tokens", index=reference)
        where = {"data": data, "data_index": str(folder / "index.json"), "tokenizer": tokenizer}
        super().__init__(home, folder, line=line, model=WIDE, **where)


def test_it_trains_on_shards_and_a_snapshot_tells_their_span(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = OnShards(home, folder, built(folder), monkeypatch)
    played.start()
    work = played.work(steps=3)
    assert (work["tokens"], work["data_from"], work["data_to"], work["data_skipped"]) == (
        3 * TOKENS,
        "0.0.0",
        "0.1.0",
        "",
    )
    played.apply(played.arena.out.clone(), work["processed"], 1)
    again = played.work(steps=1, round_=1)
    assert (again["data_from"], again["data_to"]) == ("0.1.0", "0.1.4")


def test_a_skipped_round_skips_no_data(home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = OnShards(home, folder, built(folder), monkeypatch)
    played.start()
    played.work(steps=2)
    assert played.work(steps=1, round_=6)["data_to"] == "0.1.0"


def test_evaluation_is_in_nats_a_token_and_bits_a_byte_of_text(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = built(folder)
    played = OnShards(home, folder, index, monkeypatch)
    played.line.silent = True
    played.start()
    played.call_later("evaluate")
    with pytest.raises(Idle):
        played.session.run()
    assert played._id not in played.line.answers, "it waits for the hold-out"
    played.line.answer()
    played.line.stop_at = played._id
    with pytest.raises(Idle):
        played.session.run()
    result = played.line.answers[played._id]["ok"]
    assert result["bits_per_byte"] == pytest.approx(result["loss"] / math.log(2) / 3.0), "3 bytes a token"
    tokens = torch.frombuffer(bytearray((folder / "holdout-00000.tokens").read_bytes()), dtype=torch.uint16).long()
    starts = [int(at) for at in torch.linspace(0, len(tokens) - 17, 8, dtype=torch.float64)]
    windows = torch.stack([tokens[at : at + 17] for at in starts])
    model = empty_model(WIDE)
    model.load_state_dict(dict(views_of(first_params(WIDE, 1), layout_of(WIDE))), assign=True)
    expected = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    assert result["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_without_a_hold_out_the_loss_is_not_a_number(home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = built(folder)
    played = OnShards(home, folder, index, monkeypatch)
    played.line.nobody_has = {index.holdout[0].digest}
    played.start()
    assert math.isnan(played.call("evaluate")["loss"])
    assert played.work(steps=1)["steps"] == 1


def test_it_waits_a_bounded_time_says_so_and_takes_commands_meanwhile(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = OnShards(home, folder, built(folder), monkeypatch)
    line = played.line
    line.silent = True
    played.start()
    played.call_later("work", steps=2, until=None, round=0, fragment=0, hold=True, lr_scale=1.0, pause_after=None)
    began, line.until = line.now, line.now + WAIT_S / 2
    with pytest.raises(Idle):
        played.session.run()
    told = [message["progress"] for message in line.heard if "progress" in message]
    assert told[-1][6].startswith("waiting for shard")
    assert played.call("save", folder=str(home))["tokens"] == 0, "commands are taken"
    line.until = math.inf
    line.stop_at = played._id - 1
    line.unanswered.pop(1)  # the answer with the needed shard never comes
    line.answer()
    with pytest.raises(Idle):
        played.session.run()
    assert line.now - began == pytest.approx(WAIT_S, abs=2.0)
    assert [skip["reason"] for skip in line.skips()] == [f"it did not come within {WAIT_S:.0f} s"]
    assert line.answers[played._id - 1]["ok"]["data_skipped"] == "0.0"
    assert played.session._tracked.waiting == ""


def test_work_by_the_clock_ends_in_time_without_its_shard(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = OnShards(home, folder, built(folder), monkeypatch)
    played.line.silent = True
    played.start()
    monkeypatch.setattr("peer.trainer.boundary.boottime", lambda: boottime() - 5000.0 + played.line.now)
    work = played.work(until=boottime() + 20.0)
    assert (work["steps"], work["data_from"], work["data_to"]) == (0, "0.0.0", "0.0.0")
    assert played.line.now == pytest.approx(5020.0, abs=1.5)


def test_a_checkpoint_keeps_the_place_and_a_later_loss_goes_back_to_its_base(
    home: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = built(folder)
    one = OnShards(home, folder, index, monkeypatch)
    one.start()
    work = one.work(steps=2)
    one.apply(one.arena.out.clone(), work["processed"], 1)
    one.work(steps=1, round_=1)
    one.call("save", folder=str(tmp_path))
    assert saved.data_place(tmp_path) is not None
    two = OnShards(home, folder, index, monkeypatch)
    two.start(resume=tmp_path)
    assert (two.work(steps=0, round_=1)["data_from"], str(two.session._loop.batches.cursor.window)) == ("0.0.8", "0")
    one.work(steps=4, round_=1)  # the counter advances, and the work after the base is lost
    three = OnShards(home, folder, index, monkeypatch)
    three.start(resume=tmp_path, round_=1)
    assert three.work(steps=0, round_=1)["data_to"] == "0.0.8"


def test_a_probe_looks_into_random_shards_that_it_asks_for(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = OnShards(home, folder, built(folder, shards=12), monkeypatch)
    played.start()
    played.work(steps=2)
    own, base = played.arena.out.clone(), played.arena.inn.clone()
    torch.cat((own, base)).numpy().tofile(probe_file(home, 0))
    terms = {"fragment": 0, "in_place": False, "share": 1.0, "taken": 1.0, "within_s": 60.0}
    found = [played.call("probe", seed=seed, **terms) for seed in range(8)]
    assert found[0]["why"].startswith("0 of 4 random shards of the run's data are here")
    last = found[-1]
    assert last["source"].endswith("of the run's 12 shards, drawn at random")
    assert len(last["own"]) == 6, "two inner steps pay for no more"
    assert last["own"] == pytest.approx(last["partner"], rel=1e-5)
    assert last["own"] != last["base"]
    assert played.line.skips() == []
