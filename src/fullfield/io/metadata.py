"""Metadata of a frame's file: time code, camera, Nuke's notes."""

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
# How colour is to be shown: it holds for pictures made from the frame, not for vectors, which are data.
_COLOUR = {
    "chromaticities", "whiteluminance", "adoptedneutral", "colorinteropid", "colorspace", "inputcolorspace",
    "renderingtransform", "lookmodtransform",
}  # fmt: skip
_OWN_PREFIXES = ("oiio:", "openexr:", "dpx:", "tiff:", "png:", "exif:", "iptc:", "fullfield/")
_KINDS = ("openexr", "dpx")


def read_metadata(path: PathLike, *, part: int | str | None = None) -> tuple[Attribute, ...]:
    """Return the entries of an OpenEXR or DPX header that hold for other files made from the frame.

    Time code, key code, frame rate, camera, ``nuke/*`` and other notes; not how its pixels are stored, and not their
    colour space, which does not hold for vectors. Empty for other formats. Errors are those of
    :func:`fullfield.io.read_frame`.
    """
    where = Path(path)
    if sniff(where)[0] not in _KINDS:
        return ()
    with opened(where) as source:
        return metadata_of(source, part)


def metadata_of(source: Source, part: int | str | None = None) -> tuple[Attribute, ...]:
    """Return the entries of :func:`read_metadata` from an open file."""
    if source.kind not in _KINDS:
        return ()
    entries = carried((source.first_part() if part is None else source.part(part)).spec)
    return tuple(entry for entry in entries if entry.name.lower() not in _COLOUR)


def carried(spec: Any) -> tuple[Attribute, ...]:
    """Return the entries that pictures made from this part keep, colour space included."""
    kept = []
    for entry in spec.extra_attribs:
        name = entry.name.lower()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES):
            kept.append(Attribute(entry.name, entry.type, entry.value))
    return tuple(kept)
