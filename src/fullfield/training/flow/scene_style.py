"""Style of synthetic scenes: lengths of motion, and shares of what scenes contain."""

from __future__ import annotations

from dataclasses import dataclass

from fullfield import _check


@dataclass(frozen=True)
class SceneStyle:
    """Style of synthetic scenes. Lengths are pixels of a frame of 496×368 and grow with its size.

    The lengths of motion follow log-normal distributions: ``*_motion`` is the median, ``spread`` the standard
    deviation of the logarithm, ``largest`` the end.

    Raises:
        InputError: naming the field that does not fit.
    """

    camera_motion: float = 9.0
    object_motion: float = 11.0
    spread: float = 1.1
    largest: float = 300.0
    still_camera: float = 0.1
    """Share of scenes with a static camera."""
    blur: float = 0.35
    """Share of scenes with motion blur."""
    fog: float = 0.15
    """Share of scenes with fog."""
    ghosts: float = 0.2
    """Share of large, soft, half-transparent layers, two a scene: shadows, smoke and flares, which own no motion."""
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
        _check.number(self.instants, "instants", integer=True, low=1, high=64)
        for name in (
            "still_camera",
            "blur",
            "fog",
            "ghosts",
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
        """Return the style ``usual``, ``small``, ``large``, ``bars``, ``figures`` or ``bodies``.

        ``small`` and ``large`` are about the motion. ``bodies`` has opaque scenes of large moving bodies, some smooth:
        most of what the last run of ``fullfield-s`` saw.

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
        camera_motion=6.0,
        object_motion=26.0,
        still_camera=0.2,
        blur=0.5,
        fog=0.0,
        ghosts=0.0,
        plain=0.15,
        bodies=1.0,
        smooth=0.35,
        instants=12,
    ),
}
