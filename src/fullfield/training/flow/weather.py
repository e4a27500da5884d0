"""Haze, darkness, drifting mist and shadows of synthetic pairs; none of them changes the flow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered.scene import COLOURS, LIGHT
from fullfield.training.flow.mesh_scene import SampledMeshes
from fullfield.training.flow.scene_draw import Floats, compute_motion_lengths_px, compute_size_relative_to_reference
from fullfield.training.flow.scene_geometry import SceneGeometry

_HAZE_STREAM, _VEIL_STREAM = 8, 9  # of a scene's random numbers
_HAZE_NUMBERS, _VEIL_NUMBERS, _NORMAL = 9, 18, 3
_TEXELS = 64  # of a veil's density, across
_CELLS = (4, 8, 16, 32)  # of its octaves, across


class Veils(NamedTuple):
    """Mist or shadows before some pairs of a batch, K of them."""

    pairs: Tensor  # [K] int64: their places in the batch
    density: Tensor  # [K, 2, S, S] float32: in both frames, mean 0 and deviation 1
    maps: Tensor  # [K, 2, 2, 3] float32: from places in a frame to places in its density, both -1 ... 1
    coverage: Tensor  # [K, 3] float32: density of half the opacity, inverse width of the edge, highest opacity
    colour: Tensor  # [K, 3] float32


def add_haze_and_darkness_inplace(
    pair_numbers: Sequence[int],
    geometry: SceneGeometry,
    paint: Floats,  # [B, L, PAINT]
    background: Floats,  # [B, 3]
    meshes: SampledMeshes | None,
    *,
    seed: int,
    style: SceneStyle,
) -> None:
    """Fade the surfaces of some scenes to one colour with their distance, and darken some scenes, in place."""
    streams = [np.random.Generator(np.random.SFC64([seed, number, _HAZE_STREAM])) for number in pair_numbers]
    uniform = np.stack([stream.random(_HAZE_NUMBERS) for stream in streams], 1)
    chance, thickness, start, brightness, *tint, dark_chance, darkness = uniform
    is_hazy = chance < style.haze
    attenuation = is_hazy * np.exp(math.log(0.3) + math.log(12.0) * thickness) / geometry.view_depth
    haze = (1.3 - 1.2 * brightness**1.5)[:, None] * (0.94 + 0.12 * np.stack(tint, -1))  # mostly bright, often white
    exposure = np.where(dark_chance < style.dark, 0.6 - 0.35 * darkness, 1.0)

    def compute_transmission(distance: Floats) -> Floats:
        transmission: Floats = np.exp(-attenuation[:, None] * (distance - 3 * start[:, None]).clip(min=0))[..., None]
        return transmission

    def fade_and_darken_inplace(color_terms: Floats, transmission: Floats) -> None:
        """Fade factors and offsets [..., 12] of the colours in both frames."""
        per_scene = [1] * (color_terms.ndim - 2)
        color_terms *= transmission
        for first in (3, 9):
            color_terms[..., first : first + 3] += (1 - transmission) * haze.reshape(-1, *per_scene, 3)
        color_terms *= exposure.reshape(-1, *per_scene, 1)

    transmission = compute_transmission(np.linalg.norm(geometry.centre, axis=-1))
    fade_and_darken_inplace(paint[..., COLOURS : COLOURS + 12], transmission)
    paint[..., LIGHT : LIGHT + 6] *= transmission
    background[is_hazy] = haze[is_hazy].clip(0, 1)
    background *= exposure[:, None]
    if meshes is not None:
        values: dict[str, Any] = meshes.values
        pose, colours, light = (values[name] for name in ("pose", "colours", "light"))
        transmission = compute_transmission(np.linalg.norm(pose[:, :, 0, :, 3], axis=-1))[..., None]
        fade_and_darken_inplace(colours[..., 1:], transmission)
        light *= transmission
        light[..., 0] += (1 - transmission)[..., 0]


def sample_veils_if_any(
    pair_numbers: Sequence[int], size: tuple[int, int], *, seed: int, style: SceneStyle
) -> Veils | None:
    """Draw the veils of these pairs, on the CPU; None if none of them has one."""
    streams = [np.random.Generator(np.random.SFC64([seed, number, _VEIL_STREAM])) for number in pair_numbers]
    pairs = [index for index, stream in enumerate(streams) if stream.random() < style.veils]
    if not pairs:
        return None
    streams = [streams[index] for index in pairs]
    uniform_draws = iter(np.stack([stream.random(_VEIL_NUMBERS) for stream in streams], 1))
    normal_draws = iter(np.stack([stream.standard_normal(_NORMAL) for stream in streams], 1))
    return Veils(
        torch.tensor(pairs),
        _sample_veil_density_noise(streams, 0.35 + 0.4 * next(uniform_draws), 0.6 * next(uniform_draws)),
        _sample_veil_maps(uniform_draws, normal_draws, size, style),
        *_sample_veil_coverage_and_color(uniform_draws),
    )


def _sample_veil_density_noise(streams: Sequence[np.random.Generator], persistence: Floats, change: Floats) -> Tensor:
    """Return smooth noise [K, 2, S, S] of several octaves, which changes by an angle between the frames."""
    total = torch.zeros(len(streams), 2, _TEXELS, _TEXELS, dtype=torch.float32)
    for octave, cells in enumerate(_CELLS):
        grids = np.stack([stream.standard_normal((2, cells, cells)) for stream in streams])
        grids *= persistence[:, None, None, None] ** octave
        total += functional.interpolate(
            torch.from_numpy(grids.astype(np.float32)), size=(_TEXELS, _TEXELS), mode="bicubic", align_corners=False
        )
    total -= total.mean((2, 3), keepdim=True)
    total /= total.square().mean((2, 3), keepdim=True).sqrt()
    first, other = total.unbind(1)
    angle = torch.from_numpy(change.astype(np.float32))[:, None, None]
    return torch.stack([first, angle.cos() * first + angle.sin() * other], 1)


def _sample_veil_maps(
    uniform_draws: Iterator[Floats], normal_draws: Iterator[Floats], size: tuple[int, int], style: SceneStyle
) -> Tensor:
    """Return the maps [K, 2, 2, 3] of veils that move on their own."""
    height, width = size
    span = np.exp(math.log(0.25) + math.log(10.0) * next(uniform_draws))  # of the frame's width, in that of the density
    angle = 2 * np.pi * next(uniform_draws)
    stretch = np.exp(0.4 * next(normal_draws))
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    first = turn * (span[:, None] * np.stack([stretch, height / width / stretch], -1))[:, None]
    origin = 2 * np.stack([next(uniform_draws), next(uniform_draws)], -1)
    relative_size = compute_size_relative_to_reference(height, width)
    lengths = compute_motion_lengths_px(
        next(uniform_draws), next(normal_draws), style.object_motion, relative_size, style
    )
    lengths = lengths * (next(uniform_draws) < 0.8)
    heading = 2 * np.pi * next(uniform_draws)
    shift = 2 * lengths[:, None] * np.stack([np.cos(heading) / width, np.sin(heading) / height], -1)
    second = first * np.exp(0.04 * next(normal_draws))[:, None, None]
    second_origin = origin - (second @ shift[..., None])[..., 0]
    maps = [np.concatenate([linear, at[..., None]], -1) for linear, at in ((first, origin), (second, second_origin))]
    return torch.from_numpy(np.stack(maps, 1).astype(np.float32))


def _sample_veil_coverage_and_color(uniform_draws: Iterator[Floats]) -> tuple[Tensor, Tensor]:
    """Return the coverage [K, 3] and the colours [K, 3]: shadows, or mostly grey mist."""
    middle = 2 * next(uniform_draws) - 0.8
    sharpness = np.exp(math.log(0.25) + math.log(10.0) * next(uniform_draws))
    opacity = 0.15 + 0.65 * next(uniform_draws)
    is_shadow = next(uniform_draws) < 0.45
    grey, dark = 0.45 + 0.65 * next(uniform_draws), 0.08 * next(uniform_draws)
    tint = 0.9 + 0.2 * np.stack([next(uniform_draws) for _ in range(3)], -1)
    colour = np.where(is_shadow, dark, grey)[:, None] * tint
    coverage = np.stack([middle, sharpness, opacity], -1)
    return torch.from_numpy(coverage.astype(np.float32)), torch.from_numpy(colour.astype(np.float32))


@torch.no_grad()
def draw_veils_inplace(frame1: Tensor, frame2: Tensor, veils: Veils) -> None:
    """Draw veils over frames [B, 3, H, W] on their device, in place."""
    with torch.autocast(frame1.device.type, enabled=False):
        for index, frame in enumerate((frame1, frame2)):
            count, (height, width) = len(veils.pairs), frame.shape[2:]
            grid = functional.affine_grid(veils.maps[:, index], [count, 1, height, width], align_corners=False)
            density = functional.grid_sample(
                veils.density[:, index, None], grid, padding_mode="reflection", align_corners=False
            )
            middle, sharpness, opacity = veils.coverage[:, :, None, None, None].unbind(1)
            alpha = opacity * ((density - middle) * sharpness + 0.5).clamp(0, 1)
            colour = veils.colour[:, :, None, None]
            veiled = torch.lerp(frame.index_select(0, veils.pairs), colour, alpha).clamp(0, 1)
            frame.index_copy_(0, veils.pairs, veiled)
