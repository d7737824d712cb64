"""Executes every command that a page shows, unless the page states why it must not be run."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from peer.cli.main import peer
from tests.docs.pages import OTHER_SHELLS, ROOT, Block, Command, Page, all_pages
from tests.docs.terminal import ASKING, DAEMONS, PLAYED_ELSEWHERE, SHARED, Terminal, verb_of

PAGES = all_pages()
BLOCKS = [pytest.param(page, block, id=f"{page.path}:{block.line}") for page in PAGES for block in page.blocks()]
OURS = {"peer", "cd", "export", ".", "source", "cat", "ls", "mkdir", "cp", "mv", "tail", "head", "grep", "echo", "curl"}
"""Programs that are executed. Others would change a developer's machine, or are not installed everywhere."""
_TARGET = re.compile(r"^([a-z][\w-]*):", re.MULTILINE)
_SHOWN = re.compile(r"(?<!`)`(peer [a-z][^`\n]*)`(?!`)")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Terminal]]:
    """A bootstrap node and one peer, started when a page first needs them. If a page ends the peer, a new one is
    started."""
    terminals: list[Terminal] = []

    def running() -> Terminal:
        if not terminals:
            terminals.append(Terminal(tmp_path_factory.mktemp("d")))
            for at, line in enumerate(SHARED):
                terminals[0].run(Command(line, at))
        node, *peers = terminals[0].daemons
        assert node.running(), node.output
        if not peers[-1].running():
            terminals[0].volunteer = terminals[0].folder / f"volunteer-{len(peers)}"
            terminals[0].run(peers[-1].command)
        return terminals[0]

    yield running
    for terminal in terminals:
        terminal.close()


def run_pages() -> Iterator[Any]:
    """Yield every page with commands. Of the pages that start daemons, all except the README are nightly."""
    for page in PAGES:
        commands = [command for block in page.blocks() if block.is_run for command in block.commands()]
        starts = {verb_of(command.words) for command in commands} & {*DAEMONS, *ASKING, "swarm"}
        if commands:
            marks = [pytest.mark.nightly] if starts and page.path != "README.md" else []
            yield pytest.param(page, marks=marks, id=page.path)


@pytest.mark.processes
@pytest.mark.parametrize("page", [*run_pages()])
def test_commands_do_what_the_page_says(
    page: Page, swarm: Callable[[], Terminal], tmp_path_factory: pytest.TempPathFactory
) -> None:
    terminal = Terminal(tmp_path_factory.mktemp("p"), swarm)
    later = [command for block in page.blocks() if block.is_run for command in block.commands()]
    try:
        for block in page.blocks():
            if block.is_run:
                output = ""
                for command in block.commands():
                    later.pop(0)
                    output += _done(terminal, command, later)
                said = " ".join(output.split())
                lacking = [word for word in block.key_words() if " ".join(word.split()) not in said]
                checked = all(_is_checked(command) for command in block.commands())
                assert checked or not lacking, f"{page.path}:{block.line}: not in the output: {lacking}\n{said}"
    finally:
        terminal.close()


def _done(terminal: Terminal, command: Command, later: Sequence[Command]) -> str:
    if _is_checked(command):
        check(command)
        return ""
    return terminal.run(command, later)


def _is_checked(command: Command) -> bool:
    """Return whether a command is only checked and not run, because another test runs it or it takes minutes."""
    program = Path(command.words[0]).name
    return program in ("make", "python", "python3")


def check(command: Command) -> None:
    """Check that the command, its options and its files exist."""
    program, *words = command.words
    if program == "make":
        targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
        assert {word for word in words if "=" not in word and not word.startswith("-")} <= targets, command
    elif "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None, command
    for word in words:
        if word.startswith(("tests/", "examples/", "docs/", "benchmarks/", "peer/")):
            assert (ROOT / word.partition("::")[0]).exists(), command


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_blocks_keep_to_what_the_tests_read(page: Page, block: Block) -> None:
    assert block.language not in OTHER_SHELLS, "commands stand in blocks of the language sh"
    if block.language != "sh":
        return
    if not block.is_run:
        assert len(block.reason.split()) >= 2, "no-run wants a reason: ```sh no-run needs a container engine"
        return
    assert not block.info, f"{block.info!r} means nothing after sh; no-run REASON is what may stand there"
    for command in block.commands():
        assert _is_checked(command) or command.words[0] in OURS, (
            f"line {command.line}: {command.words[0]} is not run; give the block a `no-run REASON`"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_commands_of_blocks_exist(page: Page) -> None:
    """Runs every time, also for pages whose commands are executed nightly only."""
    commands = [command for block in page.blocks() if block.is_run for command in block.commands()]
    texts = [" ".join(command.words) for command in commands if verb_of(command.words)]
    assert [text for text in texts if not exists(re.split(r" [|>&;]", text)[0])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_commands_within_sentences_exist(page: Page) -> None:
    """Checks names of commands and options in running text: `peer pause --for 2h` needs a command `pause` with an
    option `--for`."""
    assert [text for text in _SHOWN.findall(page.text) if not exists(text)] == []


def exists(text: str) -> bool:
    """Return whether the command line has the command and all options that a piece of text names."""
    try:
        words = shlex.split(text)[1:]
    except ValueError:
        return False
    command: click.Command = peer
    options: set[str] = set()
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(click.Context(command), words[0].strip(",."))
        if below is None:
            return bool(options)  # an argument of a group that can be called itself
        options |= {name for parameter in below.params for name in (*parameter.opts, *parameter.secondary_opts)}
        command, words = below, words[1:]
    named = {word.split("=")[0].strip(",.") for word in words if word.startswith("--")}
    return named <= {*options, *(name for parameter in peer.params for name in parameter.opts), "--help"}


# -- the reader of pages -----------------------------------------------------------------------------------------------

TEXT = """
# A page

```sh
peer manifest new run.toml   # a comment
VALUE=1 peer status \\
  --json

# only a comment
cat > notes <<'END'
peer is not a command here
END
```

```
06:43:17  swarm of 4 peers under /tmp/…
loss          3.137 at the start
  by hour     2.229  1.995
```

* An item:

  ```sh no-run needs a container engine
  docker build .
  ```

```python
import peer
```
"""


def test_commands_and_outputs_are_read() -> None:
    first, output, second, other = Page("page.md", TEXT).blocks()
    assert [(one.line, one.words) for one in first.commands()] == [
        (5, ["peer", "manifest", "new", "run.toml"]),
        (6, ["peer", "status"]),
        (10, ["cat", ">", "notes", "<<END"]),
    ]
    assert [len(one.text.splitlines()) for one in first.commands()] == [1, 2, 3]
    assert list(first.key_words()) == ["swarm of", "loss", "by hour"]
    assert (first.is_run, output.is_run, second.is_run, other.is_run) == (True, False, False, False)
    assert (second.reason, second.lines) == ("needs a container engine", ("docker build .",))


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("peer pause --for 2h", True),
        ("peer pause --until 2h", False),
        ("peer dance", False),
        ("peer manifest amend run.toml ban PEER", True),
        ("peer manifest dance", False),
        ("peer simulate --peers 64 --hours 24", True),
        ("peer simulate latency --peers 64", True),
        ("peer status --json | jq .rounds", True),
    ],
)
def test_a_command_that_is_not_there_is_found(text: str, there: bool) -> None:
    assert exists(text) is there


def test_what_is_not_played_for_a_page_is_played_by_a_test() -> None:
    for option, path in PLAYED_ELSEWHERE.items():
        assert option in (ROOT / path).read_text() or "start_bootstrap" in (ROOT / path).read_text(), path


def test_a_daemon_that_is_only_read_checks_its_options(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "t")
    first, second = Command("peer bootstrap run.toml", 1), Command("peer bootstrap run.toml --port 4811", 2)
    terminal.run(first, [second])
    assert terminal.daemons == []
    with pytest.raises(AssertionError, match=r"line 3: peer bootstrap nothing\.toml.*\nexit code"):
        terminal.run(Command("peer bootstrap nothing.toml", 3), [second])


@pytest.mark.processes
def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "t")
    terminal.run(Command("cd texts", 1))
    assert terminal.run(Command("ls", 2)).startswith("a.txt\n")
    with pytest.raises(AssertionError, match="line 3: peer ticket show nonsense\nexit code 21"):
        terminal.run(Command("peer ticket show nonsense", 3))
    with pytest.raises(AssertionError, match="exit code"):
        terminal.run(Command("peer bootstrap nothing.toml", 4))
