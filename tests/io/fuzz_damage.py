"""Ways to damage a file, each told by a seed."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
import zlib

EXTREMES = (0, 1, 127, 128, 255)
WORDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 60000, 0x10000, 0x7F800000)
NUMBERS = (
    b"-1", b"0", b"1", b"4096", b"65536", b"2147483648", b"99999999999999999999", b"1e400", b"nan", b"True", b"None",
    b"1_0", b"0x10", b"1.5", b"", b"\xd9\xa3", b"\xff", b"../..", b"\x1b[31m", b"\x00",
)  # fmt: skip
TEXT = (".txt", ".log", ".json")


def damage(data: bytes, rng: random.Random, suffix: str, other: bytes = b"") -> bytes:
    """``data`` with one to sixteen faults; ``other`` is a file to take pieces of."""
    if _can_be_repacked(data) and rng.random() < 0.6:
        return repacked(data, rng)
    out = bytearray(data)
    texts = 0.9 if suffix in TEXT else 0.4 if data[:200].isascii() else 0.0
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        if rng.random() < texts:
            out = bytearray(_text(bytes(out), rng))
        else:
            _bytes(out, rng, other)
    if rng.random() < 0.2:
        out = out[: rng.randrange(1, len(out) + 1)] if out else out
    return mend_png(bytes(out)) if suffix == ".png" and rng.random() < 0.7 else bytes(out)


def _bytes(out: bytearray, rng: random.Random, other: bytes) -> None:
    """A byte, a count that lies, a piece too much, too little, of zeros or of another place."""
    reach = len(out) if rng.random() < 0.4 else min(len(out), rng.choice((64, 512, 2048)))
    at, kind = rng.randrange(reach), rng.random()
    if kind < 0.45:
        out[at] = rng.choice(EXTREMES) if rng.random() < 0.5 else rng.randrange(256)
    elif kind < 0.55:
        out[at] ^= 1 << rng.randrange(8)
    elif kind < 0.75:
        form = rng.choice("<>") + rng.choice("HIIQ")
        count = rng.choice((*WORDS, len(out), len(out) - at)) & ((1 << 8 * struct.calcsize(form)) - 1)
        at -= at % 4 if rng.random() < 0.5 else 0
        word = struct.pack(form, count)
        out[at : at + len(word)] = word[: len(out) - at]
    elif kind < 0.82:
        out[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 3, 8))))
    elif kind < 0.89:
        del out[at : at + rng.choice((1, 4, 64))]
    elif kind < 0.94:
        length = rng.choice((4, 64, 1024))
        out[at : at + length] = bytes(min(length, len(out) - at))
    else:
        source = other if other and rng.random() < 0.5 else bytes(out)
        begin = rng.randrange(len(source))
        piece = source[begin : begin + rng.choice((4, 32, 256))]
        out[at : at + (len(piece) if rng.random() < 0.5 else 0)] = piece


def _text(data: bytes, rng: random.Random) -> bytes:
    """A number or a word that lies, a line too much or too little."""
    kind = rng.random()
    if kind < 0.7:
        words = list(re.finditer(rb"-?[\d.]+(?:e[-+]?\d+)?" if kind < 0.5 else rb"[A-Za-z_]+", data[:20_000]))
        if words:
            word = rng.choice(words)
            return data[: word.start()] + rng.choice(NUMBERS) + data[word.end() :]
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    if kind < 0.85:
        del lines[at]
    else:
        lines.insert(rng.randrange(len(lines)), lines[at])
    return b"\n".join(lines)


def _can_be_repacked(data: bytes) -> bool:
    """Whether it is an archive, and no bomb."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(info.file_size for info in archive.infolist()) < 1 << 22
    except zipfile.BadZipFile:
        return False


def repacked(data: bytes, rng: random.Random) -> bytes:
    """An archive with one damaged member whose checksum is right, so that the damage reaches what reads the member."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name == chosen:
                content = damage(content, rng, "")
            new.writestr(name, content, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return made.getvalue()


def mend_png(data: bytes) -> bytes:
    """Make the checksums right again, so that the damage reaches the decoder."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        length = min(struct.unpack(">I", data[at : at + 4])[0], len(data) - at - 12)
        body = data[at + 4 : at + 8 + length]
        out += struct.pack(">I", length) + body + struct.pack(">I", zlib.crc32(body))
        at += length + 12
    return bytes(out)
