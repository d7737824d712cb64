"""`peer tokenizer train` and `peer data build` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from click.testing import CliRunner, Result

from peer.cli import printing
from peer.cli.main import peer
from peer.errors import DataError, UsageError

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(peer, [str(argument) for argument in arguments])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"Document {number} tells of rounds. " * (number + 1))
    (folder / "a.png").write_bytes(b"\x89PNG\0")
    (folder / ".hidden").write_text(SECRET)
    return folder


def test_from_texts_to_shards(texts: Path, tmp_path: Path) -> None:
    tokenizer, out = tmp_path / "tokenizer.json", tmp_path / "data"
    made = run("tokenizer", "train", texts, "--vocab", "400", "--out", tokenizer, "--json")
    assert made.exit_code == 0, made.output
    trained = json.loads(made.stdout)
    assert trained["digest"] == blake3(tokenizer.read_bytes()).hexdigest()
    assert trained["documents"] == 30
    built = run("data", "build", texts, "--tokenizer", tokenizer, "--out", out, "--json")
    assert built.exit_code == 0, built.output
    assert "30 files, 13.4 kB; skipped 1 binary, 1 hidden" in built.stderr
    report = json.loads(built.stdout)
    index = (out / "index.json").read_bytes()
    assert report["index"] == {"digest": blake3(index).hexdigest(), "size": len(index)}
    assert report["train"]["documents"] + report["holdout"]["documents"] == 30
    assert report["end_token"] == {"id": 0, "text": "<|endoftext|>"}
    assert report["sources"]["skipped_binary"] == report["sources"]["skipped_hidden"] == 1


def test_the_result_is_told(texts: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    made = run("tokenizer", "train", texts, "--vocab", "20000", "--out", tokenizer)
    assert "20,000 were asked for, and the texts have no more pairs" in made.stdout
    (texts / "empty.jsonl").write_text('{"text": ""}\n')
    built = run("data", "build", texts, "--tokenizer", tokenizer, "--out", tmp_path / "data")
    assert "hold-out: 1 in " in built.stdout
    assert "left out: 1 empty documents" in built.stdout
    assert "next: peer manifest new" in built.stdout


@pytest.mark.parametrize(
    "words", [("tokenizer", "train", "--vocab", "300"), ("data", "build", "--tokenizer", "t.json")]
)
def test_secrets_are_not_taken_without_a_yes(texts: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    run("tokenizer", "train", texts, "--vocab", "300", "--out", tmp_path / "t.json")
    for number in range(7):
        (texts / f"key{number}.pem").write_text(f"{SECRET}{number}")
    given = [str(tmp_path / word) if word == "t.json" else word for word in words]
    made = run(*given, texts, "--out", tmp_path / "out")
    assert f"looks like a secret: {texts / 'key0.pem'}" in made.stderr
    assert "and 2 more" in made.stderr
    assert isinstance(made.exception, UsageError)
    assert "--yes" in made.exception.fix
    assert not (tmp_path / "out").exists()
    assert run(*given, texts, "--out", tmp_path / "out", "--yes").exit_code == 0


def test_secrets_are_asked_about(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "is_interactive", lambda: True)
    (texts / "key\x1b.pem").write_text(SECRET)
    tokenizer = tmp_path / "tokenizer.json"
    command = ["tokenizer", "train", str(texts), "--vocab", "300", "--out", str(tokenizer)]
    refused = CliRunner().invoke(peer, command, input="n\n")
    assert refused.exit_code == 1
    assert "key\\x1b.pem" in refused.stderr
    assert not tokenizer.exists()
    assert CliRunner().invoke(peer, command, input="y\n").exit_code == 0


def test_links_out_of_the_sources_are_not_followed_without_a_yes(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "id_rsa").write_text(SECRET)
    (texts / "poem.txt").symlink_to(tmp_path / "other" / "id_rsa")
    (texts / "more").symlink_to(tmp_path / "other")
    command = ("tokenizer", "train", texts, "--vocab", "300", "--out", tmp_path / "t.json")
    refused = run(*command)
    assert f"leads out of the sources: {texts / 'poem.txt'} -> {tmp_path / 'other' / 'id_rsa'}" in refused.stderr
    assert isinstance(refused.exception, UsageError)
    assert "--yes" in refused.exception.fix
    assert not (tmp_path / "t.json").exists()
    taken = run(*command, "--yes")
    assert taken.exit_code == 0, taken.output
    assert "looks like a secret" in taken.stderr
    assert "reached by links: 1 of these files" in taken.stderr
    without = run(*command[:-1], tmp_path / "u.json", "--exclude", "poem.txt", "--exclude", "more")
    assert without.exit_code == 0, without.output
    assert "2 excluded" in without.stderr


def test_the_output_is_not_its_own_source(texts: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    run("tokenizer", "train", tmp_path, "--vocab", "300", "--out", tokenizer)
    built = run("data", "build", tmp_path, "--tokenizer", tokenizer, "--out", tmp_path / "data", "--json")
    assert json.loads(built.stdout)["sources"]["files"] == 30


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    made = run("tokenizer", "train", tmp_path / "gone", "--vocab", "300", "--out", tmp_path / "tokenizer.json")
    assert isinstance(made.exception, DataError)
    assert "gone cannot be read" in made.exception.found


def test_a_vocabulary_holds_every_byte(texts: Path, tmp_path: Path) -> None:
    made = run("tokenizer", "train", texts, "--vocab", "256", "--out", tmp_path / "tokenizer.json")
    assert made.exit_code == 2
    assert "256 is not in the range" in made.stderr


WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys(['zstandard', 'pyarrow'])); from peer.cli.main import peer; peer()"
)
"""Code of a program in which two packages of the extra `data` are missing."""


@pytest.mark.processes
def test_a_missing_package_stops_only_what_uses_it(texts: Path, tmp_path: Path) -> None:
    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", WITHOUT, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    tokenizer, out = tmp_path / "tokenizer.json", tmp_path / "data"
    done = call("tokenizer", "train", texts, "--vocab", "300", "--out", tokenizer)
    assert done.returncode == 0, done.stderr
    done = call("data", "build", texts, "--tokenizer", tokenizer, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    (texts / "z.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "a"}'))
    done = call("data", "build", texts, "--tokenizer", tokenizer, "--out", tmp_path / "other")
    assert "zstandard is not installed" in done.stderr
    assert not (tmp_path / "other").exists(), "it is told before anything is read"
