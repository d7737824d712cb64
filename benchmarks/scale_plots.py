"""Draw the plots of large swarms, from the runs that `benchmarks.pairs_at_scale`, `benchmarks.pair_breakdown` and
`benchmarks.hours_to_loss` kept.

    python -m benchmarks.scale_plots [--out DIR]

Nothing is played. Files: `pairs-at-scale.svg`, the loss by the number of peers, `pair-breakdown.svg`, the shares of
liars between which pairs break, and `hours-to-loss.svg`, the hours that one machine alone needs for the loss of a
swarm. Bars of losses are intervals of 95 %. A study without a run has no plot."""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks import hours_to_loss, pair_breakdown, pairs_at_scale
from benchmarks.large_swarms import Record
from benchmarks.lying_meetings import ACCEPTANCES, ATTACKS
from benchmarks.pair_breakdown import LIARS, PEERS, Played, share_of
from benchmarks.pairs_at_scale import GOSSIP, MEAN, NONE, STEPS, Result, method_of, results_of
from benchmarks.worth_plots import IMAGES, drawn
from benchmarks.worth_runs import DDP, SINGLE
from peer.lab.attack.breakdown import LOST_SHARE, GossipRule, safe_share

LOOKS = {
    DDP: ("#000000", "--", "s"),
    GOSSIP: ("#0072b2", "-", "o"),
    MEAN: ("#d55e00", "-", "^"),
    NONE: ("#cc79a7", ":", "x"),
    "noloco": ("#009e73", "-.", "v"),
    "gasloc": ("#56b4e9", "-.", "D"),
    "heloco": ("#e69f00", "-.", "P"),
    "diloco": ("#999999", "-.", "*"),
}
"""Colour, line and mark of each method (Okabe and Ito)."""


def by_peers(axes: Axes, results: Sequence[Result]) -> None:
    """Draw the loss, less that of `gossip` with 4 peers, against the number of peers. Lines show where one peer alone
    is after more tokens."""
    swarms = [one for one in results if one.run.steps == STEPS and one.run.method != SINGLE]
    counts = sorted({one.run.peers for one in swarms})
    for one in results:
        if one.run.method == SINGLE and one.difference is not None:
            axes.axhline(one.difference, color="#bbbbbb", lw=0.8)
            label = f"one alone, {one.run.steps // STEPS} times the tokens"
            axes.annotate(label, (counts[0], one.difference), fontsize=7, color="#777777", va="bottom")
    for method, (colour, line, mark) in LOOKS.items():
        found = sorted(
            (one.run.peers, one.difference, one.difference_half or 0.0)
            for one in swarms
            if method_of(one.run) == method and one.difference is not None
        )
        if found:
            x, difference, half = zip(*found, strict=True)
            axes.errorbar(x, difference, half, color=colour, ls=line, marker=mark, capsize=3, label=method)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("peers")
    axes.set_ylabel("loss less that of 4 peers with gossip, nats")
    axes.set_title("100 rounds of 20 steps, equal tokens a peer", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def by_share(axes: Axes, played: Played) -> None:
    """Draw between which shares of hostile meetings each acceptance breaks under each attack."""
    names = [(acceptance, attack) for acceptance in ACCEPTANCES for attack in ATTACKS]
    colours = dict(zip(ACCEPTANCES, ("#000000", "#0072b2", "#009e73", "#d55e00"), strict=True))
    for row, one in enumerate(names):
        holds, breaks = played.bounds(*one)
        if holds:
            axes.plot([0, share_of(holds)], [row, row], color=colours[one[0]], lw=3)
        if breaks < PEERS:
            axes.plot([share_of(breaks)], [row], color=colours[one[0]], marker="x")
    for share in (safe_share(GossipRule()), LOST_SHARE):
        axes.axvline(share, color="#999999", ls=":")
        axes.annotate(f"derived: {share:.3f}", (share, -0.8), fontsize=7, color="#777777", ha="center")
    axes.set_yticks(range(len(names)), [f"{acceptance}, {attack}" for acceptance, attack in names], fontsize=7)
    axes.set_xlim(0, 0.5)
    axes.set_ylim(len(names) - 0.5, -1.5)
    axes.set_xticks([0, *map(share_of, LIARS)], ["0", *(f"{share_of(liars):.2f}" for liars in LIARS)])
    axes.set_xlabel("share of hostile meetings")
    axes.set_title("Line: the honest gain by exchanging. Cross: they lose", fontsize=10)
    axes.grid(alpha=0.3, axis="x")


def by_hours(axes: Axes, homes: Sequence[Record], scale: Sequence[Record]) -> None:
    """Draw the hours that one machine alone needs for the loss of swarms of homes."""
    looks = {"fast": ("#000000", "s"), "median": ("#0072b2", "o"), "drawn": ("#d55e00", "^")}
    counts = hours_to_loss.PEERS
    for line, (colour, mark) in looks.items():
        hours = {peers: hours_to_loss.hours_alone(homes, scale, line, peers) for peers in counts}
        found = [(peers, each) for peers, each in hours.items() if each]
        for peers, each in found:
            axes.plot([peers] * len(each), each, ls="", color=colour, marker=mark, alpha=0.4)
        means = [(peers, statistics.fmean(each)) for peers, each in found]
        if means:
            axes.plot(*zip(*means, strict=True), color=colour, marker=mark, label=line)
    axes.axhline(hours_to_loss.HOURS, color="#999999", ls=":", label="the swarm")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("peers")
    axes.set_ylabel("hours of one machine alone to the same loss")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def plots(
    out: Path,
    scale: Path = pairs_at_scale.RUNS,
    breakdown: Path = pair_breakdown.RUNS,
    homes: Path = hours_to_loss.RUNS,
) -> list[Path]:
    """Draw the plots into a folder from the files of runs, and return their files."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    if results := results_of(pairs_at_scale.kept(scale)):
        made.append(drawn(out / "pairs-at-scale.svg", functools.partial(by_peers, results=results)))
    if records := pairs_at_scale.kept(breakdown):
        made.append(drawn(out / "pair-breakdown.svg", functools.partial(by_share, played=Played(records))))
    if records := pairs_at_scale.kept(homes):
        draw = functools.partial(by_hours, homes=records, scale=pairs_at_scale.kept(scale))
        made.append(drawn(out / "hours-to-loss.svg", draw))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the plots")
    for file in plots(parser.parse_args().out):
        print(file)


if __name__ == "__main__":
    main()
