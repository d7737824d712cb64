"""The lattice codec, which sends full params at a few bits per value to a receiver whose own params are close.

`codec` explains the format and implements it: begin there. `spread` estimates how far apart two partners are, which
sets the codec's step. `stream` encodes and decodes tile by tile."""
