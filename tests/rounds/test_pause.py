from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peer.clock.quiet_hours import DAY, QuietHours
from peer.errors import HomeUnusable, UsageError
from peer.observe.status.codec import to_json
from peer.rounds.pause import LONGEST_S, LocalPause

NIGHT = QuietHours.parse("22:00-07:00")


class Wall:
    """A wall clock in minutes of the day."""

    def __init__(self, hours: float = 12.0) -> None:
        self.now = hours * 3600.0

    def rest(self, kept: Path | None = None, quiet: QuietHours | None = None) -> LocalPause:
        return LocalPause(kept, quiet, lambda: self.now, lambda now: int(now // 60) % DAY)

    def passes(self, hours: float, rest: LocalPause) -> None:
        self.now += hours * 3600
        rest.look()


def test_it_holds_from_pause_to_resume() -> None:
    rest = Wall().rest()
    assert not rest.active.is_set()
    rest.pause()
    assert rest.active.is_set()
    assert rest.reason().startswith("paused by you since ")
    rest.resume()
    assert not rest.active.is_set()
    assert rest.reason() == ""


def test_a_pause_for_a_while_ends_by_itself() -> None:
    wall = Wall()
    rest = wall.rest()
    rest.pause(2 * 3600)
    assert " until " in rest.reason()
    wall.passes(1.9, rest)
    assert rest.active.is_set()
    wall.passes(0.2, rest)
    assert not rest.active.is_set()


def test_a_second_pause_replaces_the_end_and_keeps_the_beginning() -> None:
    wall = Wall()
    rest = wall.rest()
    rest.pause(3600)
    began = to_json(rest.report())["since"]
    wall.passes(0.5, rest)
    rest.pause()
    wall.passes(5, rest)
    assert rest.active.is_set()
    assert to_json(rest.report())["since"] == began


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), LONGEST_S + 1])
def test_times_that_cannot_be_are_refused_and_change_nothing(seconds: float) -> None:
    rest = Wall().rest()
    with pytest.raises(UsageError):
        rest.pause(seconds)
    assert not rest.active.is_set()


def test_it_outlives_the_process_and_its_end_does_too(tmp_path: Path) -> None:
    wall, kept = Wall(), tmp_path / "paused.json"
    wall.rest(kept).pause(3600)
    again = wall.rest(kept)
    assert again.active.is_set()
    assert to_json(again.report())["until"] == wall.now + 3600
    again.resume()
    assert not wall.rest(kept).active.is_set()
    wall.rest(kept).pause(3600)
    wall.now += 4000
    assert not wall.rest(kept).active.is_set(), "it ended while nobody ran"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"since": "x", "until": null}', b'{"since": 1e999, "until": null}', b"\xff" * 9000]
)
def test_a_damaged_file_leaves_the_machine_alone(tmp_path: Path, content: bytes) -> None:
    kept = tmp_path / "paused.json"
    kept.write_bytes(content)
    rest = Wall().rest(kept)
    assert rest.active.is_set()
    rest.resume()
    assert not kept.exists()


def test_a_pause_that_cannot_be_written_down_is_told_and_holds(tmp_path: Path) -> None:
    rest = Wall().rest(tmp_path / "absent" / "paused.json")
    with pytest.raises(HomeUnusable):
        rest.pause()
    assert rest.active.is_set()


def test_quiet_hours_hold_every_night() -> None:
    wall = Wall(21.9)
    rest = wall.rest(quiet=NIGHT)
    assert not rest.active.is_set()
    for _ in range(2):
        wall.passes(0.2, rest)
        assert rest.reason() == "quiet hours 22:00-07:00"
        assert rest.active.is_set()
        wall.passes(9, rest)
        assert not rest.active.is_set()
        wall.passes(14.8, rest)


def test_told_to_go_on_in_quiet_hours_it_works_until_the_next_ones() -> None:
    wall = Wall(23)
    rest = wall.rest(quiet=NIGHT)
    rest.resume()
    assert not rest.active.is_set()
    wall.passes(7.9, rest)
    assert not rest.active.is_set()
    wall.passes(1, rest)
    wall.passes(15, rest)
    assert rest.active.is_set()


def test_the_watch_moves_what_holds() -> None:
    wall = Wall(21.9)
    rest = wall.rest(quiet=NIGHT)

    async def sleep(seconds: float) -> None:
        wall.now += 3600
        await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.create_task(rest.watch(sleep))
        async with asyncio.timeout(180):
            await rest.active.future
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(main())


def test_a_file_it_may_not_read_leaves_the_machine_alone(tmp_path: Path) -> None:
    kept = tmp_path / "paused.json"
    kept.mkdir()  # a folder cannot be read as a file, not even by root
    assert Wall().rest(kept).active.is_set()


def test_it_knows_how_soon_the_quiet_hours_begin() -> None:
    assert Wall().rest().known_in() == float("inf")
    wall = Wall(21.5)
    wall.now += 20.0
    assert wall.rest(quiet=NIGHT).known_in() == 30 * 60 - 20.0


def test_a_minute_that_changes_after_a_look_is_noticed_at_once() -> None:
    wall, asked = Wall(), list[float]()

    def now() -> float:
        """Return a time that advances between two reads."""
        wall.now += 0.001
        return wall.now

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 2:
            raise asyncio.CancelledError

    rest = LocalPause(None, NIGHT, now, lambda now: int(now // 60) % DAY)
    wall.now = 22 * 3600.0 - 0.0035
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(rest.watch(sleep))
    assert asked[0] < 0.01
    assert rest.active.is_set()
