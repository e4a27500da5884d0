"""What several processes of one run of the tests need, made in the first that asks for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def made_once(own: Path) -> Callable[[str, Callable[[], Any]], Any]:
    """The fixture ``once``. ``own``: this process' temporary folder; pytest-xdist puts those of a run into one."""
    from filelock import FileLock  # PyTorch needs it too

    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made(name: str, make: Callable[[], Any]) -> Any:
        place = folder / f"once-{name}.json"
        with FileLock(f"{place}.lock"):
            if not place.exists():
                text = json.dumps(make())
                place.write_text(text, "utf-8")
        return json.loads(place.read_text("utf-8"))

    return made
