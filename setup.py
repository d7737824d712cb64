"""What pyproject.toml cannot say: a wheel holds the pages of docs/ beside peer/help, for `peer help`, and names the
repository that it was released from.

The pages are copied when it is built, so that the repository has each page once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DOCS = Path(__file__).parent / "docs"
REPOSITORY = os.environ.get("REPOSITORY_URL", "")
"""Set by the release workflow. A build of a clone or a fork names nobody else's repository."""
URLS = {
    "Source": REPOSITORY,
    "Documentation": f"{REPOSITORY}/blob/main/docs/index.md",
    "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}


class BuildWithPages(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # such an installation reads docs/ itself
            return
        target = Path(self.build_lib) / "peer" / "help" / "docs"
        shutil.rmtree(target, ignore_errors=True)  # pages that are gone
        for page in sorted(DOCS.glob("*/*.md")):
            copy = target / page.relative_to(DOCS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, copy)
        assert target.is_dir(), f"no pages in {DOCS}"


setup(cmdclass={"build_py": BuildWithPages}, project_urls=URLS if REPOSITORY else {})
