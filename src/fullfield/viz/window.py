"""Window on the screen, through OpenCV where it was built with one."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from fullfield._check import InputError

_QUIT = (ord("q"), 27)  # and Escape


class Window:
    """Window that shows pictures; use it from one thread, on macOS from the main one.

    Raises InputError where no window can be opened, ModuleNotFoundError without OpenCV.
    """

    def __init__(self, title: str) -> None:
        self._cv2: Any = importlib.import_module("cv2")
        self._title = title
        # Asked before OpenCV is: some of its toolkits end the process where there is no display.
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise InputError("window: there is no display here (DISPLAY is not set)")
        try:
            self._cv2.namedWindow(title, self._cv2.WINDOW_NORMAL)
        except self._cv2.error as error:
            raise InputError("window: this OpenCV was built without windows (a headless package)") from error

    def show(
        self,
        picture: Tensor,  # [3, H, W] uint8
    ) -> bool:
        """Show a picture; return False once the user has pressed q or Escape, or closed the window."""
        if self._cv2.getWindowProperty(self._title, self._cv2.WND_PROP_VISIBLE) < 1:
            return False
        rows = np.ascontiguousarray(picture.flip(0).permute(1, 2, 0).cpu().numpy())
        self._cv2.imshow(self._title, rows)
        return self._cv2.waitKey(1) & 0xFF not in _QUIT

    def close(self) -> None:
        """Close the window."""
        with suppress(self._cv2.error):  # the user was first
            self._cv2.destroyWindow(self._title)
