"""Descriptors from a network on native points, and their files.

The network sees a cloud in voxels, so the same weights serve a room and a street.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.io.files import atomic_path
from fullfield.models.state import fit, read_state, recognise
from fullfield.registration.descriptors import Floats, Ints, local_shapes, plane_normals
from fullfield.registration.learned_network import DescriptorConfig, DescriptorNetwork, surroundings
from fullfield.registration.scan import NORMAL_RADIUS, fpfh

MOST_BYTES = 10_000_000
"""Of a file of weights."""
SHAPE_RADIUS = 2.0  # voxels
SHIPPED = Path(__file__).with_name("descriptor.safetensors")
_SHA256 = "e69b0c8d887c4807f224bbfa86c0b035c29db552c8281470e775e4f20ac8bbea"  # of that file
_NAME = "descriptor"  # of the configuration in a file's header


def shipped() -> Path:
    """Return the file of weights in the package; InputError if it is not the published one."""
    if not SHIPPED.is_file() or hashlib.sha256(SHIPPED.read_bytes()).hexdigest() != _SHA256:
        raise InputError(f"{SHIPPED}: is not the file that was published; install fullfield again")
    return SHIPPED


class NetworkInput(NamedTuple):
    """Input of the network for one cloud."""

    points: Tensor  # [N, 3] float32, voxels
    normals: Tensor  # [N, 3] float32, of either sign
    features: Tensor  # [N, INPUTS] float32


def network_input(fine: Floats, rows: Ints, normals: Floats | None = None) -> NetworkInput:
    """Prepare the network's input from ``fine`` [F, 3], one point per half voxel.

    ``rows`` are the points to describe, ``normals`` their normals if known.
    """
    points = fine[rows]
    if normals is None:
        normals = plane_normals(fine, points, NORMAL_RADIUS)
    features = np.concatenate([local_shapes(fine, points, SHAPE_RADIUS), fpfh(points, normals)], 1)
    return NetworkInput(*(torch.from_numpy(part.astype(np.float32)) for part in (points, normals, features)))


class LearnedDescriptor:
    """Trained network that replaces FPFH: ``register(..., descriptor=LearnedDescriptor.shipped())``.

    Attributes:
        config: a :class:`DescriptorConfig`.
        model: a :class:`DescriptorNetwork`. Where it is, is where it runs.
    """

    def __init__(self, model: DescriptorNetwork) -> None:
        self.model = model
        self.config = model.config

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> LearnedDescriptor:
        """Load a file that :meth:`save` wrote.

        Raises:
            InputError: for any other file, with its name and, if known, its kind.
            OSError: if it cannot be read.
        """
        place = _check.device(device)
        state, name = read_state(path)
        stored = _header(Path(path)).get(_NAME)
        if stored is None:
            looks = recognise(state)
            raise InputError(
                f"{name}: expected a descriptor of points, as fullfield train descriptor writes it, got weights "
                + (f"of {looks}" if looks else "without its configuration")
            )
        try:
            values = json.loads(stored)
        except ValueError:
            values = None
        _check.require(isinstance(values, dict), name, "a descriptor's configuration in its header", repr(stored)[:60])
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

    @classmethod
    def shipped(cls, device: str | torch.device = "cpu") -> LearnedDescriptor:
        """Load the descriptor in the package; docs/registration.md describes its training.

        Raises:
            InputError: if the installed file is not the one that was published.
        """
        return cls.load(shipped(), device)

    def encoded(self) -> bytes:
        """Encode weights (float32, safetensors) and configuration; the same weights give the same bytes.

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
        """Write :meth:`encoded` to a file."""
        content = self.encoded()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)

    def __call__(self, fine: Floats, rows: Ints, normals: Floats | None = None) -> Floats:
        """Return features [N, C] of ``fine[rows]``.

        ``fine`` [F, 3] has one point per half voxel; ``normals`` [N, 3] are computed if absent.
        """
        device = next(self.model.parameters()).device
        given = NetworkInput(*(part.to(device) for part in network_input(fine, rows, normals)))
        self.model.eval()
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            found = self.model(given.features, surroundings(given.points, given.normals, gradient=False))
        described: Floats = found.cpu().double().numpy()
        return described


def _header(path: Path) -> dict[str, str]:
    """Return the header of a safetensors file; empty for other files."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except SafetensorError:
        return {}
