"""`peer doctor`: what keeps this machine out of a run, all of it at once, and what it would do there."""
