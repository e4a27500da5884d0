"""Commands that install the extras of this package."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path


def build_install_command(extra: str) -> str:
    """Return the pip command of an extra, by the checkout of the installation (with its ``-e``) or by name."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(importlib.metadata.distribution("fullfield").read_text("direct_url.json") or "{}")
    except importlib.metadata.PackageNotFoundError:
        origin = {}
    checkout = Path(url2pathname(urlsplit(origin["url"]).path)) if "dir_info" in origin else None
    if checkout is None or not (checkout / "pyproject.toml").is_file():
        return f"pip install 'fullfield[{extra}]'"
    is_current = checkout.resolve() == Path.cwd().resolve()
    editable = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {editable}'{'.' if is_current else checkout}[{extra}]'"
