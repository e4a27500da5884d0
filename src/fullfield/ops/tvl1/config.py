"""All parameters of the TV-L1 solver and of the guided refinement. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fullfield._check import check_choice, check_number
from fullfield._config import Config, create_field

BORDERS = ("adjoint", "clamp")
MEDIANS = (0, 3, 5)
PRECISIONS = ("float32", "float16")
# Below this squared gradient (intensities 0 ... 255) a pixel says nothing about motion.
GRADIENT_FLOOR = 1e-6


@dataclass(frozen=True)
class TVL1Config(Config):
    """Parameters of TV-L1 optical flow (Zach, Pock and Bischof 2007). The defaults are the preset ``default``.

    ``lambda_`` weighs the data term for intensities from 0 to 255; frames in [0, 1] are scaled by 255 inside. Presets:
    see :meth:`from_preset`.
    """

    lambda_: float = create_field(0.35, "weight of the data term, for intensities 0 ... 255; larger follows detail")
    theta: float = create_field(0.15, "coupling of the data step and the smoothing step; smaller is tighter")
    tau: float = create_field(0.25, "step of the dual update; stable up to 0.25")
    scales: int | None = create_field(None, "pyramid levels; auto: down to a side of at least 16 pixels")
    scale_factor: float = create_field(0.9, "size of a pyramid level over the next finer one")
    warps: int = create_field(10, "linearisations of the data term per level")
    iterations: int = create_field(10, "inner iterations per warp")
    median: int = create_field(5, "side of the median filter on the flow after each warp; 0 for none", MEDIANS)
    gradient_blend: float = create_field(
        0.5, "share of the first frame's gradient in the data term; the rest is the warped second frame's"
    )
    borders: str = create_field(
        "adjoint",
        "divergence: the negative adjoint of the gradient, or with clamped indices",
        BORDERS,
    )
    precision: str = create_field(
        "float32", "arithmetic of the inner iterations; float16 needs the backend cuda", PRECISIONS
    )

    def __post_init__(self) -> None:
        # The limits keep every product inside float32; useful values lie far within.
        check_number(self.lambda_, "lambda_", low=1e-6, high=1e6)
        check_number(self.theta, "theta", low=1e-6, high=1e6)
        check_number(self.tau, "tau", above=0, high=0.25)
        if self.scales is not None:
            check_number(self.scales, "scales", integer=True, low=1)
        check_number(self.scale_factor, "scale_factor", low=0.1, high=0.95)
        check_number(self.warps, "warps", integer=True, low=1, high=10_000)
        check_number(self.iterations, "iterations", integer=True, low=1, high=1_000_000)
        check_choice(self.median, "median", MEDIANS)
        check_number(self.gradient_blend, "gradient_blend", low=0, high=1)
        check_choice(self.borders, "borders", BORDERS)
        check_choice(self.precision, "precision", PRECISIONS)
        for name in ("lambda_", "theta", "tau", "scale_factor", "gradient_blend"):
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("scales", "warps", "iterations", "median"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))

    @staticmethod
    def from_preset(name: str) -> TVL1Config:
        """Return the parameters named ``paper``, ``default``, ``realtime`` or ``fast``; InputError for another name.

        - ``default``: best quality.
        - ``realtime``: ``default`` with six tenths of its warps; over 100 frames of 1920×1080 a second on an H200.
        - ``fast``: about a tenth of the work, for previews and real time.
        - ``paper``: the setting of Romera et al. 2023 for Middlebury, run to convergence: three scales of factor
          1/2, one warp, no median filter, clamped borders. lambda, theta and tau, which they do not print, are IPOL's.
        """
        check_choice(name, "preset", PRESETS)
        return PRESETS[name]

    @property
    def cuda_only_feature(self) -> str | None:
        """Return what only the CUDA backend can do of this; None if nothing."""
        return None if self.precision == PRECISIONS[0] else f"precision {self.precision}"


PRESETS: dict[str, TVL1Config] = {
    "default": TVL1Config(),
    "realtime": TVL1Config(warps=6),
    "fast": TVL1Config(lambda_=0.3, theta=0.25, scale_factor=0.5, warps=4),
    "paper": TVL1Config(
        lambda_=0.15,
        theta=0.3,
        scales=3,
        scale_factor=0.5,
        warps=1,
        iterations=100,
        median=0,
        gradient_blend=0.0,
        borders="clamp",
    ),
}


# Every iteration of a warp goes over the frame once; a round ends with the weighted median.
FILTER_RADIUS = 7
# Each step of it has a softening in pixels, and reads every second column of the window: the column that the second
# number says, and so on, in rows of even number, by the third number in the others; none of them by -1.
FILTER_STEPS = (0.64, 1, -1), (0.32, -1, 0), (0.16, 0, -1), (0.08, -1, 1), (0.04, 1, 0), (0.02, 0, 1)
# Steps in the passes between the first and the last one: the last one filters again what they filtered.
SPARSE_FILTER_STEPS = (0.32, -1, 1), (0.13, -1, 1), (0.05, -1, 1), (0.02, -1, 1)
# Of a neighbour in the weighted median whose gradient says nothing for its flow.
LEAST_FIT = 0.01
# Rounds before which the misfit is found.
JUDGED = 2


class PassPosition(NamedTuple):
    """Position of a pass among those over a pair."""

    number: int = 0
    total: int = 1

    @property
    def is_last(self) -> bool:
        """Whether it is the last pass."""
        return self.number == self.total - 1

    @property
    def is_between(self) -> bool:
        """Whether it is neither the first nor the last pass."""
        return self.number > 0 and not self.is_last

    @property
    def filter_steps(self) -> tuple[tuple[float, int, int], ...]:
        """Steps of the weighted median."""
        return SPARSE_FILTER_STEPS if self.is_between else FILTER_STEPS

    def count_warps(self, config: RefinementConfig) -> int:
        """Return the warps of a round: after other passes the last one takes one less."""
        return max(1, config.warps - 1) if self.number > 0 and self.is_last else config.warps


ONLY_PASS = PassPosition()


@dataclass(frozen=True)
class RefinementConfig(Config):
    """Parameters of :func:`fullfield.ops.tvl1.refine_flow`; README.md states the energy.

    Intensities are 0 ... 255 (frames in [0, 1] are scaled by 255 inside), lengths are pixels.
    """

    lambda_: float = create_field(2.0, "weight of the data term")
    epsilon: float = create_field(1.5, "difference of gradients up to which the data term is quadratic, 0 ... 255")
    coupling: float = create_field(0.05, "weight of the squared distance to the given flow, everywhere")
    consistent_coupling: float = create_field(
        4.0, "weight added to coupling where forward and backward flow agree; used with a backward flow alone"
    )
    consistent_distance: float = create_field(0.05, "forward-backward distance at which that weight has fallen to half")
    edges: float = create_field(0.01, "how fast smoothness yields to the first frame's edges, per grey value")
    blur: float = create_field(0.6, "Gaussian that both frames pass first, sigma; 0 for none")
    rounds: int = create_field(2, "rounds of warps; each ends with a weighted median near motion boundaries")
    passes: int = create_field(
        1,
        "with a backward flow: every pass before the last one refines the flow by one round, "
        "and the coupling is computed again",
    )
    warps: int = create_field(
        3, "linearisations of the data term per round; one less in the last of several passes, if 2 or more"
    )
    iterations: int = create_field(10, "primal-dual iterations per warp")
    step: float = create_field(0.15, "primal step; the dual step is a quarter of its inverse")
    filter_colour: float = create_field(
        28.0, "root mean square difference of colour at which a neighbour counts no more"
    )
    filter_reach: float = create_field(20.0, "distance at which a neighbour counts no more")
    filter_residual: float = create_field(
        5.0, "difference of gradients, 0 ... 255, at which a neighbour's flow counts half"
    )
    filter_threshold: float = create_field(0.1, "change of the flow between neighbours that makes a motion boundary")
    filter_precision: str = create_field(
        "float32", "arithmetic of the medians on a GPU; float16 takes less time", PRECISIONS
    )
    least_fall: float = create_field(
        0.1,
        "share by which the misfit has to fall in the first round for all of the change to remain; "
        "none remains where it rises; 0: everything remains",
    )
    passes_fall: float = create_field(
        0.2,
        "the same for what passes after the first one change; none of that remains below three quarters of it",
    )
    trust: float = create_field(6.0, "change of the flow of which exp(-1) remains; 0: everything remains")

    def __post_init__(self) -> None:
        for name in ("lambda_", "coupling", "consistent_coupling", "edges", "trust"):
            check_number(getattr(self, name), name, low=0, high=1e6)
        check_number(self.epsilon, "epsilon", low=1e-3, high=1e6)
        check_number(self.consistent_distance, "consistent_distance", low=1e-3, high=1e6)
        check_number(self.blur, "blur", low=0, high=10)
        for name in ("rounds", "passes", "warps", "iterations"):
            check_number(getattr(self, name), name, integer=True, low=1, high=10_000)
            object.__setattr__(self, name, int(getattr(self, name)))
        check_number(self.step, "step", low=1e-4, high=1e4)
        check_number(self.filter_colour, "filter_colour", low=1e-3, high=1e6)
        check_number(self.filter_reach, "filter_reach", low=1, high=1e6)
        check_number(self.filter_residual, "filter_residual", low=1e-3, high=1e6)
        check_number(self.filter_threshold, "filter_threshold", low=0, high=1e6)
        check_choice(self.filter_precision, "filter_precision", PRECISIONS)
        check_number(self.least_fall, "least_fall", low=0, high=1)
        check_number(self.passes_fall, "passes_fall", low=0, high=1)


THREE_PASSES = RefinementConfig(passes=3, rounds=1, iterations=8, consistent_distance=0.06, filter_precision="float16")
"""Refinement of the method ``auto``."""
