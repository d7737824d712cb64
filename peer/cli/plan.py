"""`peer plan`: plan a run before anybody trains."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.options import as_json, home, identity_path, preset, signing_key
from peer.cli.printing import echo
from peer.errors import DataError, UsageError, for_shell

if TYPE_CHECKING:
    from peer.lab.planning.laws import Derived
    from peer.lab.planning.planner import TrainingPlan
    from peer.lab.sim.links import Link

UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?(?:e[+]?\d{1,2})?)\s?([kmbgt]?)", re.ASCII | re.IGNORECASE)
_RATES = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)/(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
_LATENCY_S = 0.015
"""One-way latency of a link that is given by its rates only: that of the profile `home`."""


class Amount(click.ParamType):  # type: ignore[type-arg]
    """A number with an optional suffix: 125M, 2.5B, 30T or 1e9."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _AMOUNT.fullmatch(str(value).strip())
        amount = float(found[1]) * UNITS[found[2].lower()] if found else 0.0
        if amount <= 0:
            self.fail(f"{value!r} is no number. Write 125M, 2.5B, 30T or 1e9", param, ctx)
        return amount


@click.command("plan", epilog="Example: peer plan --params 125M --tokens 2.5B --peers 4 --link 100/500 --machine 30T")
@click.option("--params", type=Amount(), required=True, help="Parameters of the model, e.g. 125M.")
@click.option("--tokens", type=Amount(), help="Tokens of all peers together.  [default: 20 a parameter]")
@click.option("--peers", type=int, default=4, show_default=True, help="Machines that train.")
@click.option(
    "--link",
    default="home",
    show_default=True,
    help="Mbit/s up and down, e.g. 10/100, or home, fibre, cable, dsl, lte, datacentre, transatlantic, lan.",
)
@click.option("--machine", type=Amount(), help="Floating point operations a second that training reaches, e.g. 30T.")
@click.option("--measure", is_flag=True, help="Measure that here, by training a small model for up to a minute.")
@click.option("--speeds", type=float, default=1.0, show_default=True, help="Fastest machine over slowest.")
@click.option(
    "--scatter", type=float, default=0.0, show_default=True, help="Standard deviation of a step's time over its mean."
)
@click.option("--share", type=float, default=0.95, show_default=True, help="Share of the time that should compute.")
@click.option("--context", type=int, default=2048, show_default=True, help="Tokens of a window.")
@preset("Take this synchronization preset.  [default: chosen]")
@click.option(
    "--data", type=click.Path(path_type=Path, exists=True), help="What `peer data build` wrote. [default: bytes]"
)
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan as a manifest, signed.")
@home
@identity_path
@as_json
def command(
    params: float,
    tokens: float | None,
    peers: int,
    link: str,
    machine: float | None,
    measure: bool,
    speeds: float,
    scatter: float,
    share: float,
    context: int,
    preset: str | None,
    data: Path | None,
    write: Path | None,
    home: Path,
    identity_path: Path | None,
    as_json: bool,
) -> None:
    """Plan a run: method, learning rates, batch, expected loss, bytes and days, each with its source and range.

    The numbers come from published scaling laws and from arithmetic about the link and the machine. Numbers outside the
    range of their source are marked. No training is started. `peer help plan-a-run` explains the model."""
    from peer.lab.planning.planner import Intent, plan
    from peer.methods.registry import PRESETS

    if preset is not None and preset not in PRESETS:
        raise UsageError(f"no preset is called {preset}", f"Choose one of: {', '.join(PRESETS)}.")
    flops, source = _flops(machine, measure, params)
    planned = plan(
        Intent(
            params=params,
            tokens=tokens,
            peers=peers,
            link=_link(link),
            flops=flops,
            flops_source=source,
            speeds=speeds,
            scatter=scatter,
            share=share,
            context=context,
            vocab=_vocabulary(data),
            preset=preset,
        )
    )
    if as_json:
        echo(json.dumps(planned.to_json()))
        for line in _remarks(planned):
            echo(line, err=True)
    else:
        for name, derived in (planned.asides | planned.numbers).items():
            echo(_row(name, derived))
    for key, why in planned.cautions:
        echo(f"caution: sync.{key}: {why}", err=True)
    if write is not None:
        _write(write, planned, data, home, identity_path)


def _link(text: str) -> Link:
    from peer.lab.sim.links import MBIT, Link, profile

    rates = _RATES.fullmatch(text)
    if rates is None:
        return profile(text)
    up, down = float(rates[1]), float(rates[2])
    if not (up and down):
        raise UsageError(f"--link {text} carries nothing", "Give Mbit/s up and down, e.g. 10/100.")
    return Link(text, up * MBIT, down * MBIT, _LATENCY_S)


def _flops(machine: float | None, measure: bool, params: float) -> tuple[float, str]:
    if (machine is None) != measure:
        raise UsageError(
            "a plan needs the speed of the machines, once",
            "Give --machine 30T (operations a second), or --measure on one of them.",
        )
    if machine is None:
        from peer.lab.planning.measuring import measured_flops

        return measured_flops(params)
    return machine, "given"


def _vocabulary(data: Path | None) -> int:
    from peer.run.files.token_index import INDEX_FILE, read_index
    from peer.run.sections import BYTE_VALUES

    if data is None:
        return BYTE_VALUES
    try:
        return read_index(data / INDEX_FILE).vocab_size
    except OSError as error:
        raise DataError(
            f"cannot read {data / INDEX_FILE}: {error.strerror}", "Name a folder that `peer data build` wrote."
        ) from error


def _row(name: str, derived: Derived) -> str:
    value = f"{derived.value:.4g}" if isinstance(derived.value, float) else str(derived.value)
    if derived.value is None:
        value = "not known" if name == "worth" else "withheld"
    if isinstance(derived.value, int):
        value = f"{derived.value:,}"
    lines = [f"{name.replace('_', ' '):>14}  {value:<18}{derived.reason}"]
    lines += [f"{'':>34}EXTRAPOLATED: {what}" for what in derived.outside]
    return "\n".join([*lines, *(f"{'':>34}WARNING: {what}" for what in derived.warnings)])


def _remarks(planned: TrainingPlan) -> Iterator[str]:
    for name, derived in planned.numbers.items():
        yield from (f"extrapolated: {name}: {what}" for what in derived.outside)
        yield from (f"warning: {name}: {what}" for what in derived.warnings)


def _write(file: Path, planned: TrainingPlan, data: Path | None, home: Path, identity_path: Path | None) -> None:
    """Write and sign the manifest, with the files of the data in a folder beside it."""
    from peer.run.manifest import ensure_new, write_new

    ensure_new(file)
    operator = signing_key(home, identity_path, make=True)
    if data is None:
        write_new(file, operator, planned.settings)
    else:
        from peer.node.new_run import make_run

        make_run(file, operator, planned.settings, lambda line: echo(line, err=True), data=data)
    shards = f" --data {for_shell(data)}" if data else ""
    echo(f"wrote {file}; next: peer bootstrap {for_shell(file)}{shards}", err=True)
