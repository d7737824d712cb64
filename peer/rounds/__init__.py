"""The loop of rounds: schedule, snapshot in flight, commit."""
