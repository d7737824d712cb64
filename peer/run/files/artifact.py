"""The reference to an artifact: a file of the run that peers fetch from each other."""

from __future__ import annotations

from pydantic import Field

from peer.run.files.section import Section

MOST_ARTIFACT_BYTES = 2**40


class ArtifactRef(Section):
    """A file named by its content. Its bytes are checked against both fields before they are used."""

    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """BLAKE3 digest, in hex."""
    size: int = Field(ge=1, le=MOST_ARTIFACT_BYTES)
    """Size in bytes."""
