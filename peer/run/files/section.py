"""The base of everything that a manifest holds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen and closed section: an unknown key is an error, so that a typo is not a silent default. It is strict:
    `"8"` is no number and `true` is no 1 (an integer where a fraction may stand is fine)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
