"""What tests and demonstrations are fed with: scenes whose motion is known exactly."""

from fullfield.testing.rooms import room_scan
from fullfield.testing.scenes import Scene, textured_scene

__all__ = ["Scene", "room_scan", "textured_scene"]
