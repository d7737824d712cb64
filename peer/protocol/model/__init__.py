"""The layout of a model and its fragments."""
