"""The values in docs/reference/presets.md, made from peer/run/presets.py: the two cannot disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer.run.method import Method
from peer.run.presets import PRESETS
from peer.run.schema import SINCE_FORMAT_3

FILE = Path(__file__).parent.parent / "docs/reference/presets.md"
BEGIN = "<!-- Made from peer/run/presets.py by `python -m tests.generated --write`: edit there. -->"
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
The presets of this table need a manifest of format 3, which an older program refuses. `peer manifest new` writes it.
"""


def page() -> str:
    """Return the text of the file with the tables of today."""
    before, _, rest = FILE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    newer = SINCE_FORMAT_3["sync"]["preset"] or ()
    tables = (
        _table([name for name in PRESETS if name not in newer]),
        _table([name for name in PRESETS if name in newer]),
    )
    return f"{before}{BEGIN}\n\n{tables[0]}\n{tables[1]}\n{TOLD}\n{END}{after}"


def _table(names: list[str]) -> str:
    """A column a preset. Rows that say nothing of any of them are left out."""
    columns = [PRESETS[name] for name in names]
    lines = [["", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    rows = ([row, *map(value, columns)] for row, value in ROWS.items())
    lines += [cells for cells in rows if set(cells[1:]) != {NONE}]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def _codecs(method: Method) -> str:
    if method.topology == "solo":
        return NONE
    return ", ".join(filter(None, (method.codec, method.result_codec)))
