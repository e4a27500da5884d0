"""Pictures and silhouettes that pairs of frames are made of: from a picture pack, or drawn from a seed."""

from __future__ import annotations

import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullfield._check import InputError, check_number
from fullfield.training.flow.layered.meshes import MATERIALS, MeshStore, build_mesh_store_from_clips
from fullfield.training.flow.mesh_shapes import create_procedural_meshes
from fullfield.training.flow.procedural import (
    SHAPE_SIZE,
    Pixels,
    create_procedural_textures_and_names,
    draw_procedural_shape_masks,
)

FORMAT = 1
"""Version of the pack's layout; ``python -m tools textures`` writes it."""
MANIFEST = "manifest.json"
SHAPES = "shapes.bin"
MESHES = "meshes.bin"

BARRED_MESHES = 480
"""Procedural meshes of bars beside those of a pack: a fourth of all that have no clip."""
_LARGEST_UPSCALE = 2.0
# What damaged packs raise; RuntimeError: methods of packing that Python does not know, passwords.
_BROKEN_PACKING = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)
_DAMAGED = (*_BROKEN_PACKING, KeyError, OSError, RuntimeError, TypeError, ValueError)


class PicturePack(NamedTuple):
    """Pictures and silhouettes of synthetic pairs, on the CPU."""

    pictures: Tensor  # uint8 [N, S, S, 3], RGB
    shapes: Tensor  # uint8 [M, 128, 128], coverage: 0 outside, 255 inside, zero in a margin of 3 texels
    names: tuple[str, ...]  # of the N pictures: package/path, with the number of the crop
    meshes: MeshStore | None = None  # None: procedural ones


def load_or_create_picture_pack(
    path: str | Path | None, *, size: int = 512, procedural_shape_count: int = 500
) -> PicturePack:
    """Read a picture pack (``python -m tools textures``).

    Pictures become squares: one whose shorter side is at least ``size`` gives as many crops as nearly cover it; a
    smaller one is enlarged, at most twice, and mirrored at its edges where that is not enough.

    Args:
        path: the pack; None: :func:`create_procedural_picture_pack` of this size.
        size: height and width of the squares S, px.
        procedural_shape_count: number of procedural shapes after the pack's silhouettes.

    InputError for a file that is no picture pack or is damaged.
    """
    check_number(size, "size", integer=True, low=16)
    check_number(procedural_shape_count, "procedural_shape_count", integer=True, low=0)
    if path is None:
        return create_procedural_picture_pack(size=size, shape_count=procedural_shape_count)
    where = Path(path)
    squares: list[Pixels] = []
    names: list[str] = []
    with _raise_damage_as_input_error(where), zipfile.ZipFile(where) as file:
        entries = _read_and_check_manifest(where, file)
        for entry in entries["pictures"]:
            picture = _decode_picture(file.read(entry["file"]))
            for crop, square in enumerate(crop_or_enlarge_to_squares(picture, size)):
                squares.append(square)
                names.append(f"{entry['package']}/{entry['path']}, {entry['view']}, crop {crop + 1}")
        data = file.read(SHAPES)
        packed = len(entries["shapes"]), SHAPE_SIZE, SHAPE_SIZE // 2  # two texels a byte
        if len(data) != math.prod(packed):
            raise InputError(f"{where}: expected {math.prod(packed)} bytes of silhouettes, got {len(data)}")
        masks = unpack_4bit_masks(np.frombuffer(data, np.uint8).reshape(packed))
        if not squares:
            raise InputError(f"{where}: expected a picture at least, holds silhouettes alone; build it with --pictures")
        meshes = _read_meshes_and_append_procedural_if_any(where, entries.get("meshes", []), file)
    drawn = draw_procedural_shape_masks(procedural_shape_count, seed=0)
    shapes = torch.from_numpy(np.concatenate([masks, drawn]))
    return PicturePack(torch.from_numpy(np.stack(squares)), shapes, tuple(names), meshes)


def _read_meshes_and_append_procedural_if_any(
    path: Path, entries: list[dict[str, Any]], file: zipfile.ZipFile
) -> MeshStore | None:
    """Return the meshes of a pack, and procedural ones after them; None if it has none."""
    if not entries:
        return None
    data = file.read(MESHES)
    meshes = []
    at = 0

    def take_array(dtype: str, *shape: int) -> NDArray[Any]:
        nonlocal at
        count = math.prod(shape)
        values = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += values.nbytes
        return values

    for entry in entries:
        vertices, triangles = entry["vertices"], entry["triangles"]
        clips = [take_array("<f2", poses, vertices, 3).astype(np.float32) for poses in entry["poses"]]
        corners, materials = take_array("<u2", triangles, 3).astype(np.int64), take_array("u1", triangles)
        is_valid = corners.max() < vertices and materials.max() < MATERIALS
        is_valid &= all(np.isfinite(clip).all() for clip in clips)
        if not is_valid:
            raise InputError(f"{path}: {entry['path']}: expected triangles between finite vertices, got others")
        meshes.append((clips, corners, materials))
    if at != len(data):
        raise InputError(f"{path}: expected {at} bytes of meshes, got {len(data)}")
    return build_mesh_store_from_clips(meshes).join_stores(create_procedural_meshes(barred_count=BARRED_MESHES))


def create_procedural_picture_pack(
    count: int = 64, size: int = 512, seed: int = 0, *, shape_count: int = 500
) -> PicturePack:
    """Pictures without any download, the same on every machine.

    ``count`` pictures of height and width ``size`` px: noise of many octaves, discs that hide each other, cells,
    marble, bricks, speckles, stripes, gradients, checks and nearly flat ones in turn, in natural and saturated colours.
    And ``shape_count`` shapes (:func:`draw_procedural_shape_masks`).
    """
    check_number(count, "count", integer=True, low=1)
    check_number(size, "size", integer=True, low=16)
    check_number(seed, "seed", integer=True, low=0)
    check_number(shape_count, "shape_count", integer=True, low=0)
    pictures, names = create_procedural_textures_and_names(count, size, seed)
    return PicturePack(
        torch.from_numpy(pictures), torch.from_numpy(draw_procedural_shape_masks(shape_count, seed)), names
    )


def read_pack_manifest(path: str | Path) -> dict[str, Any]:
    """Return the pack's manifest: ``pictures`` and ``shapes``, each with package, version, path, author and licence."""
    with _raise_damage_as_input_error(Path(path)), zipfile.ZipFile(path) as file:
        return _read_and_check_manifest(Path(path), file)


def format_licences(manifest: Mapping[str, Any]) -> str:
    """Return the licence list of a pack as Markdown: counts, then every file by package, licence and author.

    ``manifest`` is the result of :func:`read_pack_manifest`.
    """
    kinds = ("pictures", "shapes", "meshes")
    files: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for kind in kinds:
        for entry in manifest.get(kind, []):
            terms = tuple(entry[name] for name in ("package", "version", "licence", "author"))
            files.setdefault(terms, {kind: set() for kind in kinds})[kind].add(entry["path"])
    counts: dict[tuple[str, ...], list[int]] = {}
    for terms, paths in files.items():
        row = counts.setdefault(terms[:3], [0] * len(kinds))
        for column, kind in enumerate(kinds):
            row[column] += len(paths[kind])
    lines = ["| package | version | licence | files used as pictures | as silhouettes | as meshes |"]
    lines.append("|---|---|---|---:|---:|---:|")
    lines += [f"| {' | '.join((*terms, *map(str, row)))} |" for terms, row in sorted(counts.items())]
    title = ""
    for terms, used in sorted(files.items()):
        package, version, licence, author = terms
        if package != title:
            title = package
            lines += ["", f"## {package} {version}".rstrip()]
        lines += ["", f"**{licence}**: {author}", ""]
        folders: dict[str, list[str]] = {}
        for path in sorted(set().union(*used.values())):
            folder, slash, name = path.rpartition("/")
            folders.setdefault(folder + slash, []).append(name)
        lines += [f"- `{folder or './'}` {', '.join(names)}" for folder, names in folders.items()]
    return "\n".join(lines) + "\n"


@contextmanager
def _raise_damage_as_input_error(path: Path) -> Iterator[None]:
    """Inside, what a damaged pack raises becomes one line; that a file cannot be opened stays."""
    try:
        yield
    except _DAMAGED as error:
        if isinstance(error, InputError) or getattr(error, "filename", None) is not None:
            raise
        raise InputError(f"{path}: not a picture pack, or a damaged one ({error})") from error


def crop_or_enlarge_to_squares(picture: Pixels, size: int) -> list[Pixels]:
    """Square crops [size, size, 3] of a picture [H, W, 3], at about one texel a pixel."""
    from PIL import Image

    short = min(picture.shape[:2])
    scale = size / short
    if short < 1.25 * size and scale != 1:
        scale = min(scale, _LARGEST_UPSCALE)
        height, width = (max(1, round(side * scale)) for side in picture.shape[:2])
        resized = Image.fromarray(np.ascontiguousarray(picture)).resize((width, height), Image.Resampling.BICUBIC)
        picture = np.asarray(resized)
    height, width = picture.shape[:2]
    if min(height, width) < size:
        rows, columns = (
            _compute_mirrored_indices(height, max(height, size)),
            _compute_mirrored_indices(width, max(width, size)),
        )
        picture = picture[rows][:, columns]
    return [
        picture[top : top + size, left : left + size]
        for top in _compute_crop_starts(picture.shape[0], size)
        for left in _compute_crop_starts(picture.shape[1], size)
    ]


def _compute_crop_starts(length: int, size: int) -> list[int]:
    """Return the starts of crops that nearly cover the length, evenly spaced from 0 to the end."""
    crops = max(1, -int((0.25 - length / size) // 1))
    if crops == 1:
        return [(length - size) // 2]
    return [(length - size) * crop // (crops - 1) for crop in range(crops)]


def unpack_4bit_masks(packed: NDArray[np.uint8]) -> Pixels:
    """Return the silhouettes [M, 128, 128] that a pack stores as [M, 128, 64], two values of 4 bits a byte."""
    masks = np.empty((*packed.shape[:2], 2 * packed.shape[2]), np.uint8)
    masks[..., ::2] = packed >> 4
    masks[..., 1::2] = packed & 15
    return masks * 17


def _compute_mirrored_indices(length: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` indices that run 0 … length-1 … 0 … again."""
    period = np.arange(count) % (2 * length)
    return np.minimum(period, 2 * length - 1 - period)


def _read_and_check_manifest(path: Path, file: zipfile.ZipFile) -> dict[str, Any]:
    entries = json.loads(file.read(MANIFEST))
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise InputError(f"{path}: expected a picture pack of format {FORMAT}, got another; build it again")
    return entries


def _decode_picture(encoded_image: bytes) -> Pixels:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(encoded_image)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"a picture in it: {error}") from error
