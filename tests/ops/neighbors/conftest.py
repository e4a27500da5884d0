"""The backends of the search, as fixtures."""

from __future__ import annotations

from cloud_cases import backend, machine  # noqa: F401
