"""The tables in docs/reference/presets.md, made from peer/methods: the two cannot disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.methods.method import Method
from peer.methods.registry import PRESETS, RULES

FILE = Path(__file__).parent.parent / "docs/reference/presets.md"
BEGIN = "<!-- Made from peer/methods by `python -m tests.generated --write`: edit there. -->"
END = "<!-- From here on written by hand. -->"
NONE = "–"
ROWS: dict[str, Callable[[Method], str]] = {
    "schedule": lambda method: method.schedule,
    "topology": lambda method: method.topology,
    "rule": lambda method: method.rule,
    "`outer_lr` / `outer_momentum`": lambda method: f"{method.outer_lr:g} / {method.outer_momentum:g}",
    "`consensus`": lambda method: f"{method.consensus:g}" if method.consensus else NONE,
    "`codec`, `result_codec`": lambda method: _codecs(method),
    "fragments": lambda method: f"{method.fragments} {method.fragment_layout.replace('whole', '')}".strip(),
    "`fragment_update_alpha`": lambda method: f"{method.fragment_update_alpha:g}" if method.fragments > 1 else NONE,
    "`eager`": lambda method: "yes" if method.eager else NONE,
    "`weights`, `mean`": lambda method: f"{method.weights}, {method.mean}" if method.weights else NONE,
    "`max_group`": lambda method: f"{method.max_group}" if method.max_group else NONE,
    "`acceptance`": lambda method: method.acceptance or NONE,
    "`growth_lr`": lambda method: f"{method.growth_lr:g}" if method.growth_lr else NONE,
}
TOLD = """\
The presets of this table need a manifest of format {since}, which an older program refuses.
`peer manifest new` writes it.
"""


def page() -> str:
    """Return the text of the page, with its tables generated from the presets."""
    before, _, rest = FILE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    formats = sorted({preset.since for preset in PRESETS.values()})
    made = [BEGIN, *(part for since in formats for part in _of_format(since)), _purposes(), _rules()]
    return before + "\n".join(f"{part.rstrip()}\n" for part in made) + f"\n{END}{after}"


def _of_format(since: int) -> tuple[str, ...]:
    table = _table([name for name, preset in PRESETS.items() if preset.since == since])
    return (table,) if since == 1 else (table, TOLD.format(since=since))


def _purposes() -> str:
    rows = "".join(f"| `{name}` | {preset.purpose} |\n" for name, preset in PRESETS.items())
    return f"## When to take which\n\n| preset | for |\n| --- | --- |\n{rows}"


def _rules() -> str:
    """Return the table of outer rules."""
    rows = "".join(
        f"| `{name}` | {', '.join(f'`{where.name}`' for where in rule.topologies)} | `{rule.equation}` |\n"
        for name, rule in RULES.items()
    )
    head = "## Outer rules\n\ng is the pseudo-gradient, in a group the mean of its members', y what the partner sends,"
    head += "\nu_before the u of the round before."
    return f"{head}\n\n| `rule` | topologies | step |\n| --- | --- | --- |\n{rows}"


def _table(names: list[str]) -> str:
    """Return a table with one column for each preset. Rows that are empty for all presets are left out."""
    columns = [PRESETS[name].method for name in names]
    lines = [["", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    rows = ([row, *map(value, columns)] for row, value in ROWS.items())
    lines += [cells for cells in rows if set(cells[1:]) != {NONE}]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def _codecs(method: Method) -> str:
    if method.topology == "solo":
        return NONE
    return ", ".join(filter(None, (method.codec, method.result_codec)))
