"""The static files of the pages, read once and served from memory, so that no request path reaches the file system."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).with_name("static")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file: content, media type and ETag."""

    body: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """Return the file, or status 304 if the browser has the current version."""
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def read_all(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Return file name -> file. Files of other types, such as licences, are left out."""
    found = {}
    for path in sorted(folder.iterdir()):
        if media_type := TYPES.get(path.suffix):
            body = path.read_bytes()
            found[path.name] = StaticFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
