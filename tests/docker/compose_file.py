"""docker/compose.yml as compose reads it: merges, and variables with their defaults, replaced after parsing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).resolve().parents[2] / "docker"
_DEFAULTED = re.compile(r"\$\{(\w+):-([^}]*)\}")


def interpolated(node: Any, environment: dict[str, str]) -> Any:
    """Return a part of a compose file with `${NAME:-default}` and `$$` replaced in all its texts."""
    if isinstance(node, dict):
        return {key: interpolated(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolated(value, environment) for value in node]
    if isinstance(node, str):
        return _DEFAULTED.sub(lambda match: environment.get(match[1]) or match[2], node).replace("$$", "$")
    return node


def services(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the services of the compose file, given these environment variables."""
    found = interpolated(yaml.safe_load((DOCKER / "compose.yml").read_text()), environment)["services"]
    assert isinstance(found, dict)
    return found
