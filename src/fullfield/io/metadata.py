"""What a frame's file says beside its pixels: time code, camera, what Nuke noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fullfield.io.files import PathLike
from fullfield.io.oiio import Attribute, Source, opened, sniff

# How pixels are stored, which another file with other pixels says for itself; and claims about them.
_OWN = {
    "compression", "pixelaspectratio", "name", "type", "view", "multiview", "chunkcount", "tiles", "orientation",
    "acesimagecontainerflag", "envmap", "textureformat", "wrapmodes", "averagecolor", "constantcolor", "sha-1",
    "iccprofile", "planarconfiguration", "resolutionunit", "xresolution", "yresolution", "version",
}  # fmt: skip
_OWN_PREFIXES = ("oiio:", "openexr:", "dpx:", "tiff:", "png:", "exif:", "iptc:", "fullfield/")
_KINDS = ("openexr", "dpx")


def read_metadata(path: PathLike, *, part: int | str | None = None) -> tuple[Attribute, ...]:
    """The entries of an OpenEXR or DPX header that hold for other files made from the frame.

    Time code, key code, frame rate, camera, ``nuke/*`` and whatever else the file notes; not how its pixels are
    stored. Empty for other formats. Errors are those of :func:`fullfield.io.read_frame`.
    """
    where = Path(path)
    if sniff(where)[0] not in _KINDS:
        return ()
    with opened(where) as source:
        return metadata_of(source, part)


def metadata_of(source: Source, part: int | str | None = None) -> tuple[Attribute, ...]:
    """The same of an open file."""
    if source.kind not in _KINDS:
        return ()
    return carried((source.first_part() if part is None else source.part(part)).spec)


def carried(spec: Any) -> tuple[Attribute, ...]:
    """The same of an open file's part."""
    kept = []
    for entry in spec.extra_attribs:
        name = entry.name.lower()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES):
            kept.append(Attribute(entry.name, entry.type, entry.value))
    return tuple(kept)
