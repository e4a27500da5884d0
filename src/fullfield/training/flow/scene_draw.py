"""Random numbers, layers and matrices of synthetic scenes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.config import SceneStyle

Floats = NDArray[np.float64]

BODIES, ROOTS = 2, 3
PARTS = 1 + 2 * ROOTS  # of a body: the core, the limbs on it, and a limb at the end of each of these

# The slots of a scene: silhouettes, the faces of boxes, those of a room, a ground, and what closes the view.
OBJECTS, BOXES, WALLS = 12, 3, 5
FACES = 3  # of a box that can be seen
# A jointed figure takes the last slots of the objects: its body, the upper parts of its limbs, the lower ones of some.
UPPER, LOWER = 4, 3
BODY = OBJECTS - 1 - UPPER - LOWER
FIRST_FACE = OBJECTS
FIRST_WALL = FIRST_FACE + BOXES * FACES
GROUND = FIRST_WALL + WALLS
BACKDROP = GROUND + 1
CARDS = BACKDROP + 1
LAYERS = CARDS + BODIES * PARTS
OPEN, INSIDE, OUTSIDE, FLAT = range(4)  # kinds of scenes
# Numbers drawn for a scene, and for each of its layers.
_SCENE_NUMBERS, _LAYER_NUMBERS, _NORMAL = 64, 64, 24
_COLUMNS = CARDS + 2  # of the stream for cards; the last two stay unused, so that scenes of a seed do not change
_SOLIDS_STREAM = 77  # of the stream for ellipsoids


class SceneRandom:
    """Random numbers of a batch of scenes; those of a scene do not depend on the rest of the batch.

    ``stream`` selects other random numbers of the same scenes. Layers of ellipsoids get numbers only with ``solids``;
    otherwise theirs are 0.
    """

    def __init__(self, seed: int, pair_numbers: Sequence[int], *stream: int, solids: bool) -> None:
        self._scene = np.empty((len(pair_numbers), _SCENE_NUMBERS))
        self._layer = np.zeros((len(pair_numbers), _LAYER_NUMBERS, LAYERS))
        self._normal = np.zeros((len(pair_numbers), _NORMAL, LAYERS))
        for index, number in enumerate(pair_numbers):
            cards = np.random.Generator(np.random.SFC64([seed, number, *stream]))
            self._scene[index] = cards.random(_SCENE_NUMBERS)
            self._layer[index, :, :CARDS] = cards.random((_LAYER_NUMBERS, _COLUMNS))[:, :CARDS]
            self._normal[index, :, :CARDS] = cards.standard_normal((_NORMAL, _COLUMNS))[:, :CARDS]
            if solids:  # from a stream of their own, so that cards are the same with and without ellipsoids
                own = np.random.Generator(np.random.SFC64([seed, number, *stream, _SOLIDS_STREAM]))
                self._layer[index, :, CARDS:] = own.random((_LAYER_NUMBERS, LAYERS - CARDS))
                self._normal[index, :, CARDS:] = own.standard_normal((_NORMAL, LAYERS - CARDS))
        self._at = [0, 0, 0]

    def _get_and_advance_counter(self, counter_index: int) -> int:
        self._at[counter_index] += 1
        return self._at[counter_index] - 1

    def draw_uniform_per_scene(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """Return a uniform number for each scene [B]."""
        return low + (high - low) * self._scene[:, self._get_and_advance_counter(0)]

    def draw_uniform_per_layer(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """Return a uniform number for each layer [B, L]."""
        return low + (high - low) * self._layer[:, self._get_and_advance_counter(1)]

    def draw_normal_per_layer(self, scale: float = 1.0) -> Floats:
        """Return a normal number for each layer [B, L]."""
        return scale * self._normal[:, self._get_and_advance_counter(2)]

    def skip_random_numbers(self, *, per_scene: int = 0, per_layer: int = 0, normal_per_layer: int = 0) -> None:
        """Skip numbers that scenes no longer use, so that those after them stay the same for a seed."""
        for which, count in enumerate((per_scene, per_layer, normal_per_layer)):
            self._at[which] += count


def compute_size_relative_to_reference(height: int, width: int) -> float:
    """Return the number of pixels for a pixel of a frame of 496×368, for which a style's lengths are."""
    return math.sqrt(height * width / (368 * 496))


def compute_motion_lengths_px(
    uniform_draws: Floats, normal_draws: Floats, median: float | Floats, relative_size: float, style: SceneStyle
) -> Floats:
    """Return how far objects move, pixels; ``uniform_draws`` makes small motions, which matter too, more frequent."""
    distant = median * np.exp(style.spread * normal_draws)
    distant = np.where(uniform_draws < 0.15, distant * 0.2, distant)
    return relative_size * np.minimum(distant, style.largest)


def multiply_matrix_vector(matrix: Floats, vector: Floats) -> Floats:
    """Return the products [..., M] of matrices [..., M, N] and vectors [..., N]."""
    product: Floats = (matrix @ vector[..., None])[..., 0]
    return product


def compute_rotation_matrices(rotation_vectors: Floats) -> Floats:
    """Return the matrices [..., 3, 3] of rotation vectors [..., 3], radians (Rodrigues)."""
    angle = np.linalg.norm(rotation_vectors, axis=-1)[..., None, None]
    axis = rotation_vectors / np.maximum(angle[..., 0], 1e-12)
    x, y, z = axis[..., 0], axis[..., 1], axis[..., 2]
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*x.shape, 3, 3)
    turned: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return turned


def invert_3x3_matrices(matrix: Floats) -> Floats:
    """Return the inverses of matrices [..., 3, 3], by cofactors."""
    a, b, c, d, e, f, g, h, i = (matrix[..., row, column] for row in range(3) for column in range(3))
    first, second, third = e * i - f * h, f * g - d * i, d * h - e * g
    determinant = a * first + b * second + c * third
    determinant = np.where(np.abs(determinant) < 1e-30, 1e-30, determinant)
    rows = (
        (first, c * h - b * i, b * f - c * e),
        (second, a * i - c * g, c * d - a * f),
        (third, b * g - a * h, a * e - b * d),
    )
    return np.stack([value for row in rows for value in row], -1).reshape(matrix.shape) / determinant[..., None, None]
