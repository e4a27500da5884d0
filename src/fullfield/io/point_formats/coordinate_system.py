"""Geodetic coordinate systems as LAS files store them: kept to be written again, not interpreted."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

_MATH_TRANSFORM, _WKT, _KEY_DIRECTORY, _KEY_NUMBERS, _KEY_TEXTS = 2111, 2112, 34735, 34736, 34737
RECORD_IDS = _MATH_TRANSFORM, _WKT, _KEY_DIRECTORY, _KEY_NUMBERS, _KEY_TEXTS
"""Records of a coordinate system (ASPRS LAS 1.4 R15, section 3): two in WKT, three of GeoTIFF."""
_PROJECTED_KEY, _GEOGRAPHIC_KEY = 3072, 2048  # GeoTIFF's keys whose values are EPSG codes
_USER_DEFINED = 32767


class SystemRecord(NamedTuple):
    """One variable-length record."""

    record_id: int
    description: str
    content: bytes


class CoordinateSystem(NamedTuple):
    """Coordinate system of a cloud: the records of a LAS file that define it."""

    records: tuple[SystemRecord, ...]
    is_wkt: bool  # whether the header says that WKT, not GeoTIFF, holds

    @property
    def name(self) -> str:
        """EPSG code, else the name in the WKT; "unknown" without either."""
        contents = {record.record_id: record.content for record in self.records}
        names = [
            _get_epsg_or_title_in_wkt(contents.get(_WKT, b"")),
            _get_epsg_in_geotiff_keys(contents.get(_KEY_DIRECTORY, b"")),
        ]
        if not self.is_wkt:
            names.reverse()
        return names[0] or names[1] or "unknown"


def _get_epsg_or_title_in_wkt(content: bytes) -> str | None:
    text = content.rstrip(b"\0").decode("utf-8", "replace").strip()
    code = re.search(r'(?:AUTHORITY|ID)\["EPSG",\s*"?(\d+)"?\]\s*\]$', text, re.IGNORECASE)
    title = re.match(r'\w+\["([^"]*)"', text)
    return f"EPSG:{code[1]}" if code else title[1] if title else None


def _get_epsg_in_geotiff_keys(content: bytes) -> str | None:
    keys = {key: value for key, _, _, value in struct.iter_unpack("<4H", content[8 : len(content) // 8 * 8])}
    codes = (keys.get(key, 0) for key in (_PROJECTED_KEY, _GEOGRAPHIC_KEY))
    return next((f"EPSG:{code}" for code in codes if 0 < code < _USER_DEFINED), None)
