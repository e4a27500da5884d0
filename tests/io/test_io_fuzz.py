"""Damaged files of every format: a result of the right shape, InputError or OSError, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_readers import damage, mend_png
from io_files import ExrPart, samples, save
from PIL import Image

from fullfield.io import write_flow

TIMES = 20


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """One small file of every kind."""
    folder = tmp_path / "whole"
    folder.mkdir()
    blocks = np.kron(np.random.default_rng(3).integers(0, 256, (5, 6, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    light = (blocks / 255).astype(np.float32)
    image = Image.fromarray(blocks)
    for suffix in (".png", ".jpg", ".tif", ".bmp", ".ppm", ".tga"):
        image.save(folder / f"a{suffix}")
    image.save(folder / "progressive.jpg", progressive=True)
    image.save(folder / "lzw.tif", compression="tiff_lzw")
    image.save(folder / "jpeg.tif", compression="jpeg")
    image.quantize(16).save(folder / "palette.png")
    rgb = ("R", "G", "B")
    save(folder / "a.dpx", ExrPart(blocks.astype(np.uint16) * 257, rgb, attributes={"oiio:BitsPerSample": 10}))
    save(folder / "a.hdr", ExrPart(light, rgb))
    save(folder / "tiles.tif", ExrPart(light, rgb, tile=16, attributes={"compression": "zip"}))
    (folder / "a.pfm").write_bytes(b"PF\n48 40\n-1\n" + light.tobytes())
    for compression in ("none", "rle", "zips", "zip", "piz", "pxr24", "b44", "dwaa"):
        part = ExrPart(light.astype(np.float16), rgb, attributes={"compression": compression})
        save(folder / f"{compression}.exr", part)
    save(folder / "tiles.exr", ExrPart(light, rgb, tile=16))
    flow = torch.from_numpy(samples((2, 24, 33))) * 50
    valid = flow[0] > 5
    for suffix in (".flo", ".png", ".flo5", ".pfm", ".npy", ".exr"):
        write_flow(folder / f"flow{suffix}", flow, valid)
    write_flow(folder / "flow-raw.flo5", flow, valid, compression="none")
    write_flow(folder / "flow-half.exr", flow, valid, backward=-flow, dtype="half", compression="piz")
    np.savez(folder / "flow.npz", u=flow[0].numpy(), v=flow[1].numpy())
    np.savez_compressed(folder / "flow-packed.npz", u=flow[0].numpy(), v=flow[1].numpy())
    parts = [
        ExrPart(samples((10, 20, n)), names, title, origin=(-3, 2), display=(0, 0, 32, 16))
        for n, names, title in ((3, rgb, "beauty"), (2, ("forward.u", "forward.v"), "vectors"))
    ]
    for name in ("parts.exr", "flow-parts.exr"):
        save(folder / name, *parts)
    return folder


def test_damaged_files(whole: Path) -> None:
    script = Path(__file__).with_name("fuzz_readers.py")
    command = [sys.executable, str(script), str(whole), "0", str(TIMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    last = whole.parent / "damaged-0" / "last"
    assert done.returncode == 0, f"{last.read_text()}: {done.returncode}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found.pop("grew") < 150
    assert sum(found.values()) == TIMES * len(list(whole.iterdir()))
    assert found["refused"] > found["read"] > 80


def test_the_damage_is_real(whole: Path) -> None:
    """Otherwise the test above would pass for a reader that reads anything."""
    for path in whole.iterdir():
        data = path.read_bytes()
        changed = sum(damage(data, seed, path.suffix) != data for seed in range(50))
        assert changed > 45, path.name
    data = (whole / "a.png").read_bytes()
    assert mend_png(data) == data
    assert mend_png(data[:40] + b"\0" + data[41:]) != data
