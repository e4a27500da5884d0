"""How an extra of this package is added to this installation."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path


def install_command(extra: str) -> str:
    """The command of pip: by the checkout that the package was installed from (``-e`` as it was), else by its name."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = json.loads(metadata.distribution("fullfield").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        told = {}
    checkout = Path(url2pathname(urlsplit(told["url"]).path)) if "dir_info" in told else None
    if checkout is None or not (checkout / "pyproject.toml").is_file():
        return f"pip install 'fullfield[{extra}]'"
    here = checkout.resolve() == Path.cwd().resolve()
    editable = "-e " if told["dir_info"].get("editable") else ""
    return f"pip install {editable}'{'.' if here else checkout}[{extra}]'"
