"""The pages load nothing from other hosts, and insert text of strangers only as text."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from peer.web.static_files import FOLDER, read_all

OURS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".js", ".html", ".css") and "uPlot" not in path.name)
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.srcdoc|DOMParser")
ELSEWHERE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_files_make_no_markup_and_name_no_other_host(path: Path) -> None:
    text = path.read_text()
    assert not MARKUP.findall(text)
    assert not ELSEWHERE.findall(text)


@pytest.mark.parametrize("name", ["volunteer.html", "run.html"])
def test_a_page_has_no_inline_script_or_style_and_all_its_files(name: str) -> None:
    text, files = (FOLDER / name).read_text(), read_all()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", text)
    named = re.findall(r'(?:src|href)="/static/([^"]+)"', text)
    assert named
    assert set(named) <= set(files)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".js"], ids=lambda path: path.name)
def test_a_module_imports_what_there_is_and_names_elements_that_exist(path: Path) -> None:
    text = path.read_text()
    imported = re.findall(r'from "\./([^"]+)"', text)
    assert set(imported) <= set(read_all())
    if path.stem in ("volunteer", "run"):
        page = (FOLDER / f"{path.stem}.html").read_text()
        if path.stem == "volunteer":
            text += (FOLDER / "control.js").read_text()
        ids = set(re.findall(r'(?:byId|text|datum|badge|table|list|Curves)\("([\w-]+)"', text))
        assert len(ids) > 10
        assert ids <= set(re.findall(r'id="([\w-]+)"', page))


def test_every_peer_id_in_a_table_can_be_copied() -> None:
    """A short id is shown by `peerCell`, or in a cell that copies the full id."""
    for page in ("run.js", "volunteer.js"):
        text = (FOLDER / page).read_text()
        assert "peerCell(one.peer_id)" in text
        assert all("copies:" in line for line in text.splitlines() if "shortId" in line and "import" not in line)
    assert "given.copies" in (FOLDER / "dom.js").read_text()


def test_the_wheel_brings_the_files_and_the_licence_of_uplot() -> None:
    whole = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "web/static/*" in whole["tool"]["setuptools"]["package-data"]["peer"]
    assert "MIT" in (FOLDER / "uPlot.LICENSE.txt").read_text()
