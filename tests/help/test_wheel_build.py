"""The content and the name of a wheel, as far as they are known without building one. `make wheel` builds it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.processes
def test_a_build_copies_every_page(tmp_path: Path) -> None:
    built = tmp_path / "lib" / "peer" / "help" / "docs"
    (built / "guides").mkdir(parents=True)
    (built / "guides" / "gone.md").write_text("of a former build")
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=180)
    pages = {path.relative_to(ROOT / "docs"): path.read_bytes() for path in (ROOT / "docs").glob("*/*.md")}
    assert {path.relative_to(built): path.read_bytes() for path in built.rglob("*.md")} == pages
    assert (tmp_path / "lib/peer/run/default.toml").exists()
    assert (tmp_path / "lib/peer/py.typed").exists()


def test_the_tag_is_that_of_the_limited_api_and_of_the_oldest_python() -> None:
    """A wheel tagged cp311 alone is refused by 3.12 and later, and one with a newer API crashes on 3.11."""
    tool = PYPROJECT["tool"]
    (kernels,) = tool["setuptools"]["ext-modules"]
    api = re.search(r"#define Py_LIMITED_API 0x030([0-9a-f])0000", (ROOT / "peer/codec/native/module.c").read_text())
    assert api is not None
    minor = int(api[1], 16)
    assert PYPROJECT["project"]["requires-python"] == f">=3.{minor}"
    assert tool["distutils"]["bdist_wheel"]["py-limited-api"] == f"cp3{minor}"
    assert kernels["py-limited-api"]
    assert kernels["optional"], "without a compiler the codecs in torch do the same"


def test_the_tested_torch_is_in_the_range() -> None:
    from peer.cli.installed import fits

    (bounds,) = [one for one in PYPROJECT["project"]["dependencies"] if one.startswith("torch")]
    pins = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [fits(pin, bounds) for pin in pins] == [True]
    assert fits("2.0", bounds) is fits("3.0", bounds) is False


def test_people_who_look_at_an_index_find_what_it_is() -> None:
    project = PYPROJECT["project"]
    assert {"authors", "keywords", "classifiers", "license", "readme"} <= project.keys()
    assert project["license-files"] == ["LICENSE"]


@pytest.mark.processes
@pytest.mark.parametrize("repository", ["", "https://forge.invalid/somebody/peer"])
def test_a_release_names_its_own_repository(tmp_path: Path, repository: str) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, timeout=180, env=os.environ | {"REPOSITORY_URL": repository}
    )
    urls = re.findall(r"^Project-URL: (\w+), (\S+)$", next(tmp_path.glob("*/PKG-INFO")).read_text(), re.MULTILINE)
    assert [url.startswith(repository) for _, url in urls] == ([True] * 4 if repository else [])


@pytest.mark.processes
def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    def notes(version: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ROOT / ".ci" / "release-notes", version], capture_output=True, text=True, timeout=60)

    now = notes(PYPROJECT["project"]["version"])
    assert now.returncode == 0, now.stderr
    assert "### " in now.stdout
    assert "\n## [" not in now.stdout
    assert notes("0.1.0").returncode == 1, "the package has another version"
