"""Peers that lie, in simulations and as real processes. Nothing that a volunteer runs knows of them."""
