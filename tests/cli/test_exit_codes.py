"""The exit code of an error that a command raises is that of the process."""

from __future__ import annotations

import click
import pytest

from peer.cli import main as entry
from peer.errors import SwarmUnreachable, TrainerFailed


def ends_with(monkeypatch: pytest.MonkeyPatch, raised: BaseException | None, code: int = 0) -> int:
    @click.command("leave")
    def command() -> None:
        if raised is not None:
            raise raised
        click.get_current_context().exit(code)

    monkeypatch.setattr(entry.peer, "get_command", lambda ctx, name: command)
    with pytest.raises(SystemExit) as caught:
        entry.main(["leave"])
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (SwarmUnreachable("nobody"), 30),
        (TrainerFailed("dead", "look"), 40),
        (KeyboardInterrupt(), 130),
        (click.UsageError("no"), 2),
        (None, 0),
    ],
)
def test_what_a_command_raises_is_what_the_process_returns(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException | None, code: int
) -> None:
    assert ends_with(monkeypatch, raised) == code


def test_a_command_that_exits_by_itself_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends_with(monkeypatch, None, 7) == 7


def test_a_defect_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ends_with(monkeypatch, ZeroDivisionError())


def test_a_strangers_sentence_cannot_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(monkeypatch, SwarmUnreachable("line one\nline two \x1b[2J\x9b", "wait"))
    told = capsys.readouterr().err
    assert told.startswith("error: line one\nline two \\x1b[2J\\x9b\n  why: ")
    assert told.endswith("\n  fix: wait\n  see: peer help exit-codes 30\n")


def test_help_ends_with_0() -> None:
    with pytest.raises(SystemExit) as caught:
        entry.main(["--help"])
    assert caught.value.code == 0
