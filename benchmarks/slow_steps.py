"""Who exchanges when inner steps take long? Peers that never met before are ready for a round at moments that differ by
a step. Virtual time, the production coordinator, `noloco`, lines of homes; each machine's step is .7 to 1.4 times the
one named.

    python -m benchmarks.slow_steps [--seeds 3] [--rounds 20]"""

from __future__ import annotations

import argparse
import random
from collections import Counter

from benchmarks.slow_lines import play

PEERS, ROUNDS_S, STEPS_S = (8, 32), (60.0, 300.0), (1.0, 4.0, 8.0, 16.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    print("peers  round, s  step, s  exchanged  partners that failed")
    for peers in PEERS:
        for round_s in ROUNDS_S:
            for step_s in STEPS_S:
                outcomes, failures = Counter[str](), Counter[str]()
                for seed in range(given.seeds):
                    rng = random.Random(seed)
                    steps = {number: step_s * rng.uniform(0.7, 1.4) for number in range(peers)}
                    one, why = play("home", (), given.rounds, seed, peers, round_s, steps)
                    outcomes += one
                    failures += why
                part = outcomes["exchanged"] / outcomes.total()
                failed = ", ".join(f"{count} {code}" for code, count in failures.most_common())
                print(f"{peers:>5}{round_s:>10g}{step_s:>9g}{part:>11.1%}  {failed}", flush=True)


if __name__ == "__main__":
    main()
