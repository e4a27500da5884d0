"""Inputs of tests and demonstrations: scenes with known motion and scans of synthetic rooms."""

from fullfield.testing.scenes import Scene, room_scan, textured_scene

__all__ = ["Scene", "room_scan", "textured_scene"]
