"""Choice of the part and the channels of a file that hold its picture."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from fullfield._check import InputError
from fullfield.io.files import join_to_one_line
from fullfield.io.flow_formats import Mask
from fullfield.io.oiio import ImagePart, ImageSource, describe_part_channels, map_layers_to_channel_indices

_COLOURS = (("r", "g", "b"), ("red", "green", "blue"), ("y",))
_PICTURES = {"c", "ci", "rgba", "rgb", "beauty", "combined"}
"""Names of renderers for the finished picture: Houdini, RenderMan, Nuke, Arnold and Redshift, Blender."""
_DATA = re.compile(
    r"n|p|z|st|uv|id|depth|albedo|normals?|position|motion|velocity|vectors?|pref|mask|matte|crypto.*|.*(normal|albedo"
    r"|depth|position|vector|motion|velocity)s?"
)
"""Names of layers that may have three channels and are no picture."""
_EYES = {"left": "left", "right": "right", "l": "left", "r": "right"}


class ColorChannels(NamedTuple):
    """Part of a file, and its colour channels: three, or one if it is grey."""

    part: ImagePart
    indices: list[int]


class _Candidate(NamedTuple):
    part: ImagePart
    layer: str
    indices: list[int]

    @property
    def layer_or_part_name(self) -> str:
        """Name that says what the channels hold: the layer's, or without one the part's."""
        return self.layer or self.part.name

    @property
    def eye_or_empty(self) -> str:
        """Eye of a stereo picture; empty where none is named."""
        words = [
            *_split_name_into_lowercase_words(self.layer_or_part_name),
            *_split_name_into_lowercase_words(self.part.spec.get_string_attribute("view")),
        ]
        return next((_EYES[word] for word in reversed(words) if word in _EYES and len(word) > 1), "")

    @property
    def preference_rank(self) -> int:
        """Preference: 0 is the best, from 3 on only a name asks for the channels."""
        words = [word for word in _split_name_into_lowercase_words(self.layer_or_part_name) if word not in _EYES]
        if not words or words[-1] in _PICTURES:
            return 1 if self.layer else 0
        if self.layer:
            return 4
        return 3 if _DATA.fullmatch(words[-1]) else 2


def _split_name_into_lowercase_words(name: str) -> list[str]:
    return [word for word in re.split(r"[._\-/: ]+", name.lower()) if word]


def choose_color_channels_and_warn_if_ambiguous(
    source: ImageSource, part: int | str | None, layer: str | None
) -> ColorChannels:
    """Return the part to read and its colour channels.

    A part or layer that is not named is chosen by its name: ``C``, ``rgba``, ``beauty`` and others that renderers give
    to the finished picture come before the first part in colour, and normals, albedo and other data come last. Where
    several qualify, a warning says which was taken.
    """
    seen: list[ImagePart] = []
    candidates: list[_Candidate] = []
    for listed in [source.find_part_or_raise(part)] if part is not None else source.iterate_parts():
        seen.append(listed)
        candidates += _list_color_candidates(source, listed, layer)
        if candidates and source.kind != "openexr":
            break
    candidates = [candidate for candidate in candidates if not candidate.part.spec.deep] or candidates
    best = min((candidate.preference_rank for candidate in candidates), default=4)
    if not candidates or (best > 3 and layer is None):
        if not seen:
            raise source.build_read_error("it holds no image")
        expected = f"channels {layer}.R, {layer}.G, {layer}.B" if layer else "channels R, G, B (or Y)"
        names = [repr(join_to_one_line(candidate.layer, 40)) for candidate in candidates[:12]]
        advice = f"; choose a layer with layer= (--layer): {', '.join(names)}" if names else ""
        raise InputError(f"{source.path}: no {expected}; the file has {describe_part_channels(seen)}{advice}")
    equals = [candidate for candidate in candidates if candidate.preference_rank == best]
    selected = equals[0]
    if part is None and len(equals) > 1:
        _warn_which_layer_was_chosen(selected, equals, layer)
    if part is None and layer is None and len(equals) == 1:
        _warn_which_eye_was_chosen_if_stereo(selected, candidates)
    if (
        len(selected.indices) == 1
        and {"ry", "by"} & map_layers_to_channel_indices(selected.part.channels).get(selected.layer, {}).keys()
    ):
        raise InputError(
            f"{source.path}: the colour is stored as luminance and chroma (Y, RY, BY), which is not "
            "supported; convert it to R, G, B"
        )
    return ColorChannels(selected.part, selected.indices)


def _list_color_candidates(source: ImageSource, part: ImagePart, layer: str | None) -> list[_Candidate]:
    """Return the layers of a part that hold colour; only ``layer`` where it is given."""
    grouped = map_layers_to_channel_indices(part.channels)
    candidates = []
    for name in grouped if layer is None else [layer]:
        channels = grouped.get(name, {})
        colour = next((names for names in _COLOURS if all(c in channels for c in names)), None)
        if colour == ("y",) and ("x" in channels or (name and layer is None)):
            continue  # a vector, or some plane, not luminance
        if colour is not None:
            candidates.append(_Candidate(part, name, [channels[c] for c in colour]))
    if not candidates and source.kind != "openexr" and not layer and len(part.channels) <= 2:
        return [_Candidate(part, "", [0])]
    return candidates


def _warn_which_layer_was_chosen(selected: _Candidate, equals: list[_Candidate], layer: str | None) -> None:
    """Say which of several parts or layers was taken; without the file's name, so that a shot says it once."""
    names_text = [join_to_one_line(candidate.layer_or_part_name, 40) for candidate in equals[:12]]
    eye = f", the {selected.eye_or_empty} eye" if selected.eye_or_empty else ""
    option = "layer" if selected.layer and layer is None else "part"
    warnings.warn(
        f"OpenEXR: took {option} {names_text[0]!r}{eye}, the first of "
        f"{', '.join(map(repr, names_text))}; name another with {option}= (--{option})",
        stacklevel=2,
    )


def _warn_which_eye_was_chosen_if_stereo(selected: _Candidate, candidates: list[_Candidate]) -> None:
    """Say which eye was taken from a stereo file whose default view has no name in its channels."""
    others = [candidate.layer for candidate in candidates if candidate.layer.lower() in _EYES]
    if not others or selected.layer:
        return
    views = selected.part.spec.getattribute("multiView")
    eye = selected.eye_or_empty or (
        join_to_one_line(str(views[0]), 20) if isinstance(views, (list, tuple)) and views else ""
    )
    listed = ", ".join(repr(join_to_one_line(name, 40)) for name in others[:12])
    warnings.warn(
        f"OpenEXR: took R, G, B, {f'the {eye} eye' if eye else 'one eye'} and the default view; name another with "
        f"layer= (--layer): {listed}",
        stacklevel=2,
    )


def require_uint8_or_uint16_if_integer(path: Path, type_names: Collection[str]) -> None:
    """Refuse integers whose white is not known: only 8 and 16 bits without sign have one."""
    integers = {type_name for type_name in type_names if type_name.startswith(("int", "uint"))} - {"uint8", "uint16"}
    if integers:
        names = {"uint": "32-bit integers", "int": "32-bit integers with a sign"}
        listed = ", ".join(names.get(type_name, type_name) for type_name in sorted(integers))
        raise InputError(
            f"{path}: expected 8 or 16 bits or floats, got {listed}, which may hold any range; "
            "convert them to 16 bits or floats"
        )


def describe_nonfinite_pixels(subject: str, is_nonfinite: Mask) -> str:
    """Return the message on pixels of a file, or of its channels, that are NaN or infinite."""
    count = int(is_nonfinite.sum())
    y, x = divmod(int(is_nonfinite.argmax()), is_nonfinite.shape[1])
    pixels = "1 pixel is" if count == 1 else f"{count} pixels are"
    return f"{subject}: {pixels} NaN or infinite, the first at x = {x}, y = {y}; nothing is known there"
