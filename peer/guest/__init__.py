"""Courtesy on a machine that belongs to somebody: when the trainer may work, and how much of the machine it takes."""
