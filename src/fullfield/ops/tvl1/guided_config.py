"""All parameters of the guided refinement. Light: imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass

from fullfield._check import number
from fullfield._config import Config, parameter

# Every iteration of a warp goes over the frame once; a round ends with the weighted median.
FILTER_RADIUS = 7
FILTER_STEPS = 6
# Of a neighbour in the weighted median whose gradient says nothing for its flow.
LEAST_FIT = 0.01
# Rounds before which the misfit is found.
JUDGED = 2


@dataclass(frozen=True)
class RefinementConfig(Config):
    """Parameters of :func:`fullfield.ops.tvl1.refine_flow`; the README beside this file states the energy.

    Intensities are 0 ... 255 (frames in [0, 1] are scaled by 255 inside), lengths are pixels.
    """

    lambda_: float = parameter(2.0, "weight of the data term")
    epsilon: float = parameter(1.5, "difference of gradients up to which the data term is quadratic, 0 ... 255")
    coupling: float = parameter(0.05, "weight of the squared distance to the given flow, everywhere")
    consistent_coupling: float = parameter(
        4.0, "weight added to coupling where forward and backward flow agree; used with a backward flow alone"
    )
    consistent_distance: float = parameter(0.05, "forward-backward distance at which that weight has fallen to half")
    edges: float = parameter(0.01, "how fast smoothness yields to the first frame's edges, per grey value")
    blur: float = parameter(0.6, "Gaussian that both frames pass first, sigma; 0 for none")
    rounds: int = parameter(2, "rounds of warps; each ends with a weighted median near motion boundaries")
    passes: int = parameter(
        1,
        "with a backward flow: before the last pass both flows are refined by one round each, "
        "and the coupling is found anew from them",
    )
    warps: int = parameter(3, "linearisations of the data term per round")
    iterations: int = parameter(10, "primal-dual iterations per warp")
    step: float = parameter(0.15, "primal step; the dual step is a quarter of its inverse")
    filter_colour: float = parameter(28.0, "root mean square difference of colour at which a neighbour counts no more")
    filter_reach: float = parameter(20.0, "distance at which a neighbour counts no more")
    filter_residual: float = parameter(
        5.0, "difference of gradients, 0 ... 255, at which a neighbour's flow counts half"
    )
    filter_threshold: float = parameter(0.1, "change of the flow between neighbours that makes a motion boundary")
    least_fall: float = parameter(
        0.1,
        "share by which the misfit has to fall in the first round for all of the change to remain; "
        "none remains where it rises; 0: everything remains",
    )
    passes_fall: float = parameter(
        0.2,
        "the same for what passes after the first one change; none of that remains below three quarters of it",
    )
    trust: float = parameter(6.0, "change of the flow of which exp(-1) remains; 0: everything remains")

    def __post_init__(self) -> None:
        for name in ("lambda_", "coupling", "consistent_coupling", "edges", "trust"):
            number(getattr(self, name), name, low=0, high=1e6)
        number(self.epsilon, "epsilon", low=1e-3, high=1e6)
        number(self.consistent_distance, "consistent_distance", low=1e-3, high=1e6)
        number(self.blur, "blur", low=0, high=10)
        for name in ("rounds", "passes", "warps", "iterations"):
            number(getattr(self, name), name, integer=True, low=1, high=10_000)
            object.__setattr__(self, name, int(getattr(self, name)))
        number(self.step, "step", low=1e-4, high=1e4)
        number(self.filter_colour, "filter_colour", low=1e-3, high=1e6)
        number(self.filter_reach, "filter_reach", low=1, high=1e6)
        number(self.filter_residual, "filter_residual", low=1e-3, high=1e6)
        number(self.filter_threshold, "filter_threshold", low=0, high=1e6)
        number(self.least_fall, "least_fall", low=0, high=1)
        number(self.passes_fall, "passes_fall", low=0, high=1)
