"""The choice of the files to read: links, files left out, and files that look like text but are not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from peer.data import sources
from peer.data.documents import DocumentReader, Place
from peer.data.sources import Sources, find
from peer.errors import DataError


def texts(found: Sources) -> list[str]:
    return ["".join(pieces) for _, pieces in DocumentReader(found.files, Place())]


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


def hub(folder: Path) -> Path:
    """Make a snapshot in a cache of the Hugging Face hub, as `huggingface_hub.snapshot_download` writes it."""
    repository = folder / "hub" / "datasets--ada--notes"
    snapshot = repository / "snapshots" / "0123abc"
    for path in (repository / "blobs", repository / "refs", snapshot / "data"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abc")
    (repository / "blobs" / "aa11").write_text('{"text": "one"}\n{"text": "two"}\n')
    (repository / "blobs" / "bb22").write_text("three")
    (snapshot / "data" / "train.jsonl").symlink_to("../../../blobs/aa11")
    (snapshot / "notes.txt").symlink_to("../../blobs/bb22")
    return snapshot


@pytest.mark.parametrize("up", [0, 2, 3], ids=["snapshot", "repository", "cache"])
def test_a_hub_snapshot_is_read_by_its_links(tmp_path: Path, up: int) -> None:
    snapshot = hub(tmp_path)
    found = find([[snapshot, *snapshot.parents][up]])
    assert texts(found) == ["one", "two", "three"]
    assert (found.linked, found.outside) == (2, {})


def test_a_link_named_by_itself_is_followed_in_the_hub(tmp_path: Path) -> None:
    assert texts(find([hub(tmp_path) / "data" / "train.jsonl"])) == ["one", "two"]


def test_links_out_of_a_snapshot_are_not_those_of_the_hub(tmp_path: Path) -> None:
    snapshot, other = hub(tmp_path), write(tmp_path / "other", key="secret") / "key.txt"
    (snapshot / "a.txt").symlink_to(other)
    (snapshot.parents[1] / "blobs" / "cc33").symlink_to(other)
    (snapshot / "b.txt").symlink_to("../../blobs/cc33")
    assert set(find([snapshot]).outside.values()) == {str(other)}


def test_links_within_the_folder_are_followed_and_files_are_read_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", a="a", b="b")
    write(folder / ".store", c="c")
    (folder / "again.txt").symlink_to("a.txt")
    (folder / "z.txt").symlink_to(".store/c.txt")
    (folder / "sub").symlink_to(".store")
    (folder / "gone.txt").symlink_to("nothing")
    os.link(folder / "b.txt", folder / "hard.txt")
    found = find([folder])
    assert texts(found) == ["a", "b", "c"]
    assert found.linked == 1
    others = {what: count for what, count in found.survey.others.items() if count}
    assert others == {sources.BROKEN: 1, sources.AGAIN: 3}


def test_links_between_the_folders_given_are_followed(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one", a="a"), write(tmp_path / "other", b="b")
    (one / "b.txt").symlink_to(other / "b.txt")
    assert texts(find([one, other])) == ["a", "b"]


@pytest.mark.parametrize("named", [False, True], ids=["in a folder", "by itself"])
def test_a_target_outside_needs_agreement(tmp_path: Path, named: bool) -> None:
    folder, other = write(tmp_path / "folder", a="a"), write(tmp_path / "other", b="b", id_rsa="key")
    (folder / "b.txt").symlink_to(other / "b.txt")
    given = [folder / "a.txt", folder / "b.txt"] if named else [folder]
    found = find(given)
    assert texts(found) == ["a"]
    assert found.outside == {str(folder / "b.txt"): str(other / "b.txt")}
    assert texts(find(given, agreed=[str(other / "b.txt")])) == ["a", "b"]


def test_a_folder_outside_needs_agreement_and_its_links_again(tmp_path: Path) -> None:
    folder, other, third = (write(tmp_path / name, **{name: name}) for name in ("one", "two", "three"))
    (folder / "two").symlink_to(other)
    (other / "three").symlink_to(third)
    assert find([folder]).outside == {str(folder / "two"): str(other)}
    found = find([folder], agreed=[str(other)])
    assert (texts(found), found.outside) == (["one", "two"], {str(folder / "two" / "three"): str(third)})
    assert texts(find([folder], agreed=[str(other), str(third)])) == ["one", "three", "two"]


def test_the_name_of_a_links_target_tells_of_a_secret(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", a="a")
    write(folder / ".ssh")
    (folder / ".ssh" / "id_rsa").write_text("no usual head")
    (folder / "poem").symlink_to(".ssh/id_rsa")
    assert find([folder]).survey.suspicious == [str(folder / "poem")]


@pytest.mark.parametrize("target", [".", "..", "../..", "self", "inner"])
def test_loops_are_refused_by_name_or_left_out(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "outer" / "folder", a="a")
    (folder / "inner").mkdir()
    link = folder / "inner" / "self" if target == "inner" else folder / "self"
    link.symlink_to("../inner" if target == "inner" else target)
    with pytest.raises(DataError, match=r"the link .*self leads back") as raised:
        find([folder])
    assert "--exclude" in raised.value.fix
    assert texts(find([folder], exclude=["self"])) == ["a"]


def test_links_that_multiply_are_walked_once_each(tmp_path: Path) -> None:
    """Fault: twenty folders, each with two links to the next one, have a million paths."""
    for number in range(20):
        write(tmp_path / f".{number}", **{f"t{number}": f"{number}"})
        for name in "ab":
            (tmp_path / f".{number}" / name).symlink_to(f"../.{number + 1}")
    (tmp_path / ".20").mkdir()
    (tmp_path / "start").symlink_to(".0")
    assert len(find([tmp_path]).files) == 20


def test_a_link_that_is_changed_after_the_search_leads_nowhere_else(tmp_path: Path) -> None:
    folder, other = write(tmp_path / "folder", a="a"), write(tmp_path / "other", b="b")
    write(folder / ".store", c="c")
    (folder / "c.txt").symlink_to(".store/c.txt")
    found = find([folder])
    (folder / "c.txt").unlink()
    (folder / "c.txt").symlink_to(other / "b.txt")
    with pytest.raises(DataError, match=r"c\.txt changed after the sources"):
        texts(found)


def test_patterns_leave_files_and_folders_out(tmp_path: Path) -> None:
    write(tmp_path, a="a", b="b")
    write(tmp_path / "sub" / "inner", c="c")
    assert texts(find([tmp_path], exclude=["sub/"])) == ["a", "b"]
    assert texts(find([tmp_path], exclude=["b.*", "sub/*/c.txt"])) == ["a"]
    found = find([tmp_path], exclude=["inner"])
    assert (texts(found), found.survey.others[sources.EXCLUDED]) == (["a", "b"], 1)


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("a")
    found = find([tmp_path])
    assert texts(found) == ["a"]
    assert json.loads(json.dumps(found.survey.files)) == list(found.survey.files)
    assert len(found.fingerprint()) == 64


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.tsv.gz", "a.tar", "a.tar.gz", "a.zip", "a.txt.gz", "a.jsonl.xz", "a.jsonl.bz2", "a.arrow"],
)
def test_files_that_are_not_read_as_they_are_are_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, b="b")
    (tmp_path / name).write_bytes(b"text,id\n\0\n" if "csv" not in name else b"text,id\na,1\n")
    with pytest.raises(DataError, match=f"{name} \\(") as raised:
        find([tmp_path])
    assert "--exclude" in raised.value.fix
    with pytest.raises(DataError, match=f"{name} \\("):
        find([tmp_path / name])
    assert texts(find([tmp_path], exclude=[name])) == ["b"]


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_texts_in_another_encoding_are_named(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, b="b")
    (tmp_path / "a.txt").write_bytes("é".encode(encoding))
    with pytest.raises(DataError, match=r"a\.txt \(.*UTF-8"):
        find([tmp_path])


@pytest.mark.parametrize(
    "content",
    [
        '{"text": "one"}\n{"text": "two"}\n',
        '\ufeff\n{"text": "one", "n": ' + "9" * 5000 + '}\n\n{"text": "two"}',
        '{"meta": "' + "x" * 10_000 + '", "text": "one"}\n{"text": "two"}\n',
    ],
)
def test_json_lines_are_known_by_their_content(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert [file.kind for file in find([tmp_path]).files] == ["jsonl"]


@pytest.mark.parametrize(
    "content",
    ['{\n  "name": "x",\n  "text": "y"\n}\n', '{"name": "x"}', "[1, 2]", '["a"]', "5", "{" * 20_000, "no JSON"],
)
def test_another_json_file_is_one_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert texts(find([tmp_path])) == [content]


@pytest.mark.parametrize(
    "content",
    [
        '[{"text": "a"}, {"text": "b"}]',
        '[\n  {\n    "text": "a"\n  }\n]\n',
        '{"text": {"0": "a"}}',
        '{"body": "a"}\n{"body": "b"}\n',
        '{"text": null}\n{"text": "b"}\n',
        '{"text": "' + "a" * sources.MOST_SNIFFED + '"}',
    ],
)
def test_json_that_is_neither_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=r"a\.json \("):
        find([tmp_path])


def test_a_pipe_of_the_shell_is_no_link_to_nothing() -> None:
    """bash passes `<(command)` as /dev/fd/63, which is a link to a pipe."""
    read, written = os.pipe()
    try:
        with pytest.raises(DataError, match=f"/dev/fd/{read} is neither a file nor a folder"):
            find([Path(f"/dev/fd/{read}")])
    finally:
        os.close(read)
        os.close(written)
