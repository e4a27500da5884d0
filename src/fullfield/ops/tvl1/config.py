"""All parameters of the TV-L1 solver in one place. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass

from fullfield._check import choice, number
from fullfield._config import Config, parameter

BORDERS = ("adjoint", "clamp")
DUAL_RESETS = ("warp", "scale", "never")
MEDIANS = (0, 3, 5)
PRECISIONS = ("float32", "float16")
# The stopping rule looks at the flow once per so many iterations.
STOP_INTERVAL = 10
# Below this squared gradient (intensities 0 ... 255) a pixel says nothing about motion.
GRADIENT_FLOOR = 1e-6


@dataclass(frozen=True)
class TVL1Config(Config):
    """Parameters of TV-L1 optical flow (Zach, Pock and Bischof 2007). The defaults are the preset ``default``.

    Units: ``lambda_`` weighs the data term for intensities from 0 to 255 (frames in [0, 1] are scaled by 255 inside);
    ``epsilon`` is in pixels of the pyramid level at hand. Presets: see :meth:`preset`.
    """

    lambda_: float = parameter(0.35, "weight of the data term, for intensities 0 ... 255; larger follows detail")
    theta: float = parameter(0.15, "coupling of the data step and the smoothing step; smaller is tighter")
    tau: float = parameter(0.25, "step of the dual update; stable up to 0.25")
    scales: int | None = parameter(None, "pyramid levels; 'auto': down to a side of at least 16 pixels")
    scale_factor: float = parameter(0.9, "size of a pyramid level over the next finer one")
    warps: int = parameter(10, "linearisations of the data term per level")
    iterations: int = parameter(10, "inner iterations per warp")
    median: int = parameter(5, "side of the median filter on the flow after each warp; 0 for none", MEDIANS)
    gradient_blend: float = parameter(
        0.5, "share of the first frame's gradient in the data term: 0 is the warped second frame's alone"
    )
    borders: str = parameter(
        "adjoint",
        "adjoint: divergence is the negative adjoint of the gradient; clamp: every index is clamped to the frame",
        BORDERS,
    )
    dual_reset: str = parameter(
        "scale",
        "when the dual variable starts from zero again; never: it is carried up the pyramid",
        DUAL_RESETS,
    )
    epsilon: float = parameter(
        0.0,
        f"end a warp once the RMS change per iteration, over the last {STOP_INTERVAL}, is below this; 0: never",
    )
    precision: str = parameter(
        "float32", "arithmetic and storage of the inner iterations; float16: on the CUDA backend alone", PRECISIONS
    )

    def __post_init__(self) -> None:
        # The limits keep every product inside float32; useful values lie far within.
        number(self.lambda_, "lambda_", low=1e-6, high=1e6)
        number(self.theta, "theta", low=1e-6, high=1e6)
        number(self.tau, "tau", above=0, high=0.25)
        if self.scales is not None:
            number(self.scales, "scales", integer=True, low=1)
        number(self.scale_factor, "scale_factor", low=0.1, high=0.95)
        number(self.warps, "warps", integer=True, low=1, high=10_000)
        number(self.iterations, "iterations", integer=True, low=1, high=1_000_000)
        choice(self.median, "median", MEDIANS)
        number(self.gradient_blend, "gradient_blend", low=0, high=1)
        choice(self.borders, "borders", BORDERS)
        choice(self.dual_reset, "dual_reset", DUAL_RESETS)
        number(self.epsilon, "epsilon", low=0)
        choice(self.precision, "precision", PRECISIONS)
        for name in ("lambda_", "theta", "tau", "scale_factor", "gradient_blend", "epsilon"):
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("scales", "warps", "iterations", "median"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))

    @staticmethod
    def preset(name: str) -> TVL1Config:
        """Return the parameters named ``paper``, ``default``, ``realtime`` or ``fast``; InputError for another name.

        - ``default``: best quality.
        - ``realtime``: ``default`` with six tenths of its warps; over 100 frames of 1920×1080 a second on an H200.
        - ``fast``: about a tenth of the work, for previews and real time.
        - ``paper``: the setting of Romera et al. 2023 for Middlebury, run to convergence: three scales of factor
          1/2, one warp, no median filter, clamped borders. lambda, theta and tau, which they do not print, are IPOL's.
        """
        choice(name, "preset", PRESETS)
        return PRESETS[name]

    @property
    def cuda_alone(self) -> str | None:
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
