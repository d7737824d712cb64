"""The UPnP child process: its deadline, its bounds, and untrusted answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.protocol.swarm.port_lease import PortMapping, RouterRefusal
from peer.transport.port_mapping import router
from peer.transport.port_mapping.router import MOST_ANSWER_BYTES, MOST_WORDS, IgdRouter, answer_of, clean, mapping_of
from tests.support.child_module import child_module

GIVEN: dict[str, Any] = {"router": "192.168.7.1", "address": "45.77.1.1", "port": 4811, "lease_s": 3600}
WITHIN_S = 30.0
"""Time limit in seconds for starting a Python process on a busy machine."""


Ask = Callable[..., PortMapping | RouterRefusal]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that substitutes a program for the real child, which would access this machine's network."""

    def use(text: str) -> None:
        monkeypatch.setattr(router, "PROGRAM", child_module(tmp_path, monkeypatch, text))

    return use


@pytest.fixture
def asked(program: Callable[[str], None]) -> Ask:
    """Return a function that requests a port through a substituted program."""

    def ask(text: str, timeout_s: float = WITHIN_S) -> PortMapping | RouterRefusal:
        program(text)
        return asyncio.run(IgdRouter().open([4811], 4811, 3600.0, timeout_s))

    return ask


@pytest.mark.processes
def test_an_answer_is_read(asked: Ask) -> None:
    found = asked(f"import json; print(json.dumps({GIVEN!r}))")
    assert found == PortMapping(port=4811, router="192.168.7.1", address="45.77.1.1", lease_s=3600.0)


@pytest.mark.processes
def test_the_job_is_told_and_the_port_is_closed(program: Callable[[str], None]) -> None:
    program("import sys, json; print(json.dumps({'refused': str(json.loads(sys.argv[1])['ports'])}))")
    assert asyncio.run(IgdRouter().close(4811, 4811, WITHIN_S)) == "[4811]"


@pytest.mark.processes
@pytest.mark.parametrize("text", ["", "raise SystemExit(3)", "print('nonsense')", "print('[' * 4000)", "print('[1]')"])
def test_a_process_that_breaks_is_a_refusal(asked: Ask, text: str) -> None:
    assert asked(text) == RouterRefusal("the router's answer could not be read")


@pytest.mark.processes
def test_an_answer_without_end_is_not_read(asked: Ask) -> None:
    found = asked("import sys\nwhile True: sys.stdout.write('x' * 4096)")
    assert found == RouterRefusal("the router's answer is too long")


SLOW = "import os, time, pathlib; pathlib.Path({path!r}).write_text(str(os.getpid())); time.sleep(600)"


@pytest.mark.processes
def test_a_slow_router_is_given_up(asked: Ask, tmp_path: Path) -> None:
    began = time.monotonic()
    found = asked(SLOW.format(path=str(tmp_path / "pid")), 1.0)
    assert found == RouterRefusal("the router did not answer within 1 s")
    assert time.monotonic() - began < WITHIN_S
    assert not is_alive(tmp_path / "pid")


@pytest.mark.processes
def test_a_cancelled_question_leaves_no_process(program: Callable[[str], None], tmp_path: Path) -> None:
    program(SLOW.format(path=str(tmp_path / "pid")))

    async def main() -> None:
        asking = asyncio.create_task(IgdRouter().open([4811], 4811, 3600.0, 600.0))
        async with asyncio.timeout(WITHIN_S):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

    asyncio.run(main())
    assert not is_alive(tmp_path / "pid")


def is_alive(pid: Path) -> bool:
    return pid.exists() and Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"port": 0}, None),
        ({"port": 65536}, None),
        ({"port": "4811"}, None),
        ({"port": True}, None),
        ({"lease_s": -1}, None),
        ({"lease_s": 1e300}, None),
        ({"lease_s": 10**300}, None),
        ({"address": "2606:4700::1"}, ""),
        ({"address": "router.example"}, ""),
        ({"address": ["45.77.1.1"]}, ""),
        ({"address": "45.77.1.1" + "0" * 5000}, ""),
        ({"address": "10.0.0.9"}, "10.0.0.9"),
    ],
)
def test_what_a_router_names_is_checked(change: dict[str, Any], expected: str | None) -> None:
    found = mapping_of(GIVEN | change)
    if expected is None:
        assert isinstance(found, RouterRefusal)
    else:
        assert isinstance(found, PortMapping)
        assert found.address == expected


def test_a_routers_words_are_made_harmless() -> None:
    words = "yes\x1b[2J\n\tno\u202e" + "x" * 1000
    assert "\x1b" not in clean(words)
    assert "\n" not in clean(words)
    assert len(clean(words)) <= MOST_WORDS
    found = answer_of(b'{"refused": "the router said: \\u001b]0;owned\\u0007"}')
    assert isinstance(found, RouterRefusal)
    assert "\x1b" not in found.why
    assert found.address is None
    assert mapping_of(GIVEN | {"router": "\x1b[31m"}) == PortMapping(
        port=4811, router="\\x1b[31m", address="45.77.1.1", lease_s=3600.0
    )


def test_a_refusal_keeps_the_routers_address() -> None:
    assert answer_of(b'{"refused": "no", "address": "10.0.0.9"}') == RouterRefusal("no", "10.0.0.9")
    assert answer_of(b'{"refused": "no", "address": "?"}') == RouterRefusal("no", "")
    assert isinstance(answer_of(b"{" + b" " * MOST_ANSWER_BYTES + b"}"), RouterRefusal)
