"""docs/reference/exit-codes.md, made from the tree of peer/errors.py: the two cannot disagree."""

from __future__ import annotations

from peer.errors import PeerError

HEAD = """\
# Exit codes

<!-- Made from peer/errors.py by `python -m tests.generated --write`: edit there. -->

A process of `peer` ends with one of these codes. The last column says whether a supervisor should restart it without
changes. The text of an error has four parts: what was found, why that matters (`why:`), what to do (`fix:`), and the
command that shows the section of this page (`see:`). 0 is success: the run is over, or the peer was asked to leave.

| code | error | meaning | retry |
| --- | --- | --- | --- |
"""
BUG = "| [1](#1) | PeerError | A running daemon answered with an error; with a traceback, a bug: report it. | yes |"
STOPPED = "| 130 | | Ctrl+C before there was anything to drain, or the second one | no |"


def page() -> str:
    """Return the text of the file."""
    kinds = sorted(PeerError.__subclasses__(), key=lambda kind: kind.exit_code)
    rows = [f"| [{k.exit_code}](#{k.exit_code}) | {k.__name__} | {_meaning(k)} | {_retry(k)} |" for k in kinds]
    table = "\n".join([BUG, *rows, STOPPED])
    return HEAD + table + "\n" + "".join(_section(kind) for kind in [PeerError, *kinds])


def _section(kind: type[PeerError]) -> str:
    meaning = "A running daemon answered a command with an error." if kind is PeerError else _meaning(kind)
    retry = "may help, after a pause." if kind.retry else "does not help before something has changed."
    return f"""
## {kind.exit_code}

**{kind.__name__}.** {meaning}

* Why it matters: {kind.why}
* What to do: {kind.fix}
* Trying again: {retry}
"""


def _meaning(kind: type[PeerError]) -> str:
    return (kind.__doc__ or "").strip()


def _retry(kind: type[PeerError]) -> str:
    return "yes" if kind.retry else "no"
