"""The private parts of hivemind that we use are those listed in docs/reference/hivemind.md, and exist in the installed
version. A failure means that hivemind has changed, or that we use more of it than the page lists."""

from __future__ import annotations

import ast
import inspect
import multiprocessing.context
import re
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from peer.discovery.dht_node import node as our_node
from peer.discovery.dht_node import process as our_process
from peer.discovery.dht_node.entry_store import DHTLocalStorage

ROOT = Path(__file__).parents[3]
VERSION = "1.1.12"
PAGE = (ROOT / "docs/reference/hivemind.md").read_text()
OURS = sorted((ROOT / "peer/discovery/dht_node").glob("*.py"))
OWNERS: dict[str, type | ModuleType] = {
    "P2P": our_process.P2P,
    "ControlClient": our_process.p2p_daemon.p2pclient.ControlClient,
    "DHTProtocol": our_node.protocol.DHTProtocol,
    "DHTLocalStorage": DHTLocalStorage,
    "p2p_daemon": our_process.p2p_daemon,
    "multiprocessing": multiprocessing.context,
    "node": our_node.node,
    "protocol": our_node.protocol,
    "routing": our_node.routing,
    "timed_storage": our_node.timed_storage,
}
PARTS = [tuple(part.split(".")) for part in re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)]


def test_the_version_is_the_one_that_was_read() -> None:
    found = metadata.version("hivemind")
    assert found == VERSION, (
        f"hivemind {found} is installed, and its parts were read in {VERSION}: compare each part that "
        "docs/reference/hivemind.md lists with the new source, then raise VERSION here, the pin and the page"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"hivemind=={VERSION}" in project["dependencies"]
    assert f"hivemind {VERSION}" in PAGE


@pytest.mark.parametrize(("owner", "name"), PARTS)
def test_a_listed_part_is_there(owner: str, name: str) -> None:
    source = inspect.getsource(OWNERS[owner])
    assert re.search(rf"\b{name}\b", source), (
        f"hivemind {metadata.version('hivemind')} has no {owner}.{name}, which peer/discovery/dht_node uses"
    )


def used(texts: list[str]) -> set[str]:
    """Return the private names that modules use of other objects, and those that they assign on them."""
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    made = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    made |= {one.attr for one in attributes if isinstance(one.ctx, ast.Store) and _is_self(one.value)}
    made |= {one.target.id for one in nodes if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    private = {one.attr for one in attributes if re.match(r"_[^_]", one.attr)} - made
    return private | {one.attr for one in attributes if isinstance(one.ctx, ast.Store) and not _is_self(one.value)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def overridden() -> set[str]:
    """Return the methods of hivemind that our classes override."""
    pairs = [(our_process.Process, our_process.P2P), (our_node.EntryStore, DHTLocalStorage)]
    return {
        name for ours, theirs in pairs for name in vars(ours) if hasattr(theirs, name) and not name.startswith("__")
    }


OWN = {"value"}
"""Names that the scan finds but that are not hivemind's: a field of a protobuf message."""


def test_every_part_that_is_used_is_listed() -> None:
    assert (used([path.read_text() for path in OURS]) | overridden()) - OWN <= {name for _, name in PARTS}


def test_a_part_that_is_not_listed_is_found() -> None:
    text = "class A:\n  def _own(self): ...\n  def f(self, p):\n    self._x = p._theirs\n    p.hook = self._own()\n"
    assert used([text]) == {"_theirs", "hook"}
