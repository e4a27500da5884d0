"""Writer of packs with meshes: the pictures of a pack, meshes, and the licence list of both."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fullfield._check import InputError
from fullfield.io.files import write_atomically
from fullfield.training.flow.pictures import MANIFEST, MESHES, read_pack_manifest
from tools.meshes.glb import Model, UnreadableModelError
from tools.meshes.reduce import Mesh, reduce_model
from tools.textures.sources import Terms, usable

SUFFIXES = (".glb", ".gltf")
MAX_VERTICES = 1 << 16
_DATE = (1980, 1, 1, 0, 0, 0)


class Origin(NamedTuple):
    """Where models come from, and the terms under which they may be used."""

    folder: Path
    package: str
    version: str
    author: str
    licence: str
    statement: Path
    """File of the package with the text of the licence."""

    def licence_name(self) -> str:
        """Return the name of the licence.

        Raises:
            InputError: it is not on the list, or the statement does not contain its name.
        """
        name = usable(Terms(self.licence, self.author))
        if name is None:
            raise InputError(f"--licence: expected CC0-1.0, public domain, CC-BY or MIT, got {self.licence!r}")
        text = self.statement.read_text("utf-8", errors="replace")
        words = {"CC0-1.0": "CC0", "public-domain": "public domain", "MIT": "Permission is hereby granted"}
        word = words.get(name, "Attribution")
        if word.lower() not in text.lower():
            raise InputError(f"--statement {self.statement}: expected a text with {word!r}, found none")
        return name


class MeshPack(NamedTuple):
    """Summary of a pack that was written."""

    meshes: int
    animated: int
    triangles: int
    size: int  # bytes
    left_out: list[str]  # one line for each file


def add_meshes(
    output: Path,
    pack: Path,
    origin: Origin,
    *,
    max_triangles: int = 1500,
    max_files: int = 1 << 20,
    skip: str = r"(?!)",
    progress: Callable[[float, str], None] | None = None,
) -> MeshPack:
    """Write ``pack`` with the models of ``origin`` added; ``skip`` matches paths that are left out.

    Raises:
        InputError: the licence is not accepted, the pack is damaged, or no model can be used.
        OSError: a file cannot be read or written.
    """
    licence = origin.licence_name()
    manifest = read_pack_manifest(pack)
    files = sorted(path for path in origin.folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{origin.folder}: expected models ({' '.join(SUFFIXES)}), found none")
    pattern = re.compile(skip)
    left_out: list[str] = []
    entries: list[dict[str, Any]] = []
    data: list[bytes] = []
    seen: set[bytes] = set()
    ranked = sorted(
        files, key=lambda path: hashlib.sha256(path.relative_to(origin.folder).as_posix().encode()).digest()
    )
    for number, path in enumerate(ranked):
        name = path.relative_to(origin.folder).as_posix()
        if progress is not None:
            progress(number / len(files), name)
        if pattern.search(name):
            left_out.append(f"{name}: left out by name")
            continue
        try:
            model = Model(path)
            if len(entries) >= max_files and not model.clips:
                left_out.append(f"{name}: beyond the limit")
                continue
            mesh = reduce_model(model, max_triangles)
        except UnreadableModelError as error:
            left_out.append(f"{name}: {error}")
            continue
        packed = _packed(mesh)
        key = hashlib.sha256(packed).digest()
        if key in seen or mesh.clips[0].shape[1] > MAX_VERTICES:
            left_out.append(f"{name}: {'equals another one' if key in seen else 'is too large'}")
            continue
        seen.add(key)
        data.append(packed)
        entry = {"package": origin.package, "version": origin.version, "path": name, "author": origin.author}
        sizes = {"vertices": mesh.clips[0].shape[1], "triangles": len(mesh.triangles)}
        entries.append({**entry, "licence": licence, **sizes, "poses": [len(clip) for clip in mesh.clips]})
    if not entries:
        raise InputError(f"{origin.folder}: expected at least one usable model, found none; {left_out[0]}")
    _write(output, pack, manifest, entries, b"".join(data))
    animated = sum(max(entry["poses"]) > 1 for entry in entries)
    triangles = sum(entry["triangles"] for entry in entries)
    return MeshPack(len(entries), animated, triangles, output.stat().st_size, left_out)


def _packed(mesh: Mesh) -> bytes:
    """Return the bytes of a mesh: poses as float16, triangles as uint16, parts as uint8."""
    poses = b"".join(clip.astype("<f2").tobytes() for clip in mesh.clips)
    return poses + mesh.triangles.astype("<u2").tobytes() + mesh.materials.astype(np.uint8).tobytes()


def _write(output: Path, pack: Path, manifest: dict[str, Any], entries: list[dict[str, Any]], data: bytes) -> None:
    """Write the files of ``pack``, and the meshes after those that it has."""
    manifest = {**manifest, "meshes": [*manifest.get("meshes", []), *entries]}
    with zipfile.ZipFile(pack) as old, write_atomically(output) as part, zipfile.ZipFile(part, "w") as new:
        for info in old.infolist():
            if info.filename not in (MANIFEST, MESHES):
                new.writestr(info, old.read(info), info.compress_type)
        before = old.read(MESHES) if MESHES in old.namelist() else b""
        for name, content, packing in (
            (MESHES, before + data, zipfile.ZIP_LZMA),
            (MANIFEST, json.dumps(manifest, ensure_ascii=False).encode(), zipfile.ZIP_DEFLATED),
        ):
            info = zipfile.ZipInfo(name, _DATE)
            new.writestr(info, content, packing)
