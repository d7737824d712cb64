"""A Dockerfile as instructions: enough of the syntax to check one and to carry its steps out."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`name` in upper case; `text` is the rest with its continued lines joined, comments left out."""

    name: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        """The leading `--key=value` words; of HEALTHCHECK those before CMD."""
        found = {}
        for word in self.text.split():
            if not word.startswith("--"):
                break
            key, _, value = word[2:].partition("=")
            found[key] = value
        return found

    @property
    def rest(self) -> str:
        """The text behind the flags."""
        return re.sub(r"^(?:--\S+\s+)*", "", self.text)

    @property
    def words(self) -> list[str]:
        """The exec form (a JSON list), or the words of the shell form, quotes taken off."""
        return self.exec_form or shlex.split(self.rest)

    @property
    def exec_form(self) -> list[str] | None:
        """The list that is run without a shell; None for the shell form. Of HEALTHCHECK what follows CMD."""
        text = self.rest.removeprefix("CMD").strip() if self.name == "HEALTHCHECK" else self.rest
        try:
            words = json.loads(text)
        except ValueError:
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next. `base` is an image or the name of a former stage."""

    base: str
    name: str
    steps: tuple[Instruction, ...]

    def last(self, name: str) -> Instruction | None:
        """The instruction of this name that counts: a later one replaces the former."""
        return next((step for step in reversed(self.steps) if step.name == name), None)


def parse(text: str) -> list[Stage]:
    """The stages in order. Raises ValueError for steps before the first FROM and for parser directives, which we have
    no use for."""
    stages: list[Stage] = []
    for step in _instructions(text):
        if step.name == "FROM":
            base, *name = step.rest.split()
            stages.append(Stage(base, name[1] if name else "", ()))
        elif not stages:
            raise ValueError(f"{step.name} before the first FROM")
        else:
            before = stages.pop()
            stages.append(Stage(before.base, before.name, (*before.steps, step)))
    return stages


def read(path: Path) -> list[Stage]:
    """The stages of the Dockerfile at `path`."""
    return parse(path.read_text())


def lineage(stages: list[Stage], stage: Stage) -> list[Stage]:
    """The stage and those it is built upon, the oldest first."""
    parent = next((it for it in stages if it.name and it.name == stage.base), None)
    return [*(lineage(stages, parent) if parent else []), stage]


def expand(text: str, variables: dict[str, str]) -> str:
    """`$NAME` and `${NAME}` replaced, as in ENV, COPY and WORKDIR; what is not set is empty."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def pairs(step: Instruction) -> dict[str, str]:
    """The `key=value` words of ENV and LABEL."""
    return dict(word.split("=", 1) for word in shlex.split(step.rest))


def _instructions(text: str) -> list[Instruction]:
    found, pending = [], ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            if re.match(r"#\s*(syntax|escape|check)\s*=", line):
                raise ValueError(f"parser directive: {line}")
            continue
        pending += line.strip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            pending += " "
        elif pending.strip():
            name, _, rest = pending.strip().partition(" ")
            found.append(
                Instruction(name.upper(), re.sub(r"\s+", " ", rest.strip()) if name != "RUN" else rest.strip())
            )
            pending = ""
    if pending.strip():
        raise ValueError(f"the last line is continued: {pending.strip()}")
    return found
