"""The base class of everything in a manifest."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen section that rejects unknown keys, so that a typo does not silently become a default. It is strict:
    `"8"` is no number and `true` is not 1. An integer is accepted for a float."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
