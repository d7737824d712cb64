"""`peer simulate`: simulate a swarm, or compute what a method needs, before anybody trains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from peer.cli.options import as_json, preset, refuse_unused
from peer.cli.printing import echo
from peer.cli.sizes import Size
from peer.errors import UsageError

if TYPE_CHECKING:
    from peer.lab.sim.run import SimulationSettings

OF_SEVERAL_PEERS = ("link", "churn", "availability", "speeds", "closed", "attack")
"""Options without meaning for a baseline, which is a single simulated peer."""
BITS = {"ddp": 16.0, "diloco": 16.0, "streaming-diloco": 4.0}
"""Bits of a parameter on the wire."""


@click.group(
    "simulate",
    invoke_without_command=True,
    epilog="Example: peer simulate --peers 16 --hours 6 --link cable --churn 0.5",
)
@click.option("--peers", type=int, help="Peers of the simulated swarm. Without it, only the commands below run.")
@preset("Synchronization preset, or one of the baselines single and ddp.  [default: gossip]")
@click.option("--hours", type=float, default=2.0, show_default=True, help="Virtual ones.")
@click.option(
    "--sync-every", type=float, help="Seconds (or steps, as sync.clock says) between exchanges.  [default: 300]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--link",
    metavar="NAME|FILE",
    default="cable",
    show_default=True,
    help="Link of all peers (home, fibre, cable, dsl, lte, datacentre, transatlantic, full, lan), or a table of home "
    "lines from which each peer draws its own: us-2022, uk-2023 or a CSV file.",
)
@click.option(
    "--churn", type=float, default=0.0, show_default=True, help="Kills a peer and hour. Each killed peer returns."
)
@click.option(
    "--availability",
    metavar="TABLE|FILE",
    help="When each peer is on, instead of --churn: seti-at-home, or a CSV file with sessions or their distributions.",
)
@click.option(
    "--speeds",
    metavar="RATIO|lognormal:SIGMA|FILE",
    default="1",
    show_default=True,
    help="Fastest peer over slowest, or the distribution from which each peer draws its speed.",
)
@click.option(
    "--step-seconds",
    type=float,
    default=1.0,
    show_default=True,
    help="Seconds of an inner step of the slowest peer. With a distribution of speeds: at speed 1.",
)
@click.option("--trainer", default="fake", show_default=True, help="fake: costs nothing. tiny: really learns.")
@click.option(
    "--parameters", type=int, default=65536, show_default=True, help="Parameters of the fake trainer's model."
)
@click.option("--closed", type=float, default=0.0, show_default=True, help="Part of the peers that nobody can dial.")
@click.option(
    "--nat",
    default="port-restricted",
    show_default=True,
    help="Routers of closed peers: endpoint-independent, port-restricted, address-dependent, symmetric.",
)
@click.option(
    "--relay-cap",
    type=Size(),
    default="64kB",
    show_default=True,
    help="What a relay passes on each second. Every peer that is not closed relays.",
)
@click.option("--relays", type=int, default=1, show_default=True, help="Nodes of the operator, which relay too.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a manifest value.")
@click.option("--attack", metavar="KIND", help="Lie that some peers tell, e.g. negate. See `peer help simulate`.")
@click.option("--share", type=float, default=0.125, show_default=True, help="Part of the peers that lie.")
@as_json
@click.pass_context
def command(
    context: click.Context,
    peers: int | None,
    preset: str | None,
    hours: float,
    sync_every: float | None,
    seed: int,
    link: str,
    churn: float,
    availability: str | None,
    speeds: str,
    step_seconds: float,
    trainer: str,
    parameters: int,
    closed: float,
    nat: str,
    relay_cap: int,
    relays: int,
    settings: tuple[str, ...],
    attack: str | None,
    share: float,
    as_json: bool,
) -> None:
    """Plan a run with a simulated swarm in virtual time (--peers), or with arithmetic (the subcommands).

    Nothing is sent to the network. `peer help simulate` describes the model and its limits."""
    if context.invoked_subcommand is not None:
        return
    if peers is None:
        refuse_unused(context, [name for name in context.params if name != "peers"], "--peers")
        echo(context.get_help())
        return
    if not closed:
        refuse_unused(context, ("nat", "relay_cap", "relays"), "--closed")
    if attack is None:
        refuse_unused(context, ("share",), "--attack")
    if trainer == "tiny":
        refuse_unused(context, ("parameters",), "--trainer fake")
    from peer.lab.compare.entries import BASELINES, DDP, baseline_in_words
    from peer.lab.orders import check_orders
    from peer.lab.sim.run import SimulationSettings
    from peer.methods.sgd import CONTROL
    from peer.run.manifest import default_text, derive

    baseline = preset if preset in BASELINES else None
    if baseline is not None:
        if trainer != "tiny":
            raise UsageError(f"{baseline} is played for its loss, and this trainer has none", "Add --trainer tiny.")
        refuse_unused(context, OF_SEVERAL_PEERS, "a --preset that several peers play")
        preset, churn, availability, closed = CONTROL, 0.0, None, 0.0  # overrides values from a configuration file, too
    changes = [f"seed={seed}", "sync.clock=seconds", "sync.sync_every=300", *settings]
    changes += [] if preset is None else [f"sync.preset={preset}"]
    changes += [] if sync_every is None else [f"sync.sync_every={sync_every}"]
    simulation = SimulationSettings(
        peers=peers if baseline is None else min(peers, 1),
        batches=peers if baseline == DDP else 1,
        manifest=derive(default_text(), changes),
        hours=hours,
        link=link,
        churn=churn,
        availability=availability or "",
        speeds=speeds,
        step_seconds=step_seconds,
        trainer=trainer,
        parameters=parameters,
        closed=closed,
        nat=nat,
        relay_cap=relay_cap,
        relays=relays,
    )
    numbers, text = _simulated(simulation, attack, share)
    if baseline is not None:
        numbers |= {"baseline": {"name": baseline, "peers": peers}}
        text = f"{baseline_in_words(baseline, peers)}\n{text}"
    echo(json.dumps(numbers) if as_json else text)
    check_orders(numbers["orders"])


def _simulated(simulation: SimulationSettings, attack: str | None, share: float) -> tuple[dict[str, Any], str]:
    """Simulate the swarm, with attackers if an attack is named. Return the report as numbers and as text."""
    from peer.lab.sim.report import report_text

    if attack is None:
        from peer.lab.sim.run import simulate

        report = simulate(simulation)
        return report.to_json(), report_text(report)
    from peer.lab.attack.play import simulate_attack
    from peer.lab.attack.report import attack_text

    report, effect = simulate_attack(simulation, attack, share)
    unit = (
        "nats a token"
        if report.loss_first is not None
        else "(mean square of the fake trainer's parameters, not of a model)"
    )
    return report.to_json() | {"attack": effect.to_json()}, f"{report_text(report)}\n{attack_text(effect, unit)}"


@command.command(
    "utilization",
    epilog="Example: peer simulate utilization --params 1e9 --layers 24 --step-seconds 0.1 --preset streaming-diloco",
)
@click.option("--params", type=float, required=True, help="Parameters of the model, e.g. 1e9.")
@click.option("--layers", type=int, required=True, help="Layers of the model, all equal.")
@click.option("--step-seconds", type=float, required=True, help="Pure computing time of an inner step.")
@click.option("--preset", type=click.Choice(list(BITS)), default="streaming-diloco", show_default=True)
@click.option("--every", type=int, default=100, show_default=True, help="Inner steps between syncs. ddp: always 1.")
@click.option("--fragment-layers", type=int, default=3, show_default=True, help="streaming-diloco: layers a fragment.")
@click.option("--delay", type=int, default=1, show_default=True, help="streaming-diloco: steps until it is merged.")
@click.option("--bits", type=float, help="Bits of a parameter on the wire.  [default: 16, with streaming-diloco 4]")
@as_json
def utilization(
    params: float,
    layers: int,
    step_seconds: float,
    preset: str,
    every: int,
    fragment_layers: int,
    delay: int,
    bits: float | None,
    as_json: bool,
) -> None:
    """Compute the bandwidth at which the machines compute 50, 80, 90, 95 and 99 per cent of the time.

    The model is one link without latency, layer by layer; see `peer help simulate`. ddp and diloco always wait for the
    exchange, so --delay and --fragment-layers have no effect on them."""
    from peer.lab.planning.utilization import bandwidths
    from peer.lab.planning.workload import Workload

    needed = bandwidths(
        Workload(
            params=params,
            layers=layers,
            step_seconds=step_seconds,
            preset=preset,
            every=every,
            fragment_layers=fragment_layers,
            delay=delay,
            bits=BITS[preset] if bits is None else bits,
        )
    )
    if as_json:
        echo(json.dumps({"gbit_per_s": {str(target): _short(value) for target, value in needed.items()}}))
        return
    echo("computing  needs a link of")
    for target, value in needed.items():
        echo(f"{target:>7} %  {value:>10.4g} Gbit/s")


@command.command("latency", epilog="Example: peer simulate latency --peers 1024 --std 0.5")
@click.option("--peers", type=int, required=True, help="The swarm.")
@click.option("--std", type=float, required=True, help="Standard deviation of a message's time, in mean message times.")
@as_json
def latency(peers: int, std: float, as_json: bool) -> None:
    """Compute how many times longer an all-reduce over a tree takes than an average of two.

    Message times are log-normal with mean 1; bandwidth is ignored. See `peer help simulate`."""
    from peer.lab.planning.latency import pair_time, ratio, tree_time

    found = ratio(peers, std)
    if as_json:
        echo(json.dumps({"ratio": _short(found)}))
        return
    echo(f"all-reduce over a tree of {peers}  {tree_time(peers, std):>8.4g} mean message times")
    echo(f"average of two {'':<{len(str(peers)) + 11}}{pair_time(std):>8.4g}")
    echo(f"ratio {'':<{len(str(peers)) + 20}}{found:>8.4g}")


@command.command("stragglers", epilog="Example: peer simulate stragglers --peers 1024 --steps 100")
@click.option("--peers", type=int, required=True, help="The swarm.")
@click.option("--steps", type=int, required=True, help="Inner steps of a round.")
@click.option("--std", type=float, help="Standard deviation of a step's time over its mean.  [default: 0.805]")
@as_json
def stragglers(peers: int, steps: int, std: float | None, as_json: bool) -> None:
    """Compute how much longer a round takes when all peers wait for the slowest than when only partners wait for each
    other.

    Step times are log-normal, and messages take no time. See `peer help simulate`."""
    from peer.lab.planning.stragglers import PAPER_STD, round_times

    found = round_times(peers, steps, PAPER_STD if std is None else std)
    if as_json:
        times = {"group": _short(found.group), "pair": _short(found.pair), "overhead": _short(found.overhead)}
        echo(json.dumps(times))
        return
    echo(f"a group of {peers:<8}{found.group:>8.4g} times the work of a round")
    echo(f"pairs             {'':<1}{found.pair:>8.4g}")
    echo(f"overhead          {'':<1}{found.overhead:>8.4g}")


def _short(value: float) -> float:
    """Round to six digits: more would suggest a precision that the model does not have."""
    return float(f"{value:.6g}")
