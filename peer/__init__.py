"""Train one language model together over the ordinary internet."""

__version__ = "0.2.0"
