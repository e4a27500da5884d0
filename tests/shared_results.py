"""Results that all processes of one test run share: the first process that needs a result computes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def build_result_cache(process_folder: Path) -> Callable[[str, Callable[[], Any]], Any]:
    """Return the function of the fixture ``get_or_compute``.

    ``process_folder`` is the temporary folder of this process; those of one run of pytest-xdist have the same parent.
    """
    from filelock import FileLock  # PyTorch needs it too

    folder = process_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else process_folder

    def get_or_compute(name: str, compute: Callable[[], Any]) -> Any:
        path = folder / f"shared-{name}.json"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                text = json.dumps(compute())
                path.write_text(text, "utf-8")
        return json.loads(path.read_text("utf-8"))

    return get_or_compute
