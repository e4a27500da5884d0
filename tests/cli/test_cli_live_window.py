"""A window, with an OpenCV that only notes what it is told."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from fullfield import InputError
from fullfield.cli.live import _PreviewWindow as Window


class Cv2(types.ModuleType):
    error = RuntimeError
    WINDOW_NORMAL, WND_PROP_VISIBLE = 0, 4

    def __init__(self) -> None:
        super().__init__("cv2")
        self.shown: list[Any] = []
        self.key, self.visible, self.has_windows = -1, 0.0, True

    def namedWindow(self, _title: str, _flags: int) -> None:
        if not self.has_windows:
            raise self.error("not implemented")
        self.visible = 1.0

    def getWindowProperty(self, _title: str, _which: int) -> float:
        return self.visible

    def imshow(self, _title: str, rows: Any) -> None:
        self.shown.append(rows)

    def waitKey(self, _milliseconds: int) -> int:
        return self.key

    def destroyWindow(self, _title: str) -> None:
        if not self.visible:
            raise self.error("null window")
        self.visible = 0.0


@pytest.fixture
def cv2(monkeypatch: pytest.MonkeyPatch) -> Cv2:
    fake = Cv2()
    monkeypatch.setitem(sys.modules, "cv2", fake)
    monkeypatch.setenv("DISPLAY", ":0")
    return fake


def test_live_preview_shows_bgr_until_key(cv2: Cv2) -> None:
    window = Window("flow")
    picture = torch.zeros(3, 2, 5, dtype=torch.uint8)
    picture[0] = 200
    assert window.show_and_return_is_open(picture)
    assert cv2.shown[0].shape == (2, 5, 3)
    assert cv2.shown[0][0, 0].tolist() == [0, 0, 200]
    for key in (ord("q"), 27):
        cv2.key = key
        assert not window.show_and_return_is_open(picture)


def test_live_preview_closed_by_user_stays_closed(cv2: Cv2) -> None:
    window = Window("flow")
    cv2.visible = 0.0
    assert not window.show_and_return_is_open(torch.zeros(3, 2, 5, dtype=torch.uint8))
    assert not cv2.shown
    window.close()


def test_live_preview_refuses_headless_opencv(cv2: Cv2) -> None:
    cv2.has_windows = False
    with pytest.raises(InputError, match="built without windows"):
        Window("flow")
