"""Descriptors from a fully convolutional network on native points, and their files.

The network sees a cloud in voxels, so the same weights serve a room and a street. Its inputs are the same in every
pose; what it makes of the points' places is not: that it has to learn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.files import atomic_path, reason
from fullfield.models.pointcnnpp import PointPyramid, PointUNet, PointUNetConfig
from fullfield.models.state import fit, read_state, recognise
from fullfield.registration.descriptors import local_shapes, plane_normals
from fullfield.registration.scan import NORMAL_RADIUS, fpfh

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

INPUTS = {"one": 1, "shape": 4, "fpfh": 33}
"""What the network may be told of a point, and how many channels it takes."""
SPACINGS = (0.5, 1.0)
MOST_BYTES = 10_000_000
"""Of a file of weights."""
SHAPE_RADIUS = 2.0  # voxels
_BESIDE = 0.01  # of its usual size, that the U-Net's head starts with
_NAME = "descriptor"  # of the configuration in a file's header
_MOST_HEADER = 1 << 20


@dataclass(frozen=True)
class DescriptorConfig:
    """What a learned descriptor is made of. Lengths are voxels."""

    spacing: float = 1.0
    """Between the points that the network sees, and the side of its kernels' cells: 0.5 or 1."""
    inputs: tuple[str, ...] = ("one", "shape", "fpfh")
    """Of ``one`` (a constant), ``shape`` (curvature, planarity, linearity, height) and ``fpfh`` (with spacing 1)."""
    channels: tuple[int, ...] = (32, 48, 64, 96)
    blocks: tuple[int, ...] = (1, 1, 1, 1)
    dimensions: int = 32
    stem_kernel: int = 5
    norm: str = "instance"

    def __post_init__(self) -> None:
        _check.choice(self.spacing, "spacing", SPACINGS)
        for name in ("inputs", "channels", "blocks"):
            value = getattr(self, name)
            _check.require(
                isinstance(value, (tuple, list)) and 1 <= len(value) <= 8, name, "one to eight values", value
            )
            object.__setattr__(self, name, tuple(value))
        for word in self.inputs:
            _check.choice(word, "inputs", tuple(INPUTS))
        _check.require(len(set(self.inputs)) == len(self.inputs), "inputs", "each once", repr(self.inputs))
        fits = "fpfh" not in self.inputs or self.spacing == 1.0
        _check.require(fits, "inputs", "fpfh only with spacing 1", f"spacing {self.spacing}")
        for name, values, most in (
            ("channels", self.channels, 1024),
            ("blocks", self.blocks, 16),
            ("dimensions", (self.dimensions,), 256),
        ):
            for value in values:
                _check.number(value, name, integer=True, low=1, high=most)
        self.network()

    def network(self) -> PointUNetConfig:
        """The U-Net's configuration."""
        return PointUNetConfig(
            name="descriptor",
            in_channels=sum(INPUTS[word] for word in self.inputs),
            out_channels=self.dimensions,
            grid=self.spacing,
            blocks=self.blocks,
            channels=self.channels,
            stem_kernel=self.stem_kernel,
            norm=self.norm,
            unit_length=False,
        )

    def as_dict(self) -> dict[str, Any]:
        """Field names and values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "config") -> DescriptorConfig:
        """The inverse of :meth:`as_dict`. Raises InputError, beginning with ``name``, for what is none."""
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name}: {reason(error)}") from None


class DescriptorNetwork(nn.Module):
    """A U-Net, and beside it a projection of its inputs.

    It starts near the projection, which keeps distances: those of FPFH where that is among the inputs.
    """

    def __init__(self, config: DescriptorConfig | None = None) -> None:
        super().__init__()
        self.config = config or DescriptorConfig()
        network = self.config.network()
        self.unet = PointUNet(network)
        self.direct = nn.Linear(network.in_channels, network.out_channels, bias=False)
        widths = [INPUTS[word] for word in self.config.inputs]
        with torch.no_grad():
            nn.init.orthogonal_(self.direct.weight)
            if "fpfh" in self.config.inputs:
                self.direct.weight.zero_()
                at = self.config.inputs.index("fpfh")
                nn.init.orthogonal_(self.direct.weight[:, sum(widths[:at]) : sum(widths[: at + 1])])
            self.unet.head.weight.mul_(_BESIDE)
            self.unet.head.bias.zero_()

    def prepare(self, points: Tensor, offsets: Tensor | None = None, *, gradient: bool = True) -> PointPyramid:
        """As :meth:`PointUNet.prepare`."""
        return self.unet.prepare(points, offsets, gradient=gradient)

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        """Features [N, C] as :func:`network_input` gives them → descriptors [N, dimensions] of length 1."""
        return nn.functional.normalize(self.unet(features, pyramid) + self.direct(features), dim=1)


class NetworkInput(NamedTuple):
    """What a network is given of one cloud."""

    points: Tensor  # [P, 3] float32, voxels
    features: Tensor  # [P, C] float32
    rows: Tensor  # [N] int64: those of ``points`` that are described


def network_input(config: DescriptorConfig, fine: Floats, rows: NDArray[np.int64]) -> NetworkInput:
    """``fine`` [F, 3] in voxels, one a half voxel, and which of them are described."""
    points = fine if config.spacing == 0.5 else fine[rows]
    seen: list[Floats] = []
    for word in config.inputs:
        if word == "one":
            seen.append(np.ones((len(points), 1)))
        elif word == "shape":
            seen.append(local_shapes(fine, points, SHAPE_RADIUS))
        else:
            seen.append(fpfh(points, plane_normals(fine, points, NORMAL_RADIUS)))
    return NetworkInput(
        torch.from_numpy(points.astype(np.float32)),
        torch.from_numpy(np.concatenate(seen, 1).astype(np.float32)),
        torch.from_numpy(rows if config.spacing == 0.5 else np.arange(len(rows))),
    )


class LearnedDescriptor:
    """A trained network in FPFH's place: ``register(..., descriptor=LearnedDescriptor.load(path))``.

    Attributes:
        config: a :class:`DescriptorConfig`.
        model: a :class:`DescriptorNetwork`. Where it is, is where it runs.
    """

    def __init__(self, model: DescriptorNetwork) -> None:
        self.model = model
        self.config = model.config

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> LearnedDescriptor:
        """From a file that :meth:`save` wrote.

        Raises:
            InputError: for any other file, naming it and what it is instead, where that can be told.
            OSError: if it cannot be read.
        """
        place = _check.device(device)
        state, name = read_state(path)
        told = _header(Path(path)).get(_NAME)
        if told is None:
            looks = recognise(state)
            raise InputError(
                f"{name}: expected a descriptor of points, as fullfield train descriptor writes it, got weights "
                + (f"of {looks}" if looks else "without its configuration")
            )
        try:
            values = json.loads(told)
        except ValueError:
            values = None
        _check.require(isinstance(values, dict), name, "a descriptor's configuration in its header", repr(told)[:60])
        config = DescriptorConfig.from_dict(values, name)
        with torch.device("meta"):  # nothing is allocated that the file does not hold
            wanted = DescriptorNetwork(config).state_dict()
        held, needed = (sum(value.numel() for value in part.values()) for part in (state, wanted))
        _check.require(held == needed, name, f"{needed} numbers for its configuration", f"{held}")
        finite = all(bool(value.isfinite().all()) for value in state.values())
        _check.require(finite, name, "finite weights", "some that are not")
        model = DescriptorNetwork(config)
        fit(model, state, name, "the descriptor that its header describes")
        return cls(model.to(place).eval())

    def encoded(self) -> bytes:
        """A file's content: weights (float32, safetensors) and configuration; the same weights give the same bytes.

        Raises InputError where that would be more than :data:`MOST_BYTES`.
        """
        from safetensors.torch import save

        state = {key: value.detach().cpu().contiguous() for key, value in self.model.state_dict().items()}
        content = save(state, {_NAME: json.dumps(self.config.as_dict(), sort_keys=True)})
        _check.require(
            len(content) <= MOST_BYTES, "channels", f"weights of at most {MOST_BYTES} bytes", f"{len(content)}"
        )
        return content

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`encoded`."""
        content = self.encoded()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)

    def __call__(self, fine: Floats, rows: NDArray[np.int64]) -> Floats:
        """Features [N, C] of ``fine[rows]``; ``fine`` [F, 3] in voxels, one a half voxel."""
        given = network_input(self.config, fine, rows)
        device = next(self.model.parameters()).device
        self.model.eval()
        with torch.inference_mode():
            pyramid = self.model.prepare(given.points.to(device), gradient=False)
            features = self.model(given.features.to(device), pyramid)[given.rows.to(device)]
        described: Floats = features.cpu().double().numpy()
        return described


def _header(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself; empty for other files."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= _MOST_HEADER:
            return {}
        try:
            header = json.loads(file.read(size))
        except ValueError:
            return {}
    told = header.get("__metadata__") if isinstance(header, dict) else None
    return told if isinstance(told, dict) else {}
