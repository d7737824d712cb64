"""The layout of a model: its tensors, and their division into fragments. Begin with `layout`."""
