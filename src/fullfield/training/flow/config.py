"""Configurations of the training of a network of flow and of synthetic scenes. Light: no torch, no numpy."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from fullfield import _check
from fullfield._config import Config, create_field

LOSSES = ("auto", "mixture", "sequence")
SCHEDULES = ("one-cycle", "stable")
PRECISIONS = ("float32", "bfloat16", "float16")
COMPILED = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
_HIGHEST_RATE = 1e30  # PyTorch's optimizers overflow on larger ones
COARSE_UPDATES = 4  # of the flow that starts others, see FlowTraining.coarse_starts
_START = 0.04  # share of the learning rate that the first step has


@dataclass(frozen=True)
class FlowTraining(Config):
    """Configuration of :func:`train_flow`. The options of ``fullfield train flow`` describe most of its fields."""

    steps: int = 100_000
    seconds: float | None = None
    """Training ends after that time, without stops, with the learning rate of its end."""
    batch: int = create_field(8, "pairs a step, summed over all processes")
    schedule: str = create_field(
        "one-cycle", "one-cycle: the rate rises and falls; stable: it rises, stays and falls at the end", metavar="NAME"
    )
    learning_rate: float = create_field(4e-4, "highest learning rate")
    warmup: float = create_field(0.05, "share of the training in which the rate rises")
    decay: float = create_field(0.2, "of --schedule stable: share in which the rate falls; 0: none")
    last: float = create_field(1e-3, "share of the rate that is left at the end")
    weight_decay: float = create_field(1e-5, "weight decay of AdamW")
    clip: float = create_field(1.0, "highest norm of the gradient")
    average: float = create_field(0.999, "share of the weights' moving average, the result, that a step keeps")
    loss: str = create_field("auto", "sequence, or mixture for networks with an uncertainty", metavar="NAME")
    gamma: float = create_field(0.85, "weight of a prediction, relative to the next one's")
    max_flow: float = create_field(400.0, "pixels with longer motion do not count")
    visible: float = create_field(1 / 3, "share of the training in which occluded pixels do not count [0.333]")
    updates: int | tuple[int, int] | None = None
    """Updates of the network; None: the network's own number. Two numbers: each step draws one from the first to the
    second, decided by ``seed`` and the step's number, so that all processes and resumed runs draw the same."""
    precision: str = "float32"
    """Precision of autocast; float16 with an adaptive scale of the loss."""
    channels_last: bool = create_field(False, "keep frames and weights in this memory order")
    compile: str | None = create_field(
        None, "mode of torch.compile: default, reduce-overhead, max-autotune ... [not compiled]", metavar="MODE"
    )
    """Network and loss become one graph; where each step draws its number of updates, each child module of the network
    (of a class outside ``torch.nn``) becomes one, which serves any number."""
    graph: bool = create_field(False, "record the step as a CUDA graph, which saves the host's work")
    """It needs a network that never waits for the device and batches of one shape; each number of updates has a graph
    of its own. It changes nothing on the CPU."""
    freeze_norms: bool = create_field(False, "keep the statistics of batch norms")
    coarse_starts: int = create_field(
        0,
        "every N-th pair of a batch starts from the flow at half or a quarter of its size; 0: none",
        metavar="N",
    )
    """That flow is the network's own, after :data:`COARSE_UPDATES` updates."""
    seed: int = create_field(0, "seed of everything")

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            _check.check_number(getattr(self, name), name, integer=True, low=1, high=2**31)
        if self.seconds is not None:
            _check.check_number(self.seconds, "seconds", above=0.0)
        for name, options in (("schedule", SCHEDULES), ("loss", LOSSES), ("precision", PRECISIONS)):
            _check.check_choice(getattr(self, name), name, options)
        if self.compile is not None:
            _check.check_choice(self.compile, "compile", COMPILED)
        _check.check_number(self.learning_rate, "learning_rate", above=0.0, high=_HIGHEST_RATE)
        for name in ("clip", "max_flow"):
            _check.check_number(getattr(self, name), name, above=0.0)
        for name in ("warmup", "decay", "last", "visible"):
            _check.check_number(getattr(self, name), name, low=0.0, high=1.0)
        total = self.warmup + (self.decay if self.schedule == "stable" else 0.0)
        _check.require(total <= 1.0, "warmup", "shares of warm-up and decay of 1 at most together", f"{total:g}")
        _check.check_number(self.weight_decay, "weight_decay", low=0.0)
        _check.check_number(self.average, "average", low=0.0, below=1.0)
        _check.check_number(self.gamma, "gamma", above=0.0, high=1.0)
        if isinstance(self.updates, (tuple, list)):
            object.__setattr__(self, "updates", tuple(self.updates))
            _check_updates_range(self.updates)
        elif self.updates is not None:
            _check.check_number(self.updates, "updates", integer=True, low=0)
        _check.check_number(self.seed, "seed", integer=True, low=0, high=2**31)
        _check.check_number(self.coarse_starts, "coarse_starts", integer=True, low=0)
        for name in ("channels_last", "graph", "freeze_norms"):
            _check.require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))

    def get_or_draw_update_count(self, step: int) -> int | None:
        """Return the number of updates of step ``step``; None where the network decides."""
        if not isinstance(self.updates, tuple):
            return self.updates
        low, high = self.updates
        drawn = hashlib.sha256(f"updates {self.seed} {step}".encode()).digest()[:8]
        return low + int.from_bytes(drawn, "big") % (high - low + 1)

    def get_coarse_divisor(self, step: int) -> int | None:
        """Return what divides the size of the pairs whose flow starts others in step ``step``; None if none does."""
        return (2, 4)[step % 2] if self.coarse_starts else None

    def compute_completed_fraction(self, step: float, seconds: float) -> float:
        """Return the share of the training, 0 to 1, that is done after ``step`` steps and ``seconds``."""
        by_time = 0.0 if self.seconds is None else seconds / self.seconds
        return min(1.0, max(step / self.steps, by_time))

    def compute_learning_rate(self, completed_fraction: float) -> float:
        """Return the learning rate after this share of the training."""
        if completed_fraction < self.warmup:
            return self.learning_rate * (_START + (1 - _START) * completed_fraction / self.warmup)
        if self.schedule == "one-cycle":
            fall = (completed_fraction - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 0.0
            return self.learning_rate * (1 - (1 - self.last) * min(1.0, fall))
        if self.decay == 0 or completed_fraction <= 1 - self.decay:
            return self.learning_rate
        left = max(0.0, (1 - completed_fraction) / self.decay)
        return self.learning_rate * (self.last + (1 - self.last) * (1 - math.sqrt(1 - left)))


def _check_updates_range(updates: tuple[int, ...]) -> None:
    """Raise InputError unless ``updates`` is a range from which each step can draw."""
    expected = "two numbers, the lower first"
    _check.require(len(updates) == 2, "updates", expected, updates)
    for value in updates:
        _check.check_number(value, "updates", integer=True, low=1)
    low, high = updates
    _check.require(low <= high, "updates", expected, updates)


@dataclass(frozen=True)
class SceneStyle(Config):
    """Style of synthetic scenes. Lengths are pixels of a frame of 496×368 and grow with its size.

    The lengths of motion follow log-normal distributions: ``*_motion`` is the median, ``spread`` the standard
    deviation of the logarithm, ``largest`` the end.
    """

    camera_motion: float = 9.0
    object_motion: float = 20.0
    spread: float = 1.1
    largest: float = 300.0
    still_camera: float = 0.1
    """Share of scenes with a static camera."""
    pans: float = 0.0
    """Share of scenes in which a moving camera does little but turn, by ``pan_motion`` pixels in the median."""
    pan_motion: float = 50.0
    blur: float = 0.35
    """Share of scenes with motion blur."""
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
    meshes: float = 0.0
    """Share of scenes with up to six triangle meshes that move, turn, walk and bend, often cut by the edge."""
    plain_meshes: float = 0.0
    """Share of meshes without texture, whose materials have one colour each."""
    photographs: float = 0.0
    """Share of scenes without walls and ground whose backdrop and most objects show one photograph: seen from the first
    camera it is whole, and its parts lie at depths of their own."""
    smooth: float = 0.3
    """Share of bodies, meshes and objects whose texture is out of focus or faint."""
    haze: float = 0.0
    """Share of scenes whose surfaces fade to one colour with their distance."""
    dark: float = 0.0
    """Share of scenes in little light."""
    instants: int = 12
    """Instants that an exposure with motion blur averages; one without takes up to four samples of each pixel."""

    def __post_init__(self) -> None:
        for name in ("camera_motion", "object_motion", "pan_motion", "largest"):
            _check.check_number(getattr(self, name), name, above=0.0)
        _check.check_number(self.spread, "spread", low=0.0, high=3.0)
        _check.check_number(self.noise, "noise", low=0.0, high=1.0)
        _check.check_number(self.gamma, "gamma", low=1.0, high=8.0)
        _check.check_number(self.instants, "instants", integer=True, low=1, high=64)
        for name in (
            "still_camera",
            "pans",
            "blur",
            "waves",
            "plain",
            "thin",
            "figures",
            "bodies",
            "meshes",
            "plain_meshes",
            "photographs",
            "smooth",
            "haze",
            "dark",
        ):
            _check.check_number(getattr(self, name), name, low=0.0, high=1.0)

    @staticmethod
    def from_preset(name: str) -> SceneStyle:
        """Return the style ``usual``, ``small`` (motion), ``figures``, ``bodies`` or ``meshes``."""
        _check.check_choice(name, "style", PRESETS)
        return PRESETS[name]


PRESETS = {
    "usual": SceneStyle(),
    "small": SceneStyle(camera_motion=3.0, object_motion=4.0, spread=0.9, smooth=0.2),
    "figures": SceneStyle(object_motion=16.0, pans=0.15, blur=0.4, thin=0.3, figures=1.0, haze=0.25, dark=0.25),
    "bodies": SceneStyle(
        camera_motion=6.0,
        object_motion=26.0,
        still_camera=0.2,
        pans=0.15,
        blur=0.5,
        plain=0.15,
        bodies=1.0,
        smooth=0.35,
        gamma=2.0,
        haze=0.25,
        dark=0.25,
    ),
    "meshes": SceneStyle(
        camera_motion=6.0,
        object_motion=22.0,
        still_camera=0.2,
        pans=0.15,
        blur=0.4,
        plain=0.15,
        meshes=1.0,
        plain_meshes=0.3,
        photographs=0.6,
        smooth=0.25,
        gamma=2.0,
        haze=0.25,
        dark=0.25,
    ),
}
MIXTURE = {"meshes": 0.4, "bodies": 0.2, "usual": 0.14, "figures": 0.08, "small": 0.18}
"""Presets and their shares of the pairs that training shows by default."""
