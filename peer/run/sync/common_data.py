"""Whether a run has data that all of its peers can judge each other's params by."""

from __future__ import annotations

from peer.methods.method import Method
from peer.run.sections import DataSection


def no_common_text_reason(section: DataSection) -> str:
    """Return why no text is known to be the same for all peers. Empty: it is, or the data is no text."""
    if section.kind == "text" and not section.digest:
        return "every volunteer trains on texts of its own, so there is no data that all params can be judged by"
    return ""


def unchecked_reason(method: Method, section: DataSection) -> str:
    """Return why no peer of a run checks its partner's params. Empty: each does, or the run does not ask for it."""
    if method.acceptance != "check" or not (why := no_common_text_reason(section)):
        return ""
    return f"{why}. Partners' params are clipped, and not checked. With data.digest or token shards they are"
