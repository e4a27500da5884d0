"""Made-up scenes for optical flow: planar cards in space, a camera and things that move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullfield import _check
from fullfield.ops.layered import INFINITE, SQUARE, LayeredScenes
from fullfield.ops.layered.scene import (
    BIAS,
    COLOURS,
    DEPTH_TEXTURE,
    ELLIPSOID,
    FOG_SHEET,
    GHOST,
    LIGHT,
    OPACITY,
    PAINT,
    SOFTNESS,
    TEXTURE,
)
from fullfield.training.flow.bodies import BODIES, PARTS, Bodies, draw_bodies

Floats = NDArray[np.float64]

# The slots of a scene: silhouettes, the faces of boxes, those of a room, a ground, what closes the view, and ghosts.
_OBJECTS, _BOXES, _ROOM, _GHOSTS = 12, 3, 5, 2
_FACES = 3  # of a box that can be seen
# A jointed figure takes the last slots of the objects: its body, the upper parts of its limbs, the lower ones of some.
_UPPER, _LOWER = 4, 3
_BODY = _OBJECTS - 1 - _UPPER - _LOWER
_FIRST_FACE = _OBJECTS
_FIRST_WALL = _FIRST_FACE + _BOXES * _FACES
_GROUND = _FIRST_WALL + _ROOM
_BACKDROP = _GROUND + 1
_FIRST_GHOST = _BACKDROP + 1
_CARDS = _FIRST_GHOST + _GHOSTS
LAYERS = _CARDS + BODIES * PARTS
_OPEN, _INSIDE, _OUTSIDE, _FLAT = range(4)  # kinds of scenes
_SAMPLES = np.array([(-0.125, -0.375), (0.375, -0.125), (-0.375, 0.125), (0.125, 0.375)])
# Numbers drawn for a scene, and for each of its layers.
_OF_SCENE, _OF_LAYER, _NORMAL = 64, 64, 24
_OF_SOLIDS = 77  # of the stream for ellipsoids


@dataclass(frozen=True)
class SceneStyle:
    """How scenes are made up. Lengths are pixels of a frame of 496×368 and grow with its size.

    The distances that things move follow log-normal distributions: ``*_motion`` is the median, ``spread`` the standard
    deviation of the logarithm, ``largest`` the end.

    Raises:
        InputError: naming the field that does not fit.
    """

    camera_motion: float = 9.0
    object_motion: float = 11.0
    spread: float = 1.1
    largest: float = 300.0
    still_camera: float = 0.1
    """Share of scenes whose camera stands."""
    blur: float = 0.35
    """Share of scenes with motion blur."""
    fog: float = 0.15
    """Share of scenes with fog."""
    waves: float = 0.35
    """Share of objects that bend."""
    plain: float = 0.2
    """Share of surfaces with little contrast."""
    noise: float = 0.03
    """Largest standard deviation of the noise; values are 0 ... 1."""
    gamma: float = 1.6
    """Values are raised to an exponent between this and its inverse."""
    thin: float = 0.0
    """Share of objects drawn out to bars. Scenes have more objects as soon as it is above 0, however little."""
    figures: float = 0.0
    """Share of scenes with a jointed figure: a body and limbs, some of two parts, that turn about their joints."""

    bodies: float = 0.0
    """Share of scenes with bodies: chains of ellipsoids that move, turn, bend and stretch, often cut by the edge."""
    smooth: float = 0.0
    """Share of bodies and objects whose texture is out of focus or faint."""
    sheets: float = 0.0
    """Share of scenes with sheets of fog that drift before everything else."""
    exposure: float = 0.0
    """Share of scenes that are under- or overexposed."""
    instants: int = 4
    """Instants that an exposure averages."""

    def __post_init__(self) -> None:
        for name in ("camera_motion", "object_motion", "largest"):
            _check.number(getattr(self, name), name, above=0.0)
        _check.number(self.spread, "spread", low=0.0, high=3.0)
        _check.number(self.noise, "noise", low=0.0, high=1.0)
        _check.number(self.gamma, "gamma", low=1.0, high=8.0)
        for name in (
            "still_camera",
            "blur",
            "fog",
            "waves",
            "plain",
            "thin",
            "figures",
            "bodies",
            "smooth",
            "sheets",
            "exposure",
        ):
            _check.number(getattr(self, name), name, low=0.0, high=1.0)

    @staticmethod
    def preset(name: str) -> SceneStyle:
        """The style named ``usual``, ``small``, ``large``, ``bars`` or ``figures``.

        ``small`` and ``large`` are about the motion. ``fullfield-s`` was trained on all of them but ``small``.

        Raises:
            InputError: for another name.
        """
        _check.choice(name, "style", PRESETS)
        return PRESETS[name]


PRESETS = {
    "usual": SceneStyle(),
    "small": SceneStyle(camera_motion=3.0, object_motion=4.0, spread=0.9),
    "large": SceneStyle(camera_motion=20.0, object_motion=30.0),
    "bars": SceneStyle(camera_motion=12.0, object_motion=9.0, blur=0.5, thin=0.5),
    "figures": SceneStyle(object_motion=16.0, blur=0.4, thin=0.3, figures=1.0),
    "bodies": SceneStyle(
        camera_motion=10.0,
        object_motion=16.0,
        blur=0.5,
        plain=0.3,
        bodies=1.0,
        smooth=0.4,
        sheets=0.3,
        exposure=0.4,
        instants=12,
    ),
}


class _Draw:
    """Random numbers of some scenes: every scene's own, whatever is drawn beside it; another ``stream``, others."""

    def __init__(self, seed: int, numbers: Sequence[int], *stream: int) -> None:
        # Ellipsoids draw from a stream of their own, so that cards are the same with and without them.
        streams, more = (
            [np.random.Generator(np.random.SFC64([seed, number, *stream, *further])) for number in numbers]
            for further in ((), (_OF_SOLIDS,))
        )
        solids = LAYERS - _CARDS
        self._scene = np.stack([stream.random(_OF_SCENE) for stream in streams])
        layers = [stream.random((_OF_LAYER, _CARDS)) for stream in streams]
        normals = [stream.standard_normal((_NORMAL, _CARDS)) for stream in streams]
        further_layers = [stream.random((_OF_LAYER, solids)) for stream in more]
        further_normals = [stream.standard_normal((_NORMAL, solids)) for stream in more]
        self._layer = np.concatenate([np.stack(layers), np.stack(further_layers)], -1)
        self._normal = np.concatenate([np.stack(normals), np.stack(further_normals)], -1)
        self._at = [0, 0, 0]

    def _next(self, which: int) -> int:
        self._at[which] += 1
        return self._at[which] - 1

    def scene(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """[B], uniform."""
        return low + (high - low) * self._scene[:, self._next(0)]

    def layer(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """[B, L], uniform."""
        return low + (high - low) * self._layer[:, self._next(1)]

    def normal(self, scale: float = 1.0) -> Floats:
        """[B, L]."""
        return scale * self._normal[:, self._next(2)]


def draw_scenes(
    numbers: Sequence[int],
    size: tuple[int, int],
    *,
    seed: int,
    pictures: int,
    shapes: int,
    style: SceneStyle | None = None,
) -> LayeredScenes:
    """The scenes of these numbers, on the CPU. A scene depends on its number, the seed, the size and the counts.

    Args:
        numbers: of the scenes, at least 0.
        size: (height, width) of the frames, pixels.
        seed: at least 0.
        pictures, shapes: how many an atlas has.
        style: by default ``SceneStyle()``.

    Raises:
        InputError: naming the argument that does not fit.
    """
    style = style or SceneStyle()
    for side in size:
        _check.number(side, "size", integer=True, low=8, high=1 << 15)
    _check.number(seed, "seed", integer=True, low=0)
    _check.number(pictures, "pictures", integer=True, low=1)
    _check.number(shapes, "shapes", integer=True, low=0)
    draw = _Draw(seed, numbers)
    # Bars and figures have numbers of their own: what else is in a scene stays. (Stream 1: the blocks of JPEG.)
    extra = _Draw(seed, numbers, 2) if style.thin or style.figures else None
    height, width = size
    unit = math.sqrt(height * width / (368 * 496))
    bodies = _Bodies(draw, extra, len(numbers), height, width, unit, style)
    solids = None
    if style.bodies:
        solids = draw_bodies(numbers, size, bodies.focal, seed=seed, unit=unit, style=style)
        bodies.add(solids)
    paint, ids = _painted(draw, bodies, pictures, shapes, unit, style)
    further = _Draw(seed, numbers, 4) if style.bodies or style.smooth or style.sheets or style.exposure else None
    gain = np.ones(len(numbers))
    if further is not None:
        gain = _filmed(further, bodies, solids, paint, ids, unit, style)
    exposures, times = _exposed(draw, len(numbers), style)
    fog = bodies.fog(draw, style)
    gamma = np.exp((2 * draw.scene() - 1) * math.log(style.gamma))
    noise = style.noise * draw.scene() ** 3 * (draw.scene() < 0.7)
    seeds = np.floor(draw.scene() * 2**31).astype(np.int32)
    floats = (exposures, fog, np.stack([gain, gamma, noise], 1))
    return _ordered(bodies, times, paint, ids, floats, seeds)


class _Bodies:
    """Where every card is when the first frame is taken, and how it moves until the second."""

    def __init__(
        self,
        draw: _Draw,
        extra: _Draw | None,
        batch: int,
        height: int,
        width: int,
        unit: float,
        style: SceneStyle,
    ) -> None:
        shape = (batch, LAYERS)
        self.size = height, width
        self.kind = np.searchsorted(np.cumsum((0.4, 0.25, 0.15)), draw.scene())  # open, inside, outside, flat
        self.focal = width * np.exp(draw.scene(math.log(0.6), math.log(1.8)))
        self.far = 10.0
        self.on = np.zeros(shape, bool)
        self.place, self.along, self.across = (np.zeros((*shape, 3)) for _ in range(3))
        self.centre = np.zeros((*shape, 3))
        self.turn, self.shift = np.zeros((*shape, 3)), np.zeros((*shape, 3))
        self.depth = np.full(shape, np.inf)  # what the cards are ordered by
        self.shape = np.full(shape, INFINITE)
        self.alike = np.zeros(batch, bool)  # figures of one picture and colour
        self.solids: Bodies | None = None
        self._objects(draw, extra, unit, style)
        if extra is not None and style.figures:
            self._figures(extra, unit, style)
        self._boxes(draw, unit, style)
        self._walls(draw)
        self._camera(draw, unit, style)

    def add(self, solids: Bodies) -> None:
        """Put ellipsoids into the last layers."""
        part = slice(_CARDS, LAYERS)
        self.on[:, part], self.shape[:, part] = solids.on, ELLIPSOID
        self.centre[:, part] = solids.centre[:, :, 0]
        # Closer to the camera than their surface, they would be seen from within.
        clear = np.linalg.norm(np.linalg.solve(solids.shape, solids.centre[..., None])[..., 0], axis=-1) > 1.05
        ahead = solids.centre[..., 2] > 0.1
        self.on[:, part] &= (clear & ahead).all(-1)
        self.depth[:, part] = np.maximum(np.linalg.norm(solids.centre[:, :, 0], axis=-1), 1e-6)
        self.along[:, part], self.across[:, part] = np.moveaxis(solids.shape[:, :, 0, :, :2], -1, 0)
        self.solids = solids

    def ellipsoids(self, solids: Bodies, times: Floats) -> tuple[Floats, Floats, Floats]:
        """Return ``to_card`` and ``centres`` of the ellipsoids at ``times`` [B, 2, T], and their ``to_frame``."""
        height, width = self.size
        camera = np.swapaxes(_rotation(self.camera_turn), -1, -2)[:, None]
        shape, centre = solids.shape.copy(), solids.centre.copy()
        centre[:, :, 1] = _times(camera, centre[:, :, 1] - self.camera_shift[:, None])
        shape[:, :, 1] = camera @ shape[:, :, 1]
        at = times[:, :, :, None, None]
        middle = centre[:, None, None, :, 0] + at * (centre[:, :, 1] - centre[:, :, 0])[:, None, None]
        axes = shape[:, None, None, :, 0] + at[..., None] * (shape[:, :, 1] - shape[:, :, 0])[:, None, None]
        project = np.zeros((len(shape), 3, 3))
        project[:, 0, 0] = project[:, 1, 1] = self.focal
        project[:, 0, 2], project[:, 1, 2], project[:, 2, 2] = (width - 1) / 2, (height - 1) / 2, 1
        inverse = np.asarray(np.linalg.inv(axes), np.float64)
        onto = np.concatenate([shape[:, :, 1], centre[:, :, 1, :, None]], -1)
        return inverse @ np.linalg.inv(project)[:, None, None, None], _times(inverse, middle), project[:, None] @ onto

    def _distance(self, uniform: Floats, normal: Floats, median: float, unit: float, style: SceneStyle) -> Floats:
        """How far something moves, pixels; ``uniform`` makes small motions, which matter too, more frequent."""
        far = median * np.exp(style.spread * normal)
        far = np.where(uniform < 0.15, far * 0.2, far)
        return unit * np.minimum(far, style.largest)

    def _ray(self, x: Floats, y: Floats) -> Floats:
        """[..., 3]: through pixels, to depth 1."""
        height, width = self.size
        focal = self.focal[:, None]
        return np.stack([(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal, np.ones_like(x)], -1)

    def _own_motion(
        self, draw: _Draw, part: slice, depth: Floats, unit: float, style: SceneStyle, rigid: NDArray[np.int64] | None
    ) -> None:
        """Of the things in some slots; ``rigid`` says which slots move as one."""
        away = self._distance(draw.layer(), draw.normal(), style.object_motion, unit, style)
        heading = draw.layer(0, 2 * np.pi)
        moves = draw.layer() < 0.75
        nearer = np.clip(draw.normal(0.06), -0.3, 0.3)
        turns = np.stack([draw.normal(0.06), draw.normal(0.06), draw.normal(0.12)], -1)
        rare = draw.layer() < 0.1
        turns[..., 2] *= np.where(rare, 4, 1)
        values: list[NDArray[Any]] = [away, heading, moves, nearer, turns]
        away, heading, moves, nearer, turns = (
            value[:, part] if rigid is None else value[:, part][:, rigid] for value in values
        )
        reach = np.where(moves, away, 0.0) * depth / self.focal[:, None]
        self.shift[:, part] = np.stack(
            [reach * np.cos(heading), reach * np.sin(heading), np.where(moves, nearer, 0.0) * depth], -1
        )
        self.turn[:, part] = np.clip(turns, -1.2, 1.2) * moves[..., None]

    def _objects(self, draw: _Draw, extra: _Draw | None, unit: float, style: SceneStyle) -> None:
        height, width = self.size
        part = slice(0, _OBJECTS)
        count = np.floor(2 + (_OBJECTS - 1) * draw.scene() ** (0.7 if style.thin else 1.5))
        self.on[:, part] = np.arange(_OBJECTS) < count[:, None]
        depth = np.exp(draw.layer(math.log(1.5), math.log(8.0)))[:, part]
        x, y = draw.layer(-0.1, 1.1)[:, part] * width, draw.layer(-0.1, 1.1)[:, part] * height
        half = 0.5 * height * np.exp(draw.layer(math.log(0.06), math.log(0.9)))[:, part]
        aspect = np.exp(draw.normal(0.25))[:, part]
        if extra is not None:
            aspect *= np.exp(np.where(extra.layer() < style.thin, extra.normal(0.9), 0))[:, part]
        self.place[:, part] = self._ray(x, y) * depth[..., None]
        self.centre[:, part] = self.place[:, part]
        roll = draw.layer(0, 2 * np.pi)[:, part]
        roll = np.where(draw.layer()[:, part] < 0.5, 0.15 * (roll - np.pi), roll)
        tilt = np.stack([draw.normal(0.35)[:, part], draw.normal(0.35)[:, part], roll], -1)
        axes = _rotation(np.clip(tilt, -7, 7) * (1, 1, 1))
        scale = (half * depth / self.focal[:, None])[..., None]
        self.along[:, part] = axes[..., 0] * scale * aspect[..., None]
        self.across[:, part] = axes[..., 1] * scale / aspect[..., None]
        self.depth[:, part] = depth
        self.shape[:, part] = 0  # a silhouette; which one is drawn with the pictures
        self._own_motion(draw, part, depth, unit, style, None)

    def _figures(self, draw: _Draw, unit: float, style: SceneStyle) -> None:
        """In some scenes the last objects become a figure: all scenes get one, some get their objects back."""
        there = draw.scene() < style.figures
        self.alike = there & (draw.scene() < 0.5)
        cards = (self.on, self.shape, self.depth, self.place, self.along, self.across)
        changed = [store[:, _BODY:_OBJECTS] for store in (*cards, self.centre, self.turn, self.shift)]
        before = [part.copy() for part in changed]
        self.on[:, _BODY:_OBJECTS] = True
        self._limbs(draw, *self._body(draw), unit, style)
        for part, old in zip(changed, before, strict=True):
            part[~there] = old[~there]

    def _body(self, draw: _Draw) -> tuple[Floats, Floats]:
        """Move an object into view. Returns the directions of its sides [B, 3, 2] and half their lengths [B, 2]."""
        height, width = self.size
        depth = self.depth[:, _BODY]
        half = 0.5 * height * np.exp(draw.scene(math.log(0.15), math.log(0.7))) * depth / self.focal
        ray = self._ray(draw.scene(0.1, 0.9)[:, None] * width, draw.scene(0.1, 0.9)[:, None] * height)[:, 0]
        self.place[:, _BODY] = self.centre[:, _BODY] = ray * depth[:, None]
        sides = np.stack([self.along[:, _BODY], self.across[:, _BODY]], -1)
        plane = sides / np.linalg.norm(sides, axis=1, keepdims=True)
        reach = half[:, None] * np.exp(draw.scene(-0.7, 0.2)[:, None] * (1, 0))
        self.along[:, _BODY], self.across[:, _BODY] = np.moveaxis(plane * reach[:, None], -1, 0)
        return plane, reach

    def _limbs(self, draw: _Draw, plane: Floats, reach: Floats, unit: float, style: SceneStyle) -> None:
        """Bars or silhouettes near the body's plane. Upper ones hang on the body, lower ones on the ends of upper ones;
        each moves with what it hangs on, and turns about the joint besides."""
        depth = self.depth[:, [_BODY]]
        aim, bend = draw.layer(0, 2 * np.pi), draw.normal(0.7)
        length = reach[:, 1:] * np.exp(draw.layer(math.log(0.6), math.log(1.8)))
        thick = length * np.exp(draw.layer(math.log(0.04), math.log(0.35)))
        far = self._distance(draw.layer(), draw.normal(), style.object_motion, unit, style) * depth
        angle = np.clip(far / (length * self.focal[:, None]), 0, 1.0) * np.where(draw.layer() < 0.5, 1, -1)
        angle *= draw.layer() < 0.75
        behind = np.where(draw.layer() < 0.6, -1e-3, 1e-3)  # nearer or farther than the body, as a share of its depth
        limbs = slice(_BODY + 1, _OBJECTS)
        self.shape[:, limbs] = np.where(draw.layer() < 0.75, SQUARE, self.shape)[:, limbs]
        normal = np.cross(plane[..., 0], plane[..., 1])
        for slot in range(_BODY + 1, _OBJECTS):
            if slot <= _BODY + _UPPER:
                bone = _BODY  # what it hangs on
                out = 0.8 * reach * np.stack([np.cos(aim[:, slot]), np.sin(aim[:, slot])], -1)
                joint = self.centre[:, bone] + _times(plane, out)
                aim[:, slot] = np.arctan2(out[:, 1], out[:, 0]) + bend[:, slot]
            else:
                bone = slot - _UPPER
                joint = self.centre[:, bone] + 2 * self.along[:, bone]
                aim[:, slot] = aim[:, bone] + bend[:, slot]
                behind[:, slot] = 2 * behind[:, bone]
            ahead = np.stack([np.cos(aim[:, slot]), np.sin(aim[:, slot])], -1)
            self.along[:, slot] = _times(plane, ahead) * length[:, [slot]] / 2
            self.across[:, slot] = _times(plane, ahead[:, ::-1] * (-1, 1)) * thick[:, [slot]] / 2
            self.centre[:, slot], self.place[:, slot] = joint, joint + self.along[:, slot]
            carried = _times(_rotation(self.turn[:, bone]), joint - self.centre[:, bone])
            self.shift[:, slot] = self.centre[:, bone] + self.shift[:, bone] + carried - joint
            self.turn[:, slot] = self.turn[:, bone] + angle[:, [slot]] * normal
        self.depth[:, limbs] = depth * (1 + behind[:, limbs])

    def _boxes(self, draw: _Draw, unit: float, style: SceneStyle) -> None:
        height, width = self.size
        part = slice(_FIRST_FACE, _FIRST_WALL)
        first = np.arange(_BOXES) * _FACES  # the slots that speak for a box
        rigid = np.repeat(first, _FACES)
        count = np.floor((_BOXES + 1) * draw.scene() ** 2)
        there = np.arange(_BOXES) < count[:, None]
        self.on[:, part] = np.repeat(there, _FACES, 1)
        depth = np.exp(draw.layer(math.log(2.0), math.log(8.0)))[:, part][:, first]
        x, y = (draw.layer()[:, part][:, first] * side for side in (width, height))
        half = 0.5 * height * np.exp(draw.layer(math.log(0.15), math.log(0.7)))[:, part] / self.focal[:, None]
        sides = (half.reshape(-1, _BOXES, _FACES) * depth[..., None])[..., None]
        place = self._ray(x, y) * depth[..., None]
        tilt = np.stack([draw.normal(0.5)[:, part], draw.normal(0.7)[:, part], draw.normal(0.3)[:, part]], -1)
        axes = np.swapaxes(_rotation(tilt[:, first]), -1, -2) * sides  # [B, boxes, axis, 3]
        # The face of an axis that looks at the camera.
        towards = np.where((axes * place[:, :, None]).sum(-1) < 0, 1.0, -1.0)
        faces = place[:, :, None] + axes * towards[..., None]
        self.place[:, part] = faces.reshape(-1, _BOXES * _FACES, 3)
        self.centre[:, part] = np.repeat(place, _FACES, 1)
        self.along[:, part] = np.roll(axes, 1, 2).reshape(-1, _BOXES * _FACES, 3)
        self.across[:, part] = np.roll(axes, 2, 2).reshape(-1, _BOXES * _FACES, 3)
        self.depth[:, part] = np.repeat(depth, _FACES, 1)
        self.shape[:, part] = SQUARE
        self._own_motion(draw, part, np.repeat(depth, _FACES, 1), unit, style, rigid)

    def _walls(self, draw: _Draw) -> None:
        """A room, a ground, and the plane behind everything."""
        height, width = self.size
        focal, far = self.focal, self.far
        right, left = (draw.scene(0.5, 1.6) * width / 2 / focal * far * 0.6 for _ in range(2))
        down, up = (draw.scene(0.5, 1.4) * height / 2 / focal * far * 0.6 for _ in range(2))
        end, begin = draw.scene(0.7, 1.3) * far, -0.5 * far
        zero, middle, length = np.zeros_like(focal), (end + begin) / 2, (end - begin) / 2
        across, along = (right + left) / 2, (down + up) / 2
        x, y = (right - left) / 2, (down - up) / 2
        yaw, pitch, roll = (scale * (2 * draw.scene() - 1) for scale in (0.5, 0.3, 0.2))
        look = _rotation(np.stack([pitch, yaw, roll], -1))
        inside = self.kind == _INSIDE
        walls = (
            ((x, down, middle), (across, zero, zero), (zero, zero, length)),
            ((x, -up, middle), (across, zero, zero), (zero, zero, length)),
            ((right, y, middle), (zero, zero, length), (zero, along, zero)),
            ((-left, y, middle), (zero, zero, length), (zero, along, zero)),
            ((x, y, end), (across, zero, zero), (zero, along, zero)),
        )
        room = slice(_FIRST_WALL, _GROUND)
        self.on[:, room], self.depth[:, room], self.shape[:, room] = inside[:, None], 1e3, SQUARE
        # A ground below the camera, and what is far away behind it.
        below = draw.scene(0.15, 0.6) * far * height / focal
        ground = ((zero, below, zero + far), (width / 2 / focal * far, zero, zero), (zero, zero, zero + far))
        for slot, card in enumerate((*walls, ground), _FIRST_WALL):
            for store, vector in zip((self.place, self.along, self.across), card, strict=True):
                store[:, slot] = _times(look, np.stack(vector, -1))
        self.on[:, _GROUND] = self.kind == _OUTSIDE
        self.depth[:, _GROUND] = 1e4
        tilt = np.stack(
            [0.5 * (2 * draw.scene() - 1), 0.5 * (2 * draw.scene() - 1), np.pi * (2 * draw.scene() - 1)], -1
        )
        slanted = (self.kind == _OPEN) & (draw.scene() < 0.7)
        tilt[:, :2] *= np.where(slanted, 1, 0.05)[:, None]
        axes = _rotation(tilt)
        behind = far * np.where(self.kind == _OUTSIDE, draw.scene(3, 20), np.where(self.kind == _INSIDE, 5.0, 1.0))
        self.place[:, _BACKDROP, 2] = behind
        scale = (width / 2 / focal * behind)[:, None]
        self.along[:, _BACKDROP], self.across[:, _BACKDROP] = axes[..., 0] * scale, axes[..., 1] * scale
        self.on[:, _BACKDROP] = True
        self.depth[:, _BACKDROP] = 1e5
        self.centre[:, _FIRST_WALL:_FIRST_GHOST] = self.place[:, _FIRST_WALL:_FIRST_GHOST]
        self._ghosts(draw)

    def _ghosts(self, draw: _Draw) -> None:
        """Shadows, smoke, flares: large, soft, half transparent."""
        height, width = self.size
        part = slice(_FIRST_GHOST, _CARDS)
        depth = np.exp(draw.layer(math.log(1.5), math.log(9.0)))[:, part]
        self.on[:, part] = draw.layer()[:, part] < 0.2
        x, y = draw.layer()[:, part] * width, draw.layer()[:, part] * height
        half = height * np.exp(draw.layer(math.log(0.2), math.log(1.0)))[:, part] * depth / self.focal[:, None]
        self.place[:, part] = self.centre[:, part] = self._ray(x, y) * depth[..., None]
        axes = _rotation(np.stack([0 * x, 0 * x, draw.layer(0, 2 * np.pi)[:, part]], -1)) * half[..., None, None]
        self.along[:, part], self.across[:, part] = axes[..., 0], axes[..., 1]
        self.shift[:, part, :2] = np.stack([draw.normal(0.1)[:, part], draw.normal(0.1)[:, part]], -1) * half[..., None]
        self.depth[:, part] = depth
        self.shape[:, part] = 0

    def _camera(self, draw: _Draw, unit: float, style: SceneStyle) -> None:
        moves = draw.scene() >= style.still_camera
        normal = np.sqrt(-2 * np.log(1 - draw.scene())) * np.cos(2 * np.pi * draw.scene())
        pixels = self._distance(draw.scene(), normal, style.camera_motion, unit, style) * moves
        pixels = np.minimum(pixels, 160 * unit)
        share, heading, aim = draw.scene(), draw.scene(0, 2 * np.pi), draw.scene(0, 2 * np.pi)
        angle = pixels * (1 - share) / self.focal
        roll = 0.02 * (2 * draw.scene() - 1) * np.minimum(pixels / unit / 5, 2)
        self.camera_turn = np.stack([angle * np.cos(aim), angle * np.sin(aim), roll], -1)
        reach = pixels * share * self.far / self.focal
        forward = self.far * 0.2 * (2 * draw.scene() - 1) * np.minimum(pixels / unit / 10, 1)
        forward = np.where((self.kind == _INSIDE) | (self.kind == _OUTSIDE), forward, 0.5 * forward)
        self.camera_shift = np.stack([reach * np.cos(heading), reach * np.sin(heading), forward], -1)
        flat = self.kind == _FLAT
        # Flat scenes: everything moves on its own, in the plane.
        self.camera_shift *= np.where(flat, 0.3, 1.0)[:, None]

    def fog(self, draw: _Draw, style: SceneStyle) -> Floats:
        """[B, 4]: density and colour; without fog too, for where nothing is."""
        thick = -np.log(draw.scene(0.25, 0.9)) / self.far
        grey = draw.scene(0.1, 0.95)
        tint = np.stack([draw.scene(-0.1, 0.1) for _ in range(3)], -1)
        density = np.where(draw.scene() < style.fog, thick, 0.0)
        return np.concatenate([density[:, None], np.clip(grey[:, None] + tint, 0, 1)], 1)

    def matrices(self) -> Floats:
        """[B, 2, L, 3, 3]: from cards to the pixels of both frames."""
        height, width = self.size
        at = np.array([0.0, 1.0])[:, None]
        turned = _rotation(at[:, :, None] * self.turn[:, None])  # [B, 2, L, 3, 3]
        camera = np.swapaxes(_rotation(at * self.camera_turn[:, None]), -1, -2)[:, :, None]
        columns = np.stack([self.along, self.across, self.place - self.centre], -1)  # [B, L, 3, 3]
        moved = turned @ columns[:, None]
        moved[..., 2] += self.centre[:, None] + at[:, :, None] * (self.shift - self.camera_shift[:, None])[:, None]
        project = np.zeros((len(columns), 1, 1, 3, 3))
        project[..., 0, 0] = project[..., 1, 1] = self.focal[:, None, None]
        project[..., 0, 2], project[..., 1, 2], project[..., 2, 2] = (width - 1) / 2, (height - 1) / 2, 1
        onto: Floats = (project @ camera) @ moved
        return onto


def _painted(
    draw: _Draw, bodies: _Bodies, pictures: int, shapes: int, unit: float, style: SceneStyle
) -> tuple[Floats, NDArray[np.int64]]:
    batch = len(bodies.kind)
    paint = np.zeros((batch, LAYERS, PAINT))
    ids = np.stack([np.floor(draw.layer() * pictures), np.floor(draw.layer() * max(shapes, 1))], -1).astype(np.int64)
    silhouette = bodies.shape == 0
    ids[..., 1] = np.where(silhouette, ids[..., 1] if shapes else SQUARE, bodies.shape)
    alike, limbs = bodies.alike, slice(_BODY + 1, _OBJECTS)
    ids[alike, limbs, 0] = ids[alike, _BODY, 0][:, None]
    # Texture: so many texels for a pixel where the card is looked at, turned as the card or as it likes.
    depth = np.linalg.norm(bodies.centre, axis=-1).clip(min=1.0)
    per_pixel = np.exp(draw.normal(0.45))
    texels = [
        np.linalg.norm(axis, axis=-1) * bodies.focal[:, None] / depth * per_pixel / min(max(unit, 0.5), 2.0)
        for axis in (bodies.along, bodies.across)
    ]
    angle = draw.layer(0, 2 * np.pi)
    angle = np.where(draw.layer() < 0.5, np.round(angle / (np.pi / 2)) * (np.pi / 2), angle)
    cosine, sine = np.cos(angle), np.sin(angle)
    affine = (cosine * texels[0], -sine * texels[1], draw.layer(0, 1024), sine * texels[0], cosine * texels[1])
    for number, value in enumerate((*affine, draw.layer(0, 1024))):
        paint[..., TEXTURE + number] = value
    # Waves: the slope stays under what would fold the surface.
    bends = draw.layer() < style.waves
    bends[:, _FIRST_FACE:_GROUND] = False
    bends[:, _GROUND:_FIRST_GHOST] &= draw.layer()[:, _GROUND:_FIRST_GHOST] < 0.3
    for first in (0, 5):
        length = unit * np.exp(draw.layer(math.log(50), math.log(400)))
        heading, phase, aim = (draw.layer(0, 2 * np.pi) for _ in range(3))
        high = np.minimum(unit * 6 * draw.layer() ** 2, 0.15 * length / (2 * np.pi)) * bends
        values = (high * np.cos(aim), high * np.sin(aim), np.cos(heading), np.sin(heading))
        for number, value in enumerate(values):
            paint[..., first + number] = value * (2 * np.pi / length if number >= 2 else 1)
        paint[..., first + 4] = phase
    # Out of focus: edges and textures.
    soft = np.where(draw.layer() < 0.12, draw.layer(1, 5) * unit, 1.0)
    paint[..., SOFTNESS] = soft
    paint[..., BIAS] = np.log2(soft)
    paint[..., OPACITY] = 1
    # Colours: contrast, brightness and tint, and light that changes from frame to frame.
    contrast = np.where(draw.layer() < style.plain, draw.layer(0.02, 0.4), draw.layer(0.6, 1.3))
    middle = draw.layer(0.2, 0.8)
    changes = (draw.scene() < 0.3)[:, None]
    light = 1 + np.clip(draw.normal(0.08), -0.3, 0.3) * changes
    tints = np.stack([draw.layer(0.8, 1.2), draw.layer(0.8, 1.2), draw.layer(0.8, 1.2)], -1)
    ghost = slice(_FIRST_GHOST, _CARDS)
    paint[:, ghost, GHOST] = 1
    paint[:, ghost, OPACITY] = draw.layer(0.1, 0.6)[:, ghost]
    paint[:, ghost, SOFTNESS] = 30 * unit
    dark = draw.layer()[:, ghost] < 0.6
    contrast[:, ghost] = np.where(dark, 0, contrast[:, ghost])
    middle[:, ghost] = np.where(dark, 0, middle[:, ghost])
    for frame, gain in enumerate((np.ones_like(light), light)):
        factor = (contrast * gain)[..., None] * tints
        offset = (middle * gain)[..., None] * tints - 0.5 * factor
        paint[..., COLOURS + 6 * frame : COLOURS + 6 * frame + 3] = factor
        paint[..., COLOURS + 6 * frame + 3 : COLOURS + 6 * frame + 6] = offset
    paint[alike, limbs, COLOURS:] = paint[alike, _BODY, None, COLOURS:]
    return paint, ids


def _exposed(draw: _Draw, batch: int, style: SceneStyle) -> tuple[Floats, Floats]:
    """[B, 2, E, 3] for the renderer, and the times [B, 2, 1 + E] of its matrices."""
    count = int(style.instants)
    samples = (
        _SAMPLES
        if count == 4
        else np.stack(
            [(np.arange(count) * 0.6180339887 + 0.5) % 1 - 0.5, (np.arange(count) * 0.7548776662 + 0.5) % 1 - 0.5], -1
        )
    )
    shutter = np.where(draw.scene() < style.blur, draw.scene(0.05, 0.9), 0.0)
    offsets = (np.arange(count) + 0.5) / count - 0.5
    times = np.zeros((batch, 2, 1 + count))
    times[:, :, 1:] = shutter[:, None, None] * offsets
    times[:, 1] += 1
    exposures = np.empty((batch, 2, count, 3))
    exposures[..., 0] = 1 - times[:, :, 1:]
    exposures[..., 1:] = samples
    exposures[..., 0] = np.where(np.abs(exposures[..., 0]) < 1e-9, 0, exposures[..., 0])
    return exposures, times


def _filmed(
    draw: _Draw,
    bodies: _Bodies,
    solids: Bodies | None,
    paint: Floats,
    ids: NDArray[np.int64],
    unit: float,
    style: SceneStyle,
) -> Floats:
    """Paint bodies, smooth surfaces and sheets of fog; return the gain of every scene's exposure."""
    objects = slice(0, _OBJECTS)
    smooth = draw.layer() < style.smooth
    levels, contrast = draw.layer(1.0, 4.5), draw.layer(0.1, 0.6)
    paint[:, objects, BIAS] += np.where(smooth, levels, 0)[:, objects]
    faint = smooth & (draw.layer() < 0.6)
    strength, light = draw.layer(0.0, 0.7), np.stack([draw.layer(-1, 1), draw.layer(-1.5, 0.5), draw.layer(-1, 1)], -1)
    if solids is not None:
        part = slice(_CARDS, LAYERS)
        core = _CARDS + np.repeat(np.arange(BODIES) * PARTS, PARTS)
        paint[:, part, BIAS] = np.log2(paint[:, part, SOFTNESS]) + solids.smooth
        faint[:, part] = (solids.smooth > 0) & (draw.layer()[:, part][:, core - _CARDS] < 0.6)
        for chosen in (paint[..., COLOURS : COLOURS + 12], ids[..., :1]):
            chosen[:, part] = np.where(solids.alike[..., None], chosen[:, core], chosen[:, part])
        radius = np.linalg.norm(solids.shape[:, :, 0], axis=(-2, -1)) / math.sqrt(3)
        texels = radius * bodies.focal[:, None] / bodies.depth[:, part] * np.exp(draw.normal(0.45))[:, part]
        texels /= min(max(unit, 0.5), 2.0)
        axes = _rotation(np.stack([draw.normal(1.5) for _ in range(3)], -1))[:, part] * texels[..., None, None]
        paint[:, part, TEXTURE : TEXTURE + 2], paint[:, part, DEPTH_TEXTURE] = axes[..., 0, :2], axes[..., 0, 2]
        paint[:, part, TEXTURE + 3 : TEXTURE + 5], paint[:, part, DEPTH_TEXTURE + 1] = axes[..., 1, :2], axes[..., 1, 2]
        towards = light[:, [0]] + 0.3 * light[:, part]
        for frame in (0, 1):
            lit = _times(np.swapaxes(solids.shape[:, :, frame], -1, -2), towards + 0.2 * frame * light[:, [1]])
            lit /= np.maximum(np.linalg.norm(lit, axis=-1, keepdims=True), 1e-9)
            paint[:, part, LIGHT + 3 * frame : LIGHT + 3 * frame + 3] = lit * strength[:, :1, None]
    # Less contrast around the same mean colour.
    for first in (COLOURS, COLOURS + 6):
        factor, offset = paint[..., first : first + 3], paint[..., first + 3 : first + 6]
        weaker = np.where(faint, contrast, 1.0)[..., None]
        offset += 0.5 * factor * (1 - weaker)
        factor *= weaker
    _add_sheets(draw, bodies, paint, ids, unit, style)
    gain = np.exp(draw.scene(math.log(0.2), math.log(2.2)))
    return np.where(draw.scene() < style.exposure, gain, 1.0)


def _add_sheets(
    draw: _Draw, bodies: _Bodies, paint: Floats, ids: NDArray[np.int64], unit: float, style: SceneStyle
) -> None:
    """Turn the transparent layers of some scenes into sheets of fog across the frame, which drift by themselves."""
    part = slice(_FIRST_GHOST, _CARDS)
    foggy = np.repeat((draw.scene() < style.sheets)[:, None], _GHOSTS, 1) & (draw.layer()[:, part] < 0.7)
    grey = draw.scene(0.4, 1.0)[:, None, None] + 0.1 * np.stack([draw.scene(-1, 1) for _ in range(3)], -1)[:, None]
    depth = np.exp(draw.layer(math.log(1.2), math.log(6.0)))[:, part]
    drift = np.stack([draw.normal(0.1), draw.normal(0.1), 0 * draw.normal()], -1)[:, part] * depth[..., None]
    wide = (depth / bodies.focal[:, None])[..., None]  # a pixel, there
    bodies.on[:, part] |= foggy
    for store, values in (
        (bodies.depth, depth),
        (bodies.place, np.stack([0 * depth, 0 * depth, depth], -1)),
        (bodies.centre, np.stack([0 * depth, 0 * depth, depth], -1)),
        (bodies.along, wide * (1, 0, 0)),
        (bodies.across, wide * (0, 1, 0)),
        (bodies.shift, drift),
        (bodies.turn, np.zeros_like(drift)),
    ):
        chosen = foggy if values.ndim == 2 else foggy[..., None]
        store[:, part] = np.where(chosen, values, store[:, part])
    ids[:, part, 1] = np.where(foggy, INFINITE, ids[:, part, 1])
    angle, scale = draw.layer(0, 2 * np.pi)[:, part], np.exp(draw.normal(0.4))[:, part] / unit
    values = {
        GHOST: FOG_SHEET + 0 * depth,
        BIAS: draw.layer(2.0, 5.5)[:, part],
        OPACITY: draw.layer(0.25, 1.0)[:, part],
        TEXTURE: np.cos(angle) * scale,
        TEXTURE + 1: -np.sin(angle) * scale,
        TEXTURE + 3: np.sin(angle) * scale,
        TEXTURE + 4: np.cos(angle) * scale,
    }
    for number, value in values.items():
        paint[:, part, number] = np.where(foggy, value, paint[:, part, number])
    for first in (COLOURS, COLOURS + 6):
        colour = np.concatenate([0 * grey, grey.clip(0, 1)], -1)
        paint[:, part, first : first + 6] = np.where(foggy[..., None], colour, paint[:, part, first : first + 6])


def _ordered(
    bodies: _Bodies,
    times: Floats,  # [B, 2, 1 + E]
    paint: Floats,
    ids: NDArray[np.int64],
    of_scenes: Sequence[Floats],
    seeds: NDArray[np.int32],
) -> LayeredScenes:
    """Return the layers that are on, nearest first."""
    first, second = np.moveaxis(bodies.matrices(), 1, 0)  # [B, L, 3, 3]
    # Between the frames cards go straight on, which is all that motion blur asks for.
    cards = slice(0, _CARDS)
    onto = first[:, None, None, cards] + times[..., None, None, None] * (second - first)[:, None, None, cards]
    to_card = np.zeros((*times.shape, LAYERS, 3, 3))
    centres = np.zeros((*times.shape, LAYERS, 3))
    to_frame = np.zeros((len(times), LAYERS, 3, 4))
    to_card[..., cards, :, :], to_frame[:, cards, :, :3] = _inverse(onto), second[:, cards]
    if bodies.solids is not None:
        part = slice(_CARDS, LAYERS)
        to_card[..., part, :, :], centres[..., part, :], to_frame[:, part] = bodies.ellipsoids(bodies.solids, times)
    counts = bodies.on.sum(1)
    order = np.argsort(np.where(bodies.on, bodies.depth, np.inf), axis=1, kind="stable")[:, : counts.max()]
    scenes = np.arange(len(order))[:, None]
    chosen = (np.moveaxis(values, 3, 1)[scenes, order] for values in (to_card, centres))  # [B, L, 2, 1 + E, ...]
    floats = (
        *(np.moveaxis(values, 1, 3) for values in chosen),
        to_frame[scenes, order],
        paint[scenes, order],
        *of_scenes,
    )
    cards_, middles, frames, colours, exposures, fog, sensor = (
        torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32)) for value in floats
    )
    which, there = (torch.from_numpy(value.astype(np.int32)) for value in (ids[scenes, order], counts))
    return LayeredScenes(
        cards_, middles, frames, colours, which, there, exposures, fog, sensor, torch.from_numpy(seeds)
    )


def _times(matrix: Floats, vector: Floats) -> Floats:
    """[..., M, N] and [..., N] -> [..., M]."""
    product: Floats = (matrix @ vector[..., None])[..., 0]
    return product


def _rotation(vector: Floats) -> Floats:
    """[..., 3] rotation vectors, radians -> [..., 3, 3] (Rodrigues)."""
    angle = np.linalg.norm(vector, axis=-1)[..., None, None]
    axis = vector / np.maximum(angle[..., 0], 1e-12)
    x, y, z = axis[..., 0], axis[..., 1], axis[..., 2]
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*x.shape, 3, 3)
    turned: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return turned


def _inverse(matrix: Floats) -> Floats:
    """Of 3×3 matrices [..., 3, 3], by cofactors."""
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
