"""docs/reference/codes.md, made from peer/codes.py: the two cannot disagree."""

from __future__ import annotations

from peer.codes import Code

HEAD = """\
# Codes of refusals and failures

<!-- Made from peer/codes.py by `python -m tests.generated --write`: edit there. -->

A refusal between two peers, a failed exchange, or a record or statement that must not be believed has one of these
codes and a sentence with the details. `peer status` shows both, [the journal](journal-events.md) keeps both, and
[the metrics](metrics.md) count by code.

`bad_payload:CODE` in a journal means that the other side refused bytes of this peer for that code. A code that is not
in this table comes from another version of the program, and metrics count it as `other`.

| code | meaning |
| --- | --- |
"""


def page() -> str:
    """Return the text of the file."""
    return HEAD + "".join(f"| `{code}` | {code.meaning} |\n" for code in sorted(Code))
