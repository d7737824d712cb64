"""The commands that pages show, each with its line, and the output that follows them.

Every line of a fenced block with the language `sh` is a command. `sh no-run REASON` says why a block is not executed. A
block without a language right below a command block is its expected output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHER_SHELLS = {"bash", "shell", "console", "zsh", "shell-session", "terminal"}
NO_RUN = "no-run"

_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<info>[^`]*)$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_TIME = re.compile(r"^\s*\d\d:\d\d:\d\d\s+")


@dataclass(frozen=True)
class Command:
    """One command of a block, as a shell reads it, including continuation lines and a here-document."""

    text: str
    line: int

    @property
    def words(self) -> list[str]:
        """The words of its first line, without comments and without variables set before the program."""
        words = shlex.split(self.text.splitlines()[0].rstrip("\\"), comments=True)
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            words = words[1:]
        return words


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and the rest of the info string, its lines, and those of the block below."""

    language: str
    info: str
    lines: tuple[str, ...]
    line: int
    output: tuple[str, ...] = ()

    @property
    def is_run(self) -> bool:
        return self.language == "sh" and not self.info.startswith(NO_RUN)

    @property
    def reason(self) -> str:
        """Return why the block is not run."""
        return self.info.removeprefix(NO_RUN).strip()

    def commands(self) -> Iterator[Command]:
        """Yield the commands in order."""
        gathered: list[str] = []
        began, until = self.line, ""
        for at, line in enumerate(self.lines, self.line + 1):
            if not gathered and (not line.strip() or line.lstrip().startswith("#")):
                continue
            began = at if not gathered else began
            gathered.append(line)
            heredoc = _HEREDOC.search(line)
            if until:
                until = "" if line.strip() == until else until
            elif heredoc:
                until = heredoc.group(1)
            if not until and not line.endswith("\\"):
                yield Command("\n".join(gathered), began)
                gathered = []
        assert not gathered, f"the block of line {self.line} ends within a command"

    def key_words(self) -> Iterator[str]:
        """Yield the constant words of the shown output: the beginning of each line up to a number."""
        for line in self.output:
            label = re.split(r"[\d…<>/=]|\s{2,}|: ", _TIME.sub("", line).strip())[0].strip(" -,:([{\"'")
            if len(label) >= 3:
                yield label


@dataclass(frozen=True)
class Page:
    """A page of Markdown."""

    path: str
    text: str

    def blocks(self) -> list[Block]:
        found: list[tuple[Block, int]] = []
        lines = self.text.splitlines()
        at = 0
        while at < len(lines):
            if (match := _FENCE.match(lines[at])) is None:
                at += 1
                continue
            end = next(i for i in range(at + 1, len(lines) + 1) if i == len(lines) or lines[i].strip() == "```")
            depth = len(match["indent"])
            language, _, info = match["info"].strip().partition(" ")
            body = tuple(line[depth:] if not line[:depth].strip() else line for line in lines[at + 1 : end])
            found.append((Block(language, info.strip(), body, at + 1), end))
            at = end + 1
        return [_with_output(block, end, [b for b, _ in found[i + 1 :]], lines) for i, (block, end) in enumerate(found)]


def _with_output(block: Block, end: int, later: list[Block], lines: list[str]) -> Block:
    if block.language == "sh" and later and later[0].language in ("", "text"):
        between = lines[end + 1 : later[0].line - 1]
        if not any(line.strip() for line in between):
            return Block(block.language, block.info, block.lines, block.line, later[0].lines)
    return block


def all_pages(root: Path = ROOT) -> list[Page]:
    """Read every page that is ours."""
    paths = [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]
    return [Page(path.relative_to(root).as_posix(), path.read_text()) for path in paths]
