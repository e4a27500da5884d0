"""Geometry of synthetic scenes: the place of each layer in the first frame, and its motion to the second."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullfield.training.flow.bodies import Ellipsoids
from fullfield.training.flow.config import SceneStyle
from fullfield.training.flow.layered import INFINITE, SQUARE
from fullfield.training.flow.layered.scene import ELLIPSOID
from fullfield.training.flow.scene_draw import (
    BACKDROP,
    BODY,
    BOXES,
    CARDS,
    FACES,
    FIRST_FACE,
    FIRST_WALL,
    FLAT,
    GROUND,
    INSIDE,
    LAYERS,
    OBJECTS,
    OPEN,
    OUTSIDE,
    UPPER,
    Floats,
    SceneRandom,
    compute_motion_lengths_px,
    compute_rotation_matrices,
    multiply_matrix_vector,
)


class SceneGeometry:
    """Places and motions of the layers of a batch of scenes, and the motion of the camera."""

    def __init__(
        self,
        rng: SceneRandom,
        extra_rng: SceneRandom | None,
        batch: int,
        height: int,
        width: int,
        relative_size: float,
        style: SceneStyle,
    ) -> None:
        shape = (batch, LAYERS)
        self.size = height, width
        self.kind = np.searchsorted(
            np.cumsum((0.4, 0.25, 0.15)), rng.draw_uniform_per_scene()
        )  # open, inside, outside, flat
        self.focal = width * np.exp(rng.draw_uniform_per_scene(math.log(0.6), math.log(1.8)))
        self.view_depth = 10.0
        self.is_present = np.zeros(shape, bool)
        self.place, self.along, self.across = (np.zeros((*shape, 3)) for _ in range(3))
        self.centre = np.zeros((*shape, 3))
        self.turn, self.shift = np.zeros((*shape, 3)), np.zeros((*shape, 3))
        self.depth = np.full(shape, np.inf)  # what the cards are ordered by
        self.shape = np.full(shape, INFINITE)
        self.same_look = np.zeros(batch, bool)  # figures of one picture and colour
        self.solids: Ellipsoids | None = None
        self._sample_objects_inplace(rng, extra_rng, relative_size, style)
        if extra_rng is not None and style.figures:
            self._sample_figures_inplace(extra_rng, relative_size, style)
        self._sample_boxes_inplace(rng, relative_size, style)
        self._sample_room_ground_and_backdrop_inplace(rng)
        self._sample_camera_motion_inplace(rng, relative_size, style)

    def turn_objects_and_backdrop_to_camera_inplace(self, scene_mask: NDArray[np.bool_]) -> None:
        """Turn the objects and the backdrop of some scenes towards the first camera; they keep place, size and roll."""
        for slots in (slice(0, OBJECTS), slice(BACKDROP, BACKDROP + 1)):
            along, across = (side[scene_mask, slots] for side in (self.along, self.across))
            angle = np.arctan2(along[..., 1], along[..., 0])
            length, width = (np.linalg.norm(side, axis=-1)[..., None] for side in (along, across))
            zero = np.zeros_like(angle)
            self.along[scene_mask, slots] = length * np.stack([np.cos(angle), np.sin(angle), zero], -1)
            self.across[scene_mask, slots] = width * np.stack([-np.sin(angle), np.cos(angle), zero], -1)

    def fill_visible_ellipsoid_layers_inplace(self, ellipsoids: Ellipsoids) -> None:
        """Put ellipsoids into the last layers."""
        slots = slice(CARDS, LAYERS)
        self.is_present[:, slots], self.shape[:, slots] = ellipsoids.is_present, ELLIPSOID
        self.centre[:, slots] = ellipsoids.centre[:, :, 0]
        # Closer to the camera than their surface, they would be seen from within.
        clear = np.linalg.norm(np.linalg.solve(ellipsoids.shape, ellipsoids.centre[..., None])[..., 0], axis=-1) > 1.05
        ahead = ellipsoids.centre[..., 2] > 0.1
        self.is_present[:, slots] &= (clear & ahead).all(-1)
        self.depth[:, slots] = np.maximum(np.linalg.norm(ellipsoids.centre[:, :, 0], axis=-1), 1e-6)
        self.along[:, slots], self.across[:, slots] = np.moveaxis(ellipsoids.shape[:, :, 0, :, :2], -1, 0)
        self.solids = ellipsoids

    def compute_ellipsoid_transforms_and_centres(
        self, ellipsoids: Ellipsoids, times: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return ``to_card`` and ``centres`` of the ellipsoids at ``times`` [B, 2, T], and their ``to_frame``."""
        height, width = self.size
        camera = np.swapaxes(compute_rotation_matrices(self.camera_turn), -1, -2)[:, None]
        shape, centre = ellipsoids.shape.copy(), ellipsoids.centre.copy()
        centre[:, :, 1] = multiply_matrix_vector(camera, centre[:, :, 1] - self.camera_shift[:, None])
        shape[:, :, 1] = camera @ shape[:, :, 1]
        at = times[:, :, :, None, None]
        middle = centre[:, None, None, :, 0] + at * (centre[:, :, 1] - centre[:, :, 0])[:, None, None]
        axes = shape[:, None, None, :, 0] + at[..., None] * (shape[:, :, 1] - shape[:, :, 0])[:, None, None]
        project = np.zeros((len(shape), 3, 3))
        project[:, 0, 0] = project[:, 1, 1] = self.focal
        project[:, 0, 2], project[:, 1, 2], project[:, 2, 2] = (width - 1) / 2, (height - 1) / 2, 1
        inverse = np.asarray(np.linalg.inv(axes), np.float64)
        onto = np.concatenate([shape[:, :, 1], centre[:, :, 1, :, None]], -1)
        return (
            inverse @ np.linalg.inv(project)[:, None, None, None],
            multiply_matrix_vector(inverse, middle),
            project[:, None] @ onto,
        )

    def _compute_pixel_rays(self, x: Floats, y: Floats) -> Floats:
        """Return the rays [..., 3] through pixels, to depth 1."""
        height, width = self.size
        focal = self.focal[:, None]
        return np.stack([(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal, np.ones_like(x)], -1)

    def _sample_object_motion_inplace(
        self,
        rng: SceneRandom,
        layer_slots: slice,
        depth: Floats,
        relative_size: float,
        style: SceneStyle,
        motion_source_slots: NDArray[np.int64] | None,
    ) -> None:
        """Draw the motion of the objects in some slots; ``motion_source_slots`` are those that they move with."""
        lengths = compute_motion_lengths_px(
            rng.draw_uniform_per_layer(), rng.draw_normal_per_layer(), style.object_motion, relative_size, style
        )
        heading = rng.draw_uniform_per_layer(0, 2 * np.pi)
        moves = rng.draw_uniform_per_layer() < 0.75
        nearer = np.clip(rng.draw_normal_per_layer(0.06), -0.3, 0.3)
        turns = np.stack(
            [rng.draw_normal_per_layer(0.06), rng.draw_normal_per_layer(0.06), rng.draw_normal_per_layer(0.12)], -1
        )
        rare = rng.draw_uniform_per_layer() < 0.1
        turns[..., 2] *= np.where(rare, 4, 1)
        values: list[NDArray[Any]] = [lengths, heading, moves, nearer, turns]
        lengths, heading, moves, nearer, turns = (
            value[:, layer_slots] if motion_source_slots is None else value[:, layer_slots][:, motion_source_slots]
            for value in values
        )
        offset = np.where(moves, lengths, 0.0) * depth / self.focal[:, None]
        self.shift[:, layer_slots] = np.stack(
            [offset * np.cos(heading), offset * np.sin(heading), np.where(moves, nearer, 0.0) * depth], -1
        )
        self.turn[:, layer_slots] = np.clip(turns, -1.2, 1.2) * moves[..., None]

    def _sample_objects_inplace(
        self, rng: SceneRandom, extra_rng: SceneRandom | None, relative_size: float, style: SceneStyle
    ) -> None:
        height, width = self.size
        slots = slice(0, OBJECTS)
        count = np.floor(2 + (OBJECTS - 1) * rng.draw_uniform_per_scene() ** (0.7 if style.thin else 1.5))
        self.is_present[:, slots] = np.arange(OBJECTS) < count[:, None]
        depth = np.exp(rng.draw_uniform_per_layer(math.log(1.5), math.log(8.0)))[:, slots]
        x, y = (
            rng.draw_uniform_per_layer(-0.1, 1.1)[:, slots] * width,
            rng.draw_uniform_per_layer(-0.1, 1.1)[:, slots] * height,
        )
        half = 0.5 * height * np.exp(rng.draw_uniform_per_layer(math.log(0.06), math.log(0.9)))[:, slots]
        aspect = np.exp(rng.draw_normal_per_layer(0.25))[:, slots]
        if extra_rng is not None:
            aspect *= np.exp(
                np.where(extra_rng.draw_uniform_per_layer() < style.thin, extra_rng.draw_normal_per_layer(0.9), 0)
            )[:, slots]
        self.place[:, slots] = self._compute_pixel_rays(x, y) * depth[..., None]
        self.centre[:, slots] = self.place[:, slots]
        roll = rng.draw_uniform_per_layer(0, 2 * np.pi)[:, slots]
        roll = np.where(rng.draw_uniform_per_layer()[:, slots] < 0.5, 0.15 * (roll - np.pi), roll)
        tilt = np.stack(
            [rng.draw_normal_per_layer(0.35)[:, slots], rng.draw_normal_per_layer(0.35)[:, slots], roll], -1
        )
        axes = compute_rotation_matrices(np.clip(tilt, -7, 7) * (1, 1, 1))
        scale = (half * depth / self.focal[:, None])[..., None]
        self.along[:, slots] = axes[..., 0] * scale * aspect[..., None]
        self.across[:, slots] = axes[..., 1] * scale / aspect[..., None]
        self.depth[:, slots] = depth
        self.shape[:, slots] = 0  # a silhouette; which one is drawn with the pictures
        self._sample_object_motion_inplace(rng, slots, depth, relative_size, style, None)

    def _sample_figures_inplace(self, rng: SceneRandom, relative_size: float, style: SceneStyle) -> None:
        """Turn the last objects of some scenes into a figure: all scenes get one, then some get their objects back."""
        present = rng.draw_uniform_per_scene() < style.figures
        self.same_look = present & (rng.draw_uniform_per_scene() < 0.5)
        cards = (self.is_present, self.shape, self.depth, self.place, self.along, self.across)
        changed = [store[:, BODY:OBJECTS] for store in (*cards, self.centre, self.turn, self.shift)]
        before = [values.copy() for values in changed]
        self.is_present[:, BODY:OBJECTS] = True
        self._sample_limbs_inplace(rng, *self._move_body_into_view_and_get_sides(rng), relative_size, style)
        for values, old in zip(changed, before, strict=True):
            values[~present] = old[~present]

    def _move_body_into_view_and_get_sides(self, rng: SceneRandom) -> tuple[Floats, Floats]:
        """Move an object into view. Returns the directions of its sides [B, 3, 2] and half their lengths [B, 2]."""
        height, width = self.size
        depth = self.depth[:, BODY]
        half = 0.5 * height * np.exp(rng.draw_uniform_per_scene(math.log(0.15), math.log(0.7))) * depth / self.focal
        ray = self._compute_pixel_rays(
            rng.draw_uniform_per_scene(0.1, 0.9)[:, None] * width,
            rng.draw_uniform_per_scene(0.1, 0.9)[:, None] * height,
        )[:, 0]
        self.place[:, BODY] = self.centre[:, BODY] = ray * depth[:, None]
        sides = np.stack([self.along[:, BODY], self.across[:, BODY]], -1)
        plane = sides / np.linalg.norm(sides, axis=1, keepdims=True)
        half_sides = half[:, None] * np.exp(rng.draw_uniform_per_scene(-0.7, 0.2)[:, None] * (1, 0))
        self.along[:, BODY], self.across[:, BODY] = np.moveaxis(plane * half_sides[:, None], -1, 0)
        return plane, half_sides

    def _sample_limbs_inplace(
        self, rng: SceneRandom, plane: Floats, half_sides: Floats, relative_size: float, style: SceneStyle
    ) -> None:
        """Place limbs, bars or silhouettes, near the body's plane.

        Upper limbs hang on the body, lower limbs on the ends of upper ones; each moves with what it hangs on, and turns
        about the joint besides.
        """
        depth = self.depth[:, [BODY]]
        aim, bend = rng.draw_uniform_per_layer(0, 2 * np.pi), rng.draw_normal_per_layer(0.7)
        length = half_sides[:, 1:] * np.exp(rng.draw_uniform_per_layer(math.log(0.6), math.log(1.8)))
        thick = length * np.exp(rng.draw_uniform_per_layer(math.log(0.04), math.log(0.35)))
        distance = (
            compute_motion_lengths_px(
                rng.draw_uniform_per_layer(), rng.draw_normal_per_layer(), style.object_motion, relative_size, style
            )
            * depth
        )
        angle = np.clip(distance / (length * self.focal[:, None]), 0, 1.0) * np.where(
            rng.draw_uniform_per_layer() < 0.5, 1, -1
        )
        angle *= rng.draw_uniform_per_layer() < 0.75
        behind = np.where(
            rng.draw_uniform_per_layer() < 0.6, -1e-3, 1e-3
        )  # nearer or farther than the body, as a share of its depth
        limbs = slice(BODY + 1, OBJECTS)
        self.shape[:, limbs] = np.where(rng.draw_uniform_per_layer() < 0.75, SQUARE, self.shape)[:, limbs]
        normal = np.cross(plane[..., 0], plane[..., 1])
        for slot in range(BODY + 1, OBJECTS):
            if slot <= BODY + UPPER:
                bone = BODY  # what it hangs on
                out = 0.8 * half_sides * np.stack([np.cos(aim[:, slot]), np.sin(aim[:, slot])], -1)
                joint = self.centre[:, bone] + multiply_matrix_vector(plane, out)
                aim[:, slot] = np.arctan2(out[:, 1], out[:, 0]) + bend[:, slot]
            else:
                bone = slot - UPPER
                joint = self.centre[:, bone] + 2 * self.along[:, bone]
                aim[:, slot] = aim[:, bone] + bend[:, slot]
                behind[:, slot] = 2 * behind[:, bone]
            ahead = np.stack([np.cos(aim[:, slot]), np.sin(aim[:, slot])], -1)
            self.along[:, slot] = multiply_matrix_vector(plane, ahead) * length[:, [slot]] / 2
            self.across[:, slot] = multiply_matrix_vector(plane, ahead[:, ::-1] * (-1, 1)) * thick[:, [slot]] / 2
            self.centre[:, slot], self.place[:, slot] = joint, joint + self.along[:, slot]
            joint_offset = multiply_matrix_vector(
                compute_rotation_matrices(self.turn[:, bone]), joint - self.centre[:, bone]
            )
            self.shift[:, slot] = self.centre[:, bone] + self.shift[:, bone] + joint_offset - joint
            self.turn[:, slot] = self.turn[:, bone] + angle[:, [slot]] * normal
        self.depth[:, limbs] = depth * (1 + behind[:, limbs])

    def _sample_boxes_inplace(self, rng: SceneRandom, relative_size: float, style: SceneStyle) -> None:
        height, width = self.size
        slots = slice(FIRST_FACE, FIRST_WALL)
        first = np.arange(BOXES) * FACES  # the slots that speak for a box
        rigid = np.repeat(first, FACES)
        count = np.floor((BOXES + 1) * rng.draw_uniform_per_scene() ** 2)
        present = np.arange(BOXES) < count[:, None]
        self.is_present[:, slots] = np.repeat(present, FACES, 1)
        depth = np.exp(rng.draw_uniform_per_layer(math.log(2.0), math.log(8.0)))[:, slots][:, first]
        x, y = (rng.draw_uniform_per_layer()[:, slots][:, first] * side for side in (width, height))
        half = (
            0.5
            * height
            * np.exp(rng.draw_uniform_per_layer(math.log(0.15), math.log(0.7)))[:, slots]
            / self.focal[:, None]
        )
        sides = (half.reshape(-1, BOXES, FACES) * depth[..., None])[..., None]
        centre = self._compute_pixel_rays(x, y) * depth[..., None]
        tilt = np.stack(
            [
                rng.draw_normal_per_layer(0.5)[:, slots],
                rng.draw_normal_per_layer(0.7)[:, slots],
                rng.draw_normal_per_layer(0.3)[:, slots],
            ],
            -1,
        )
        axes = np.swapaxes(compute_rotation_matrices(tilt[:, first]), -1, -2) * sides  # [B, boxes, axis, 3]
        # The face of an axis that looks at the camera.
        towards = np.where((axes * centre[:, :, None]).sum(-1) < 0, 1.0, -1.0)
        faces = centre[:, :, None] + axes * towards[..., None]
        self.place[:, slots] = faces.reshape(-1, BOXES * FACES, 3)
        self.centre[:, slots] = np.repeat(centre, FACES, 1)
        self.along[:, slots] = np.roll(axes, 1, 2).reshape(-1, BOXES * FACES, 3)
        self.across[:, slots] = np.roll(axes, 2, 2).reshape(-1, BOXES * FACES, 3)
        self.depth[:, slots] = np.repeat(depth, FACES, 1)
        self.shape[:, slots] = SQUARE
        self._sample_object_motion_inplace(rng, slots, np.repeat(depth, FACES, 1), relative_size, style, rigid)

    def _sample_room_ground_and_backdrop_inplace(self, rng: SceneRandom) -> None:
        """Place a room, a ground, and the plane behind everything."""
        height, width = self.size
        focal, distance = self.focal, self.view_depth
        right, left = (rng.draw_uniform_per_scene(0.5, 1.6) * width / 2 / focal * distance * 0.6 for _ in range(2))
        down, up = (rng.draw_uniform_per_scene(0.5, 1.4) * height / 2 / focal * distance * 0.6 for _ in range(2))
        end, start = rng.draw_uniform_per_scene(0.7, 1.3) * distance, -0.5 * distance
        zero, middle, length = np.zeros_like(focal), (end + start) / 2, (end - start) / 2
        across, along = (right + left) / 2, (down + up) / 2
        x, y = (right - left) / 2, (down - up) / 2
        yaw, pitch, roll = (scale * (2 * rng.draw_uniform_per_scene() - 1) for scale in (0.5, 0.3, 0.2))
        look = compute_rotation_matrices(np.stack([pitch, yaw, roll], -1))
        inside = self.kind == INSIDE
        walls = (
            ((x, down, middle), (across, zero, zero), (zero, zero, length)),
            ((x, -up, middle), (across, zero, zero), (zero, zero, length)),
            ((right, y, middle), (zero, zero, length), (zero, along, zero)),
            ((-left, y, middle), (zero, zero, length), (zero, along, zero)),
            ((x, y, end), (across, zero, zero), (zero, along, zero)),
        )
        wall_slots = slice(FIRST_WALL, GROUND)
        self.is_present[:, wall_slots], self.depth[:, wall_slots], self.shape[:, wall_slots] = (
            inside[:, None],
            1e3,
            SQUARE,
        )
        # A ground below the camera, and what is far away behind it.
        below = rng.draw_uniform_per_scene(0.15, 0.6) * distance * height / focal
        ground = (
            (zero, below, zero + distance),
            (width / 2 / focal * distance, zero, zero),
            (zero, zero, zero + distance),
        )
        for slot, card in enumerate((*walls, ground), FIRST_WALL):
            for store, vector in zip((self.place, self.along, self.across), card, strict=True):
                store[:, slot] = multiply_matrix_vector(look, np.stack(vector, -1))
        self.is_present[:, GROUND] = self.kind == OUTSIDE
        self.depth[:, GROUND] = 1e4
        tilt = np.stack(
            [
                0.5 * (2 * rng.draw_uniform_per_scene() - 1),
                0.5 * (2 * rng.draw_uniform_per_scene() - 1),
                np.pi * (2 * rng.draw_uniform_per_scene() - 1),
            ],
            -1,
        )
        slanted = (self.kind == OPEN) & (rng.draw_uniform_per_scene() < 0.7)
        tilt[:, :2] *= np.where(slanted, 1, 0.05)[:, None]
        axes = compute_rotation_matrices(tilt)
        behind = distance * np.where(
            self.kind == OUTSIDE, rng.draw_uniform_per_scene(3, 20), np.where(self.kind == INSIDE, 5.0, 1.0)
        )
        self.place[:, BACKDROP, 2] = behind
        scale = (width / 2 / focal * behind)[:, None]
        self.along[:, BACKDROP], self.across[:, BACKDROP] = axes[..., 0] * scale, axes[..., 1] * scale
        self.is_present[:, BACKDROP] = True
        self.depth[:, BACKDROP] = 1e5
        self.centre[:, FIRST_WALL:CARDS] = self.place[:, FIRST_WALL:CARDS]
        rng.skip_random_numbers(per_layer=6, normal_per_layer=2)

    def _sample_camera_motion_inplace(self, rng: SceneRandom, relative_size: float, style: SceneStyle) -> None:
        moves = rng.draw_uniform_per_scene() >= style.still_camera
        normal = np.sqrt(-2 * np.log(1 - rng.draw_uniform_per_scene())) * np.cos(
            2 * np.pi * rng.draw_uniform_per_scene()
        )
        uniform, fraction = (
            rng.draw_uniform_per_scene(),
            rng.draw_uniform_per_scene(),
        )  # the fraction of the motion that is a shift
        heading, aim = rng.draw_uniform_per_scene(0, 2 * np.pi), rng.draw_uniform_per_scene(0, 2 * np.pi)
        median = np.where(fraction < style.pans, style.pan_motion, style.camera_motion)
        pixels = compute_motion_lengths_px(uniform, normal, median, relative_size, style) * moves
        pixels = np.minimum(pixels, 160 * relative_size)
        angle = pixels * (1 - fraction) / self.focal
        roll = 0.02 * (2 * rng.draw_uniform_per_scene() - 1) * np.minimum(pixels / relative_size / 5, 2)
        self.camera_turn = np.stack([angle * np.cos(aim), angle * np.sin(aim), roll], -1)
        distance = pixels * fraction * self.view_depth / self.focal
        forward = (
            self.view_depth * 0.2 * (2 * rng.draw_uniform_per_scene() - 1) * np.minimum(pixels / relative_size / 10, 1)
        )
        forward = np.where((self.kind == INSIDE) | (self.kind == OUTSIDE), forward, 0.5 * forward)
        self.camera_shift = np.stack([distance * np.cos(heading), distance * np.sin(heading), forward], -1)
        flat = self.kind == FLAT
        # Flat scenes: everything moves on its own, in the plane.
        self.camera_shift *= np.where(flat, 0.3, 1.0)[:, None]

    @staticmethod
    def sample_background_color(rng: SceneRandom) -> Floats:
        """Return the colour [B, 3] where a pixel shows no layer."""
        rng.skip_random_numbers(per_scene=1)
        grey = rng.draw_uniform_per_scene(0.1, 0.95)
        tint = np.stack([rng.draw_uniform_per_scene(-0.1, 0.1) for _ in range(3)], -1)
        rng.skip_random_numbers(per_scene=1)
        colour: Floats = np.clip(grey[:, None] + tint, 0, 1)
        return colour

    def compute_card_to_frame_matrices(self) -> Floats:
        """Return the matrices [B, 2, L, 3, 3] from cards to the pixels of both frames."""
        height, width = self.size
        at = np.array([0.0, 1.0])[:, None]
        turned = compute_rotation_matrices(at[:, :, None] * self.turn[:, None])  # [B, 2, L, 3, 3]
        camera = np.swapaxes(compute_rotation_matrices(at * self.camera_turn[:, None]), -1, -2)[:, :, None]
        columns = np.stack([self.along, self.across, self.place - self.centre], -1)  # [B, L, 3, 3]
        surface = turned @ columns[:, None]
        surface[..., 2] += self.centre[:, None] + at[:, :, None] * (self.shift - self.camera_shift[:, None])[:, None]
        project = np.zeros((len(columns), 1, 1, 3, 3))
        project[..., 0, 0] = project[..., 1, 1] = self.focal[:, None, None]
        project[..., 0, 2], project[..., 1, 2], project[..., 2, 2] = (width - 1) / 2, (height - 1) / 2, 1
        onto: Floats = (project @ camera) @ surface
        return onto
