"""What this machine does with the parts that matter: `peer bench`. Rates are medians of several repetitions, each side
by side with its yardstick in one run."""
