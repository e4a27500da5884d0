"""Running other people's code without what it prints and warns of."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

# Output and warning filters belong to the process: were two threads to change them in turns, they would not come back.
_ALONE = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop output and warnings; one thread at a time."""
    said = io.StringIO()
    with _ALONE, warnings.catch_warnings(), redirect_stdout(said), redirect_stderr(said):
        warnings.simplefilter("ignore")
        yield
