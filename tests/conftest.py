"""Property tests draw the same examples every time, keep no database, and do not depend on how busy the machine is."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("peer", derandomize=True, deadline=None, database=None)
settings.load_profile("peer")
