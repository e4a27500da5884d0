"""What the paper reports: ``published.json``, one list of rows for each table."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

Row = dict[str, Any]


@lru_cache
def _content() -> dict[str, Any]:
    text = (resources.files("benchmarks.paper") / "published.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def source() -> str:
    """Return the paper's title and authors."""
    return str(_content()["source"])


def rows(table: str) -> list[Row]:
    """Return the rows of a table in their order.

    Keys: ``method`` (of :data:`benchmarks.paper.matching.METHODS`), ``scale`` or ``dataset``, ``px1``,
    ``epe``, ``lm_px1``, ``lm_epe``; for each variant of the correlation ``"OOM"`` or ``runtime_s``, ``std_s``,
    ``memory_gib`` and the percentages printed beside them. Table 4: ``step`` and its share in percent at two
    widths, the total in milliseconds. Table 10: ``variable``, ``value`` and, for each variant, ``runtime_ms``,
    ``std_ms``, ``memory_mb``; table "10, other GPUs" also has ``gpu``.
    """
    result: list[Row] = _content()["tables"][table]
    return result
