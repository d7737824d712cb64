import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import HomeUnusable
from peer.observe import events
from peer.observe.event_codec import encode, read_lines
from peer.observe.journal import Journal
from peer.observe.totals import Totals, fold, read_totals, replay, rotated_path


def dropped(n: int) -> events.Dropped:
    return events.Dropped(fragment=n % 3, dropped=n, upto=n, reason="why")


def solo(n: int) -> events.RoundEnded:
    return events.RoundEnded(
        round=n,
        fragment=n % 3,
        outcome=events.OUTCOMES[n % 3],
        partner="",
        reason="",
        applied=n,
        dropped=1,
        upto=n,
        steps=n,
        bytes_sent=n,
        bytes_received=2 * n,
        seconds=n / 7,
    )


some_event = st.one_of(
    st.integers(0, 10**6).map(solo),
    st.integers(0, 10**6).map(dropped),
    st.builds(events.Evaluated, round=st.integers(0, 99), loss=st.floats(0, 9), bits_per_byte=st.floats(0, 9)),
    st.builds(events.Started, peer_id=st.just("p"), run_id=st.just("r"), version=st.just("v"), resumed=st.text()),
    st.builds(events.TrainingBegan, round=st.integers(0, 9)),
    st.builds(events.RoundDue, round=st.integers(0, 9), fragment=st.just(0), deadline=st.just(1.5)),
    st.builds(events.Leaving, reason=st.text()),
)


class Ticks:
    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        self.t += 1.0
        return self.t


def fill(journal: Journal, count: int, start: int = 1) -> None:
    for n in range(start, start + count):
        journal.append(solo(n))


def test_events_and_totals_survive_a_restart(tmp_path):
    path = tmp_path / "run" / "journal"
    journal = Journal(path, Ticks())
    fill(journal, 5)
    journal.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [got[0] for got in read_lines(path) if got] == [solo(n) for n in range(1, 6)]
    again = Journal(path, Ticks())
    assert again.totals == journal.totals == read_totals(path)
    assert again.totals.applied == 15
    assert again.damaged == 0
    again.close()


def test_listeners_are_told_after_the_write(tmp_path):
    journal = Journal(tmp_path / "journal", Ticks())
    told = []
    journal.listeners.append(lambda event, t: told.append((event, t, journal.totals == read_totals(journal.path))))
    journal.append(dropped(1))
    journal.append(dropped(2))
    assert told == [(dropped(1), 1.0, True), (dropped(2), 2.0, True)]
    journal.close()


@settings(deadline=None, max_examples=40)
@given(
    sessions=st.lists(st.lists(some_event, max_size=12), max_size=4),
    limit=st.integers(1, 1500),
    torn=st.lists(st.sampled_from([b"", b"{", b'{"t":1', b"\n", b"\xff"]), min_size=4, max_size=4),
)
def test_rotation_and_torn_tails_keep_the_totals_exact(tmp_path_factory, sessions, limit, torn):
    path = tmp_path_factory.mktemp("j") / "journal"
    now, expected = Ticks(), Totals()
    for part, tail in zip(sessions, torn, strict=False):
        journal = Journal(path, now, limit_bytes=limit)
        for event in part:
            journal.append(event)
            expected = fold(expected, event, now.t)
            assert read_totals(path) == journal.totals == expected
        journal.close()
        assert not path.with_name("journal.new").exists()
        with path.open("ab") as file:
            file.write(tail)
    assert read_totals(path) == expected


def test_size_is_bounded_and_the_later_part_alone_has_exact_sums(tmp_path):
    path, limit = tmp_path / "journal", 5000
    journal = Journal(path, Ticks(), limit_bytes=limit)
    fill(journal, 500)
    journal.close()
    head = path.read_bytes().splitlines()[0]
    assert b'"kind":"totals"' in head
    assert path.stat().st_size <= limit + len(head) + 1
    assert rotated_path(path).stat().st_size <= limit + len(head) + 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal", "journal.1"]
    rotated_path(path).unlink()
    assert read_totals(path) == journal.totals
    assert journal.totals.applied == 500 * 501 // 2


class Killed(BaseException):
    """Raised at the moment when the process would be killed."""


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("nth", range(3))
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_point_of_the_rotation_loses_and_doubles_nothing(tmp_path, monkeypatch, call, nth, after):
    path, now = tmp_path / "journal", Ticks()
    journal = Journal(path, now, limit_bytes=1000)
    fill(journal, 40)  # rotated before: there is a former part to lose
    before = journal.totals
    real, calls = getattr(os, call), iter(range(100))

    def kill(*args, **kwargs):
        if next(calls) != nth:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, call, kill)
        for n in range(41, 80):
            before = journal.totals
            try:
                journal.append(solo(n))
            except Killed:
                break
        else:
            pytest.fail("never killed")
    counted = fold(before, solo(n), now.t)
    left = read_totals(path)
    assert left in ((before, counted) if call == "write" else (before,))
    os.close(journal._fd)
    again = Journal(path, now, limit_bytes=1000)
    assert again.totals == left
    assert not path.with_name("journal.new").exists()
    again.append(solo(n + 1))
    assert read_totals(path) == again.totals == fold(left, solo(n + 1), now.t)
    again.close()


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("nth", range(3))
def test_a_failing_disk_during_rotation_costs_nothing(tmp_path, monkeypatch, call, nth):
    path, now = tmp_path / "journal", Ticks()
    journal = Journal(path, now, limit_bytes=1000)
    fill(journal, 10)
    real, calls, failures = getattr(os, call), iter(range(100)), []

    def fail(*args, **kwargs):
        if next(calls) == nth:
            failures.append(1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        seen = []
        for n in range(11, 40):
            journal.append(solo(n))
            seen.append(journal.failed)
        assert failures
        assert sum("No space left" in reason for reason in seen) == 1
    assert journal.failed == ""
    assert read_totals(path) == journal.totals
    assert journal.totals.applied == 39 * 40 // 2
    journal.close()


def test_a_full_disk_does_not_stop_anything_and_the_sums_are_mended(tmp_path):
    path, now = tmp_path / "journal", Ticks()
    journal = Journal(path, now)
    fill(journal, 3)
    size = path.stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # The kernel refuses every byte beyond: a short write first, then none.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, old[1]))
        journal.append(solo(4))
        assert "cannot write the journal" in journal.failed
        journal.append(solo(5))
        assert journal.failed
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert journal.totals.applied == 15
    assert read_totals(path).applied == 6
    journal.append(solo(6))
    assert journal.failed == ""
    assert replay(path) == (journal.totals, 1)
    assert journal.totals.applied == 21
    journal.append(solo(7))
    assert sum(isinstance(got[0], events.Carried) for got in read_lines(path) if got) == 1
    journal.close()


def test_a_line_written_whole_by_a_failed_write_is_not_counted_twice(tmp_path, monkeypatch):
    path = tmp_path / "journal"
    journal = Journal(path, Ticks())
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:-1]))
        journal.append(solo(4))
    assert journal.failed
    journal.append(solo(5))
    assert read_totals(path) == journal.totals
    assert journal.totals.applied == 9
    journal.close()


def test_a_journal_that_cannot_be_opened_yet(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        journal = Journal(tmp_path / "journal", Ticks())
        assert "No space left" in journal.failed
        fill(journal, 2)
        assert "No space left" in journal.failed
    journal.append(solo(3))
    assert journal.failed == ""
    assert read_totals(journal.path) == journal.totals
    assert journal.totals.applied == 6
    journal.close()


def test_sums_never_begin_anew_over_a_journal_that_cannot_be_read(tmp_path):
    (tmp_path / "journal").mkdir()
    with pytest.raises(HomeUnusable, match="journal"):
        Journal(tmp_path / "journal", Ticks())


def test_a_damaged_line_is_counted(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(encode(solo(1), 1.0) + b"garbage\n" + encode(solo(2), 2.0))
    journal = Journal(path, Ticks())
    assert (journal.damaged, journal.totals.applied) == (1, 3)
    journal.close()


SCRIPT = """
import itertools, sys
from pathlib import Path
from peer.observe import events
from peer.observe.journal import Journal
journal = Journal(Path(sys.argv[1]), lambda: 1.0, limit_bytes=2000)
for n in itertools.count(1):
    journal.append(events.Dropped(fragment=0, dropped=1, upto=n, reason=""))
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


@pytest.mark.processes
def test_a_real_kill_loses_nothing_that_append_returned_from(tmp_path: Path):
    path = tmp_path / "journal"
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(300):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    returned = 300 + child.stdout.read().count(b"\n")
    child.wait()
    child.stdout.close()
    totals = read_totals(path)
    assert totals.dropped == totals.upto[0]
    assert returned <= totals.dropped <= returned + 1
