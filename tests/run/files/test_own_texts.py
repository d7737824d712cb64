"""Only text files of a user's folder are used, and those that look like secrets are named."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from peer.errors import DataError
from peer.run.files import own_texts
from peer.run.files.own_texts import looks_secret, open_below, survey

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n"


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_texts_are_taken_and_the_rest_is_counted(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "b.txt": "Ünïcode\n",
            "a/c.py": "print(1)\n",
            "a.md": "é" * 8000,
            "pictures/a.png": b"\x89PNG\r\n\x1a\n\0",
            "more.gz": gzip.compress(b"text"),
            "latin.txt": "é".encode("latin-1"),
            "wide.txt": "text".encode("utf-16"),
            "empty.txt": "",
            ".env": "PASSWORD=1",
            ".ssh/id_rsa": KEY,
            ".git/config": "x",
            "a/.hidden": "x",
        },
    )
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    found = survey(tmp_path)
    assert found.files == ("a.md", "a/c.py", "b.txt")
    assert found.nbytes == 16000 + 9 + 10
    assert (found.skipped_binary, found.skipped_hidden, found.suspicious) == (4, 4, [])
    assert found.summary() == (
        "3 files, 16 kB; skipped 4 binary, 4 hidden, 2 links, 1 empty, 1 that are neither file nor folder"
    )


def test_folders_that_are_too_deep_or_too_full_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (deep := tmp_path.joinpath("deep", *["d"] * 110)).mkdir(parents=True)
    (deep / "a.txt").touch()
    with pytest.raises(DataError, match="more than 100 folders deep"):
        survey(tmp_path / "deep")
    monkeypatch.setattr(own_texts, "MOST_ENTRIES", 2)
    write(tmp_path, {f"full/{number}.txt": "x" for number in range(3)})
    with pytest.raises(DataError, match="more than 2 files"):
        survey(tmp_path / "full")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("id_rsa", ""),
        ("id_ed25519", ""),
        ("prod.env", ""),
        ("env.local", ""),
        ("server.pem", ""),
        ("tls.KEY", ""),
        ("credentials", ""),
        ("aws-credentials.csv", ""),
        ("secrets.yaml", ""),
        ("passwords.txt", ""),
        ("client_secret_1.json", ""),
        ("notes.txt", KEY),
        ("notes.txt", "-----BEGIN PGP PRIVATE KEY BLOCK-----"),
        ("notes.txt", "key: AKIAABCDEFGHIJKLMNOP"),
        ("notes.txt", "token = ghp_" + "a" * 36),
    ],
)
def test_secrets_are_suspected(name: str, head: str) -> None:
    assert looks_secret(name, head.encode())


@pytest.mark.parametrize(
    "name", ["environment.md", "id_rsa.pub", "keys.txt", "secretary.txt", "the_secret_garden.txt", "shadows.txt"]
)
def test_other_texts_are_not(name: str) -> None:
    assert not looks_secret(name, b"-----BEGIN PUBLIC KEY-----")


def test_secrets_that_would_be_taken_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "text", "b/notes.txt": KEY, ".ssh/id_rsa": KEY, "id_rsa": KEY})
    assert survey(tmp_path).suspicious == ["b/notes.txt", "id_rsa"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone cannot be read: No such file"):
        survey(tmp_path / "gone")


def test_no_link_leads_out_after_the_survey(tmp_path: Path) -> None:
    write(tmp_path, {"own/a/b.txt": "mine", "other/b.txt": "not mine"})
    with os.fdopen(open_below(tmp_path / "own", "a/b.txt")) as file:
        assert file.read() == "mine"
    (tmp_path / "own" / "a" / "b.txt").unlink()
    (tmp_path / "own" / "a").rmdir()
    (tmp_path / "own" / "a").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="a"):
        open_below(tmp_path / "own", "a/b.txt")


def test_a_few_bytes_are_not_told_as_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a few words\n")
    assert survey(tmp_path).summary() == "1 file, 12 B; skipped 0 binary, 0 hidden"
