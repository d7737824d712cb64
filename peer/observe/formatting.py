"""Formats numbers, durations and texts of other peers for people."""

from __future__ import annotations

from collections.abc import Mapping


def harmless(text: str) -> str:
    """Replace control characters in text from other peers, so that a terminal shows them instead of obeying them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def amount(number: float, unit: str) -> str:
    """Return a number with its unit: `1.23 kB`, `12.3 MB`, `47 s`, `12 min`, `3 pieces`. Bytes are in powers of 1000,
    as line rates are sold, and rounded by at most half a percent."""
    if unit == "s":
        return duration(number)
    if unit != "bytes":
        return f"{number:g} {unit}".strip()
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            value = number / size
            return f"{value:.{2 if value < 9.995 else 1}f} {name}"
    return f"{number:.0f} B"


def loss_words(nats: float | None, bits_per_byte: float | None = None) -> str:
    """Return `2.345 nats a token`, with `, 1.234 bits a byte` where it is known. Nats come first because all peers of a
    run can compare them. `nats` None: the loss was not finite."""
    if nats is None:
        return "no finite number"
    return f"{nats:.3f} nats a token" + ("" if bits_per_byte is None else f", {bits_per_byte:.3f} bits a byte")


def round_outcomes(rounds: Mapping[str, int]) -> str:
    """Return `170 exchanged, 8 solo, 2 missed (1 sat out)` for the counts in `Totals.rounds`. The parts add up to
    `due`; rounds that were sat out are among the missed ones."""
    parts = [f"{rounds[name]:,} {name}" for name in ("exchanged", "solo", "refused", "missed") if rounds.get(name)]
    if rounds.get("sat_out"):
        parts[-1:] = [f"{parts[-1]} ({rounds['sat_out']:,} sat out)"] if rounds.get("missed") else parts[-1:]
    ended = sum(rounds.get(name, 0) for name in ("exchanged", "solo", "refused", "missed"))
    if (open_ := rounds.get("due", 0) - ended) > 0:
        parts.append(f"{open_:,} under way or cut short")
    return ", ".join(parts) or "nothing"


def participation(rounds: Mapping[str, int]) -> str:
    """Return `9 exchanged, 2 solo of 11 due (82% exchanged); beside these 5 skipped` for the counts in
    `Totals.rounds`."""
    if not (due := rounds.get("due", 0)):
        return "none was due yet"
    skipped = f"; beside these {rounds['skipped']:,} skipped" if rounds.get("skipped") else ""
    return f"{round_outcomes(rounds)} of {due:,} due ({rounds.get('exchanged', 0) / due:.0%} exchanged){skipped}"


def duration(seconds: float) -> str:
    """Return seconds as `47 s`, `12 min`, `3 h 20 min` or `5 days 3 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} days" + (f" {hours % 24} h" if hours % 24 and hours < 240 else "")
