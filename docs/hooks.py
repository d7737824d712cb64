"""What MkDocs cannot do by itself: read a fence whose info string goes on after its language (`sh no-run REASON`)."""

from __future__ import annotations

import re
from typing import Any

INFO = re.compile(r"^(```sh) no-run .*$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave only the language in the info string of shell blocks that tests do not run."""
    return INFO.sub(r"\1", markdown)
