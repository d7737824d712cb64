"""Consequences of a manifest's [sync] section that need other sections as well: the growth of rounds, the data by which
params are checked, and cautions about learning rate and vocabulary."""
