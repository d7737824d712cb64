"""Does a member ever refuse an honest owner's result, or an owner leave out an honest contributor?

Promise 11: one liar of eight costs the honest at most 2 % of loss. Members refuse a shard's result that cannot be a
mean, as far as each can verify (`peer.protocol.group.plausibility`). An honest owner's result must never be refused,
because the member would then lack the group's state for a round. An owner leaves out a contributor whose contribution
points against the others (`peer.protocol.group.contributor_judge`). An honest contributor must never be left out.
Bound: no honest result is refused and no honest contributor is left out. Three minutes a row.

    python -m benchmarks.honest_owners [--rounds 1000] [--json FILE] [--results]

Eight tiny models learn, without a network: with the same data and machines, with machines of speeds 1 to 20, and with
data that no other member has, besides. The margins are the largest length over the usual one, of 2.5 that are taken,
and the smallest cosine over the usual one, of -0.5. `against` is the part of all results that points against the
member's own part: a rule without what is usual would refuse these."""

from __future__ import annotations

import argparse
import dataclasses
import math
from statistics import median_low

import torch

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.protocol.group.plausibility import ALONG
from tests.support.group_rounds import GroupSetting, JudgedRound, play

ABOUT = Benchmark(
    "honest_owners",
    "Does a member ever refuse an honest owner's result, or an owner leave out an honest contributor?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--rounds 3",
)
SETTINGS = {
    "equal": GroupSetting(),
    "speeds 1 to 20": GroupSetting(spread=20.0),
    "speeds 1 to 20, own data": GroupSetting(spread=20.0, domains=True),
    "speeds 1 to 20, own data, int4 up and fp16 back": GroupSetting(
        spread=20.0, domains=True, codec="int4", result="fp16"
    ),
}


def judge(setting: GroupSetting, rounds: int) -> list[float]:
    """Return the number of results, the number refused, the share that points against the member's own contribution,
    the two margins, and how often a contributor was left out."""
    results = refused = against = left_out = 0
    longest, least = 0.0, math.inf
    for round_ in play(setting, rounds):
        refused += sum(len(doubts) for doubts in round_.doubts)
        left_out += len(round_.left_out)
        far, low = margins(round_)
        longest, least = max(longest, far), min(least, low)
        for seen in round_.results:
            results += len(seen)
            against += sum(one.cosine < 0 for one in seen.values())
    return [results, refused, 100 * against / results, longest, least, left_out]


def margins(round_: JudgedRound) -> tuple[float, float]:
    """Return two margins of one round: the largest length divided by the larger of the own and the median length, and
    the smallest cosine divided by the median cosine where it counts."""
    longest, least = 0.0, math.inf
    for seen in round_.results:
        usual = median_low([one.rms for one in seen.values()])
        longest = max(longest, *(one.rms / max(one.own_rms, usual) for one in seen.values()))
        if (along := median_low([one.cosine for one in seen.values()])) > ALONG:
            least = min(least, *(one.cosine / along for one in seen.values()))
    return longest, least


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    given: argparse.Namespace = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    rows, figures = list[list[float | str]](), list[Figure]()
    for name, setting in SETTINGS.items():
        found = judge(dataclasses.replace(setting, seed=1), given.rounds)
        rows.append([name, *found])
        figures.append(Figure(name, "honest results refused", found[1], 0.0))
        figures.append(Figure(name, "honest contributors left out", found[5], 0.0))
        print(*rows[-1], flush=True)
    heads = ["members", "results", "refused", "against, %", "longest over usual", "least cosine over usual", "left out"]
    publish(given, ABOUT, figures, Table("", heads, rows))


if __name__ == "__main__":
    main()
