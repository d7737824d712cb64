"""Property tests draw the same examples every time, keep no database, and do not depend on how busy the machine is."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("peer", derandomize=True, deadline=None, database=None)
settings.load_profile("peer")

for _name in [name for name in os.environ if name.startswith("PEER_") and name != "PEER_KERNELS"]:
    del os.environ[_name]  # they would give options to the commands under test
os.environ["PEER_CONFIG"] = os.devnull


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that wait for a router's leases: at the end all others would wait for them."""
    items.sort(key=lambda item: "port_mapping" not in item.nodeid and "mapped_home" not in item.nodeid)
