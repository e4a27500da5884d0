"""Inputs of tests and demonstrations: scenes with known motion and scans of synthetic rooms."""

from fullfield.testing.cloud_surfaces import room_scan
from fullfield.testing.scenes import textured_scene

__all__ = ["room_scan", "textured_scene"]
