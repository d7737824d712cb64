"""The pages that list others are complete: a reader finds every page, package and layer in one place."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

DOCS = Path("docs")


def test_the_index_links_every_page_once() -> None:
    """Fault: readers do not find a page that the index does not link. A page that is linked twice has two
    descriptions."""
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.glob("*/*.md")}
    index = (DOCS / "index.md").read_text("utf-8")
    linked = Counter(re.findall(r"^\* \[[^\]]+\]\(([a-z]+/[^)#]+\.md)\)", index, re.MULTILINE))
    assert linked == Counter(pages)


def test_the_architecture_names_every_package_and_layer() -> None:
    """Fault: a new package has no line in the tree of the page, or a layer was moved in the code only."""
    page = (DOCS / "reference" / "architecture.md").read_text("utf-8")
    tree, layers = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[:2]
    packages = {path.parent.name for path in Path("peer").glob("*/__init__.py")} - {"v1"}
    assert packages <= set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    contracts = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    imported = next(contract["layers"] for contract in contracts if "layers" in contract)
    assert layers.split("\n")[:-1] == [layer.replace("peer.", "") for layer in imported]
