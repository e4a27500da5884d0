"""The backends of the lookup, as a fixture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from emulator import Emulator
from lookup_cases import BACKENDS, EMULATED, Backend, emulate_lookups


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, emulate: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch
) -> Backend:
    """Return the backend that the parameter names; the CUDA kernels run on the emulator or on a GPU."""
    if request.param in EMULATED:
        emulate_lookups(emulate, monkeypatch, EMULATED[request.param])
    return BACKENDS[request.param]
