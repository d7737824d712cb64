from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.discovery.dht_node.exit_report import LINES, MAX_PENDING, WIDTH, Tail, in_words, oom_kills
from peer.observe.process_stats import open_files, resident_bytes


def test_the_last_lines_are_kept_in_order_however_they_arrive() -> None:
    tail = Tail()
    assert tail.feed(b"on") == []
    assert tail.feed(b"e\ntwo\nthr") == ["one", "two"]
    assert tail.feed(b"ee\n\n") == ["three", ""]
    assert tail.words() == "one | two | three"
    assert tail.last() == "three"
    for n in range(9):
        tail.feed(f"{n}\n".encode())
    assert tail.words() == " | ".join(map(str, range(9 - LINES, 9)))


def test_what_is_kept_is_bounded() -> None:
    tail = Tail()
    for _ in range(5):
        tail.feed(b"x" * MAX_PENDING)
    assert len(tail._pending) == MAX_PENDING
    (line,) = tail.feed(b"\n")
    assert len(line) == MAX_PENDING
    assert tail.words() == "x" * WIDTH


def test_a_panic_is_told_and_not_the_hundred_lines_after_it() -> None:
    tail = Tail()
    tail.feed(b"fatal error: out of memory\n" + b"goroutine 1 [running]:\n\t/src/main.go:1\n" * 50)
    assert tail.words() == "fatal error: out of memory"


def test_start_and_chatter_of_a_healthy_p2pd_are_no_last_words() -> None:
    tail = Tail()
    tail.feed(b"Control socket: /unix/tmp/x\nPeer ID: 12D3\nPeer Addrs:\n/ip4/127.0.0.1/tcp/1\n")
    tail.feed(b'{"level":"warn","logger":"dht","msg":"failed when refreshing routing table"}\n')
    assert tail.words() == ""
    tail.feed(b'{"level":"error","logger":"dht","msg":"cannot listen","error":"too many open files"}\n')
    tail.feed(b'{"level":"error"}\n')
    assert tail.words() == 'cannot listen too many open files | {"level":"error"}'


@pytest.mark.parametrize(
    ("code", "said", "memory_short", "words"),
    [
        (0, "", False, "ended with exit code 0"),
        (2, "panic: no", True, "ended with exit code 2; its last words: panic: no"),
        (-15, "", True, "was killed by signal 15 (SIGTERM)"),
        (-9, "", False, "was killed by signal 9 (SIGKILL)"),
        (-9, "", True, "was killed by signal 9 (SIGKILL) while the system was out of memory (its OOM killer struck)"),
        (-99, "", False, "was killed by signal 99"),
    ],
)
def test_how_it_ended(code: int, said: str, memory_short: bool, words: str) -> None:
    assert in_words(code, said, memory_short) == words


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "vmstat"
    path.write_text("nr_free_pages 5\noom_kill 12\n")
    assert oom_kills(path) == 12
    path.write_text("oom_kill many\n")
    assert oom_kills(path) == 0
    assert oom_kills(tmp_path / "absent") == 0


def test_what_a_process_holds() -> None:
    before = open_files(os.getpid())
    with Path("/dev/null").open("rb"):
        assert open_files(os.getpid()) == before + 1
    assert open_files(2**30) == 0
    assert 2**20 < resident_bytes(os.getpid()) < 2**36
    assert resident_bytes(2**30) == 0
