"""A strict parser of Prometheus's text format 0.0.4. Every scraper accepts the texts that this parser accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)?\}})? (\S+)")


@dataclass
class Family:
    """One metric. `samples`: (name, labels as written) -> value."""

    name: str
    help: str
    kind: str = ""
    samples: dict[tuple[str, str], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        """Return the value of the sample with exactly these labels."""
        return self.samples[self.name, ",".join(f'{name}="{labels[name]}"' for name in sorted(labels))]


def parse(text: str) -> dict[str, Family]:
    """Return the metrics by name. Raises AssertionError at the first violation of the format."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    current: Family | None = None
    for line in text.splitlines():
        if found := _HELP.fullmatch(line):
            assert found[1] not in families, f"twice: {line}"
            current = families[found[1]] = Family(found[1], found[2])
        elif found := _TYPE.fullmatch(line):
            assert current is not None, line
            assert (current.name, current.kind, current.samples) == (found[1], "", {}), line
            current.kind = found[2]
        else:
            assert current is not None, line
            _take(current, line)
    for family in families.values():
        assert family.kind, family.name
        if family.kind == "histogram":
            _check_histogram(family)
    return families


def _take(family: Family, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found is not None, line
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert found[1] in [family.name + suffix for suffix in suffixes], line
    key = (found[1], found[2] or "")
    assert key not in family.samples, f"twice: {line}"
    family.samples[key] = float(found[3])


def _check_histogram(family: Family) -> None:
    buckets = [(labels, v) for (name, labels), v in family.samples.items() if name.endswith("_bucket")]
    bounds = [float(labels.removeprefix('le="').removesuffix('"')) for labels, _ in buckets]
    counts = [count for _, count in buckets]
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert counts == sorted(counts)
    assert family.samples[f"{family.name}_count", ""] == counts[-1]
    assert (f"{family.name}_sum", "") in family.samples
