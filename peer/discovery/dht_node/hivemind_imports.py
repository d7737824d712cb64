"""hivemind without the parts of it that we do not use.

`import hivemind` loads its averaging, mixture of experts and optimizers, and scipy for them: half a second and 40 MiB
for every daemon. Its directory (`hivemind.dht`, `hivemind.p2p`) needs none of that."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def without_the_rest() -> None:
    """Put an empty package in hivemind's place, whose modules are found as ever; what its `__init__` would load is not.
    Nothing happens when it is loaded already, or is not installed: the imports that follow say so."""
    if "hivemind" in sys.modules:
        return
    spec = PathFinder.find_spec("hivemind")
    if spec is not None:
        sys.modules["hivemind"] = module_from_spec(spec)
