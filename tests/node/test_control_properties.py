from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import PeerError
from peer.node.control import COMMANDS, _line, _parse, _parse_reply, _Refused

values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
bodies = st.dictionaries(st.text(max_size=9), values | st.lists(values, max_size=3), max_size=5)


@given(bodies, st.sampled_from(sorted(COMMANDS)))
def test_a_request_arrives_as_it_was_made(body: dict[str, Any], command: str) -> None:
    request = {**body, "command": command}
    assert _parse(_line(request)) == (command, request)


@given(bodies)
def test_a_reply_arrives_as_it_was_made(body: dict[str, Any]) -> None:
    body.pop("error", None)
    line = _line(body)
    assert line.count(b"\n") == 1
    assert _parse_reply(line) == body


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    with pytest.raises(_Refused):
        _parse(raw)


def test_an_error_is_raised_with_its_reason_whatever_its_type() -> None:
    with pytest.raises(PeerError, match="3"):
        _parse_reply(b'{"error": null, "reason": 3, "fix": []}')


def test_a_reply_nested_without_end_is_no_reply() -> None:
    with pytest.raises(ValueError, match="nested"):
        _parse_reply(b"[" * 100_000)
