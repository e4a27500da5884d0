"""Inputs of tests and demonstrations: scenes with known motion and scans of synthetic rooms."""

from fullfield.testing.rooms import room_scan
from fullfield.testing.scenes import Scene, textured_scene

__all__ = ["Scene", "room_scan", "textured_scene"]
