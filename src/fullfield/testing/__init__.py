"""Inputs of tests and demonstrations: scenes with known motion and scans of synthetic rooms."""

from fullfield.testing.cloud_surfaces import sample_room_scan
from fullfield.testing.scenes import sample_textured_scene

__all__ = ["sample_room_scan", "sample_textured_scene"]
