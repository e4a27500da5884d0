"""Feeds damaged files to the readers, in a process of its own so that a crash is a test failure, not the end.

``python fuzz_readers.py FOLDER START COUNT [NAME …]`` damages every file of FOLDER (or those named) COUNT times and
prints one JSON line: how often each outcome came and by how many MiB memory grew at its peak. The only outcomes
allowed are a well-formed result, InputError and OSError; anything else ends in a traceback.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

EXTREMES = (0, 1, 127, 128, 255)
WORDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 60000, 0x10000, 0x7F800000)


def damage(data: bytes, seed: int, suffix: str) -> bytes:
    rng = random.Random(seed)
    out = bytearray(data)
    reach = len(out) if rng.random() < 0.4 else min(len(out), rng.choice((64, 512, 2048)))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        kind = rng.random()
        at = rng.randrange(reach)
        if kind < 0.6:
            out[at] = rng.choice(EXTREMES) if rng.random() < 0.5 else rng.randrange(256)
        elif kind < 0.85:
            word = struct.pack(rng.choice("<>") + "I", rng.choice(WORDS))
            at -= at % 4 if rng.random() < 0.5 else 0
            out[at : at + 4] = word[: len(out) - at]
        elif kind < 0.95:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 3, 8))))
        else:
            del out[at : at + rng.choice((1, 4, 64))]
        reach = min(reach, len(out))
    if rng.random() < 0.25:
        out = out[: rng.randrange(1, len(out) + 1)]
    return mend_png(bytes(out)) if suffix == ".png" and rng.random() < 0.7 else bytes(out)


def mend_png(data: bytes) -> bytes:
    """Make the checksums right again, so that the damage reaches the decoder."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        length = min(struct.unpack(">I", data[at : at + 4])[0], len(data) - at - 12)
        body = data[at + 4 : at + 8 + length]
        out += struct.pack(">I", length) + body + struct.pack(">I", zlib.crc32(body))
        at += length + 12
    return bytes(out)


def main(folder: Path, start: int, count: int, names: list[str]) -> None:
    import torch
    from io_files import PeakMemory

    from fullfield import InputError
    from fullfield.io import FlowData, read_flow, read_frame

    files = [path for path in sorted(folder.iterdir()) if not names or path.name in names]
    place = folder.parent / f"damaged-{start}"
    place.mkdir(exist_ok=True)
    for path in files:
        read_flow(path) if path.name.startswith("flow") else read_frame(path)
    memory = PeakMemory().__enter__()
    outcomes: Counter[str] = Counter()
    for path in files:
        data = path.read_bytes()
        target = place / path.name
        flow = path.name.startswith("flow")
        for seed in range(start, start + count):
            target.write_bytes(damage(data, seed, path.suffix))
            (place / "last").write_text(f"{path.name} {seed}")
            try:
                result = read_flow(target) if flow else read_frame(target)
            except InputError as error:
                check_complaint(str(error), target)
                outcomes["refused"] += 1
                continue
            except OSError:
                outcomes["os error"] += 1
                continue
            outcomes["read"] += 1
            if isinstance(result, FlowData):
                assert result.flow.dtype == torch.float32, result.flow.dtype
                assert result.flow.shape == (2, *result.valid.shape)
                assert result.flow.isfinite().all()
            else:
                assert result.dtype == torch.float32
                assert result.ndim == 3
                assert result.shape[0] in (1, 3)
                assert result.isfinite().all()
    memory.__exit__()
    print(json.dumps({**outcomes, "grew": round(memory.grown or 0)}))  # noqa: T201


def check_complaint(text: str, path: Path) -> None:
    assert text == " ".join(text.split()), text
    assert text.startswith(str(path)), text


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
