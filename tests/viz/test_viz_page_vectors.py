"""build_html_page: the vectors in the page are those of the flow, also where they are unknown, long or reduced."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fullfield.viz.page import ViewFrame, build_html_page

pytestmark = pytest.mark.unit


def read_page_vectors(parts: dict[str, Tensor], width: int) -> np.ndarray:
    """The vectors [2, H, W] that the page's script reads; NaN where they are unknown."""
    text = build_html_page("shot", [ViewFrame(1, None, parts)], max_motion=4.0, width=width)
    data = json.loads(re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)[0])
    frame = data["frames"][0]
    encoded = base64.b64decode(frame["forward"].partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(np.float64)
    values = (pixels[..., 0] * 256 + pixels[..., 1] - 32768) / frame["steps"]["forward"]
    values[pixels[..., 2] == 0] = np.nan
    height = len(values) // 2
    return np.stack([values[:height], values[height:]])


def constant(u: float, v: float) -> Tensor:
    return torch.tensor([u, v], dtype=torch.float32).view(2, 1, 1).expand(2, 16, 32).clone()


@pytest.mark.parametrize("width", [32, 16, 8])
def test_view_page_keeps_unknown_vectors_when_reduced(width: int) -> None:
    flow = constant(3, -2)
    flow[:, :, 16:] = float("nan")
    flow[:, :8, 2] = float("nan")
    vectors = read_page_vectors({"forward": flow}, width)
    assert vectors.shape == (2, width // 2, width)
    assert np.isnan(vectors[:, :, width // 2 :]).all()
    known = vectors[:, :, : width // 2]
    assert np.isnan(known).any() == (width == 32)
    assert np.nanmax(np.abs(known - np.array([3, -2])[:, None, None])) < 0.01, "unknown vectors are no zeros in a mean"


def test_view_page_shows_filled_vectors_as_unknown() -> None:
    valid = torch.ones(16, 32)
    valid[:, 20:] = 0
    vectors = read_page_vectors({"forward": constant(1, 1), "valid": valid}, 32)
    assert np.isnan(vectors[:, :, 20:]).all()
    assert not np.isnan(vectors[:, :, :20]).any()


@pytest.mark.parametrize("length", [2047.0, 3000.5, 65000.0])
def test_view_page_keeps_long_vectors(length: float) -> None:
    vectors = read_page_vectors({"forward": constant(length, -2 * length)}, 32)
    assert np.allclose(vectors[0], length, rtol=1e-4)
    assert np.allclose(vectors[1], -2 * length, rtol=1e-4)
