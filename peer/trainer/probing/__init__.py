"""The losses of a partner's params on the run's data, before anything of them is applied."""
