"""Page of the package index: the README with absolute links, if the repository's address is known."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    """Make relative links of Markdown lead to ``repository`` (https://github.com/OWNER/NAME) at ``tag``."""

    def link(found: re.Match[str]) -> str:
        mark, words, path = found.groups()
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return _LINK.sub(link, text).replace("ADDRESS_OF_THIS_REPOSITORY", repository)


class PageOfTheIndex(MetadataHookInterface):
    """Hook that takes the address from ``repository`` in pyproject.toml, or from GitHub's workflows."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README and the addresses in the package's metadata."""
        text = Path(self.root, "README.md").read_text("utf-8")
        repository, name = self.config.get("repository"), os.environ.get("GITHUB_REPOSITORY")
        if name and not repository:
            repository = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
        if repository:
            text = absolute(text, repository, f"v{metadata['version']}")
            metadata["urls"] = {"Repository": repository, "Documentation": f"{repository}/blob/HEAD/docs/index.md"}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
