"""What peers tell the run's nodes of themselves, and what the nodes make of it."""
