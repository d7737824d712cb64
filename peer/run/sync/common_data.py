"""Determines whether all peers of a run have the same data, by which they can check each other's params."""

from __future__ import annotations

from peer.methods.method import Method
from peer.run.sections import DataSection


def no_common_text_reason(section: DataSection) -> str:
    """Return why the peers have no common text, for a person. Empty: they have, or the data is no text."""
    if section.kind == "text" and not section.digest:
        return "every volunteer trains on texts of its own, so there is no data that all params can be judged by"
    return ""


def unchecked_reason(method: Method, section: DataSection) -> str:
    """Return why no peer checks its partner's params, for a person. Empty: each does, or the method does not ask for
    it."""
    if method.acceptance != "check" or not (why := no_common_text_reason(section)):
        return ""
    return f"{why}. Partners' params are clipped, and not checked. With data.digest or token shards they are"
