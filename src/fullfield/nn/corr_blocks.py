"""The lookup under the names and signatures that networks already call: paste one in place of the network's own.

Each class computes what the class it replaces computes, by :class:`fullfield.nn.CorrelationPyramid`: in memory linear
in pixels, exact for sizes on which the original fails or gives NaN (a level of side one, levels that pool to nothing),
differentiable in features and coordinates. Coordinates of other dtypes are converted to float32.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield.nn.correlation import CorrelationPyramid
from fullfield.ops.correlation.arguments import check_features, check_window
from fullfield.ops.correlation.dilated import dilated_lookup
from fullfield.ops.correlation.pyramid import pool


def _positions(coords: Tensor, features: torch.dtype) -> Tensor:
    """Coordinates as the lookup of such features takes them."""
    _check.require(isinstance(coords, Tensor), "coords", "a tensor [B, 2, H1, W1]", coords)
    exact = coords.dtype == torch.float64 and features == torch.float64
    return coords if exact or coords.dtype == torch.float32 else coords.float()


class RAFTCorrBlock:
    """RAFT's ``CorrBlock`` and its ``AlternateCorrBlock``.

    Args:
        fmap1: [B, C, H1, W1].
        fmap2: [B, C, H2, W2] of the same dtype.
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`.
        out_dtype: of the result; RAFT's block always returns float32.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self,
        fmap1: Tensor,
        fmap2: Tensor,
        num_levels: int = 4,
        radius: int = 4,
        *,
        backend: str | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_levels = num_levels
        self.radius = radius
        self._pyramid = CorrelationPyramid(fmap1, fmap2, num_levels, radius, backend=backend, out_dtype=out_dtype)
        self._dtype = fmap1.dtype

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H1, W1], (x, y) in pixels of fmap2
    ) -> Tensor:  # [B, num_levels·(2·radius+1)², H1, W1] float32
        """Look up around ``coords``."""
        return self._pyramid(_positions(coords, self._dtype))


class SEARAFTArguments(Protocol):
    """What SEA-RAFT's block reads of the network's arguments."""

    corr_levels: int
    corr_radius: int


class SEARAFTCorrBlock(RAFTCorrBlock):
    """SEA-RAFT's ``CorrBlock``: RAFT's, and a dilation that scales the offsets of every pixel's taps.

    SEA-RAFT itself always passes ones. Whether they are is read from the tensor, once while it stays the same (a tensor
    made under ``torch.inference_mode``: in every lookup). On a GPU that waits for the device, and while a CUDA graph is
    captured it cannot be done: pass None there. Any other dilation is computed by
    :mod:`fullfield.ops.correlation.dilated`: exact and linear in memory, but many times slower.

    Args:
        fmap1: [B, C, H1, W1].
        fmap2: [B, C, H2, W2] of the same dtype.
        args: anything with ``corr_levels`` and ``corr_radius``.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(self, fmap1: Tensor, fmap2: Tensor, args: SEARAFTArguments, *, backend: str | None = None) -> None:
        super().__init__(fmap1, fmap2, args.corr_levels, args.corr_radius, backend=backend)
        self._fmap1, self._fmap2 = fmap1, fmap2
        self._ones: tuple[weakref.ref[Tensor], int] | None = None

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H1, W1]
        dilation: Tensor | None = None,  # [B, 1, H1, W1]
    ) -> Tensor:  # [B, corr_levels·(2·corr_radius+1)², H1, W1] float32
        """Look up around ``coords``; tap (dx, dy) of a level lies dilation · (dx, dy) of its pixels away."""
        if dilation is None:
            return super().__call__(coords)
        batch, _, height, width = self._fmap1.shape
        _check.tensor(dilation, "dilation", (batch, 1, height, width), device=self._fmap1.device)
        if self._is_one(dilation):
            return super().__call__(coords)
        at = _positions(coords, self._dtype)
        _check.tensor(at, "coords", (batch, 2, height, width), device=self._fmap1.device)
        maps = pool(self._fmap2, self.num_levels)
        return dilated_lookup(self._fmap1, maps, at, dilation, self.radius).float()

    def _is_one(self, dilation: Tensor) -> bool:
        if dilation.requires_grad:
            return False
        if torch.compiler.is_compiling():
            return bool((dilation == 1).all())
        counted = not dilation.is_inference()  # changes of inference tensors are not
        if counted and self._ones is not None and self._ones[0]() is dilation and self._ones[1] == dilation._version:
            return True
        if dilation.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _check.InputError("dilation: expected None while a CUDA graph is captured, got a tensor")
        one = bool((dilation == 1).all())
        if not counted:
            return one
        self._ones = (weakref.ref(dilation), dilation._version) if one else None
        return one


class TorchvisionCorrBlock(nn.Module):
    """The block of torchvision's RAFT: ``model.corr_block = TorchvisionCorrBlock(num_levels=4, radius=4)``.

    Holds the present pair from ``build_pyramid`` on, as the original does; copies and pickles of the module leave it
    out. Maps that torchvision refuses as too small, or as of two sizes, are served.

    Args:
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`.
    """

    def __init__(self, *, num_levels: int = 4, radius: int = 4, backend: str | None = None) -> None:
        super().__init__()
        self.num_levels = num_levels
        self.radius = radius
        self.backend = backend
        self.out_channels = num_levels * (2 * radius + 1) ** 2
        self._pair: tuple[CorrelationPyramid, torch.dtype] | None = None

    def build_pyramid(
        self,
        fmap1: Tensor,  # [B, C, H1, W1]
        fmap2: Tensor,  # [B, C, H2, W2]
    ) -> None:
        """Prepare a pair."""
        pyramid = CorrelationPyramid(fmap1, fmap2, self.num_levels, self.radius, backend=self.backend)
        self._pair = (pyramid, fmap1.dtype)

    def index_pyramid(
        self,
        centroids_coords: Tensor,  # [B, 2, H1, W1]
    ) -> Tensor:  # [B, out_channels, H1, W1] float32 (float64 for float64 features)
        """Look up around the coordinates."""
        if self._pair is None:
            raise RuntimeError("index_pyramid: build_pyramid has to come first")
        pyramid, dtype = self._pair
        return pyramid(_positions(centroids_coords, dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pair": None}


class DroidCorrBlock:
    """DROID-SLAM's ``CorrBlock``: many pairs at a time, to which pairs are added and from which they are taken.

    Keeps the features of its pairs instead of their volumes. As there, products are divided by 16 and not by √C, the
    result has the dtype that a matrix product would have (the features', or autocast's), and the coordinates get no
    gradient.

    Args:
        fmap1: [B, N, C, H1, W1], N pairs.
        fmap2: [B, N, C, H2, W2] of the same dtype.
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 3, *, backend: str | None = None
    ) -> None:
        for name, fmap in (("fmap1", fmap1), ("fmap2", fmap2)):
            _check.tensor(fmap, name, ("B", "N", "C", "H", "W"))
        self.num_levels = num_levels
        self.radius = radius
        self._backend = backend
        self._dtype = _product_dtype(fmap1)
        self._fmap1, self._fmap2 = fmap1.flatten(0, 1), fmap2.flatten(0, 1)
        check_window(num_levels, radius)
        check_features(self._fmap1, [self._fmap2], ["fmap2"])
        self._pyramid: CorrelationPyramid | None = None  # made by the first lookup of the present pairs

    def _prepared(self) -> CorrelationPyramid:
        if self._pyramid is None:
            self._pyramid = CorrelationPyramid(
                self._fmap1, self._fmap2, self.num_levels, self.radius, backend=self._backend, out_dtype=self._dtype
            )
        return self._pyramid

    def __call__(
        self,
        coords: Tensor,  # [B, N, H1, W1, 2], (x, y)
    ) -> Tensor:  # [B, N, num_levels·(2·radius+1)², H1, W1]
        """Look up around ``coords``; B·N is the number of pairs."""
        _check.tensor(coords, "coords", ("B", "N", *self._fmap1.shape[2:], 2))
        pairs = coords.shape[0] * coords.shape[1]
        _check.require(pairs == len(self._fmap1), "coords", f"positions of {len(self._fmap1)} pairs", coords)
        at = _positions(coords.detach(), self._fmap1.dtype).flatten(0, 1).permute(0, 3, 1, 2)
        out = self._prepared()(at)
        scale = self._fmap1.shape[1] ** 0.5 / 16
        return torch.unflatten(out if scale == 1 else out * scale, 0, coords.shape[:2])

    def cat(self, other: DroidCorrBlock) -> DroidCorrBlock:
        """Add the pairs of another block behind these; changes this block and returns it."""
        same = (other.num_levels, other.radius) == (self.num_levels, self.radius)
        _check.require(
            same,
            "other",
            f"a block of {self.num_levels} levels and radius {self.radius}",
            f"{other.num_levels} levels and radius {other.radius}",
        )
        self._fmap1 = torch.cat((self._fmap1, other._fmap1))
        self._fmap2 = torch.cat((self._fmap2, other._fmap2))
        self._pyramid = None
        return self

    def __getitem__(self, index: Any) -> DroidCorrBlock:
        """Keep these pairs only: a mask or numbers; changes this block and returns it."""
        self._fmap1, self._fmap2 = self._fmap1[index], self._fmap2[index]
        self._pyramid = None
        return self


def _product_dtype(fmap: Tensor) -> torch.dtype:
    """What a matrix product of such tensors has here."""
    kind = fmap.device.type
    if fmap.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return fmap.dtype
    return torch.get_autocast_dtype(kind)


def _grid(like: Tensor) -> Tensor:
    """Positions [1, 2, H, W] of the pixels of a map, float32."""
    height, width = like.shape[-2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=like.device), torch.arange(width, device=like.device), indexing="ij"
    )
    return torch.stack((x, y)).float()[None]


def local_correlation_with_flow(
    feature0: Tensor,  # [B, C, H, W]
    feature1: Tensor,  # [B, C, H, W]
    flow: Tensor | float,  # [B, 2, H, W] pixels, or 0.0
    local_radius: int,
    padding_mode: str = "zeros",
    dilation: int = 1,
) -> Tensor:  # [B, (2·local_radius+1)², H, W]; dy slow, dx fast; of the dtype of the features' product
    """unimatch's function of that name: a window of one level around where ``flow`` sends each pixel.

    Prepares the pair anew in every call. A dilation above one is computed by
    :mod:`fullfield.ops.correlation.dilated`.

    Raises:
        InputError: naming the argument that does not fit; ``padding_mode`` can only be "zeros".
    """
    _check.choice(padding_mode, "padding_mode", ("zeros",))
    _check.number(dilation, "dilation", integer=True, low=1)
    check_window(1, local_radius)
    check_features(feature0, [feature1], ["feature1"])
    coords = _grid(feature0).expand(feature0.shape[0], -1, -1, -1)
    if isinstance(flow, Tensor):
        _check.tensor(flow, "flow", (feature0.shape[0], 2, *feature0.shape[2:]), device=feature0.device)
        coords = coords + _positions(flow, feature0.dtype)
    else:
        _check.require(flow == 0, "flow", "a tensor [B, 2, H, W] or 0.0", flow)
    dtype = _product_dtype(feature0)
    if dilation == 1:
        found = CorrelationPyramid(feature0, feature1, 1, local_radius, out_dtype=dtype)(coords)
    else:
        steps = torch.full_like(coords[:, :1], dilation)
        found = dilated_lookup(feature0, [feature1], coords, steps, local_radius).to(dtype)
    side = 2 * local_radius + 1
    return torch.unflatten(found, 1, (side, side)).transpose(1, 2).flatten(1, 2)


class FeaturePair:
    """What :class:`MMFlowCorrelationPyramid` returns: two maps, prepared by the lookup that is called with them."""

    def __init__(self, feat1: Tensor, feat2: Tensor, num_levels: int) -> None:
        self.maps = (feat1, feat2)
        self.num_levels = num_levels
        self._pyramids: dict[int, CorrelationPyramid] = {}

    def prepared(self, radius: int) -> CorrelationPyramid:
        """The pair for lookups of this radius."""
        if radius not in self._pyramids:
            self._pyramids[radius] = CorrelationPyramid(*self.maps, self.num_levels, radius, out_dtype=torch.float32)
        return self._pyramids[radius]


class MMFlowCorrelationPyramid(nn.Module):
    """mmflow's ``CorrelationPyramid``, a decoder's ``corr_block``, without volumes: for :class:`MMFlowCorrLookup`."""

    def __init__(self, num_levels: int = 4) -> None:
        super().__init__()
        self.num_levels = num_levels

    def forward(self, feat1: Tensor, feat2: Tensor) -> FeaturePair:
        """[B, C, H, W] both."""
        return FeaturePair(feat1, feat2, self.num_levels)


class MMFlowCorrLookup(nn.Module):
    """mmflow's ``CorrLookup``, a decoder's ``corr_lookup``; its other modes of interpolation are refused.

    Raises:
        InputError: naming the option that it does not have.
    """

    def __init__(
        self, radius: int = 4, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = True
    ) -> None:
        super().__init__()
        _check.choice(mode, "mode", ("bilinear",))
        _check.choice(padding_mode, "padding_mode", ("zeros",))
        _check.choice(align_corners, "align_corners", (True,))
        self.r = radius

    def forward(
        self,
        corr_pyramid: FeaturePair,
        flow: Tensor,  # [B, 2, H, W] pixels
    ) -> Tensor:  # [B, num_levels·(2·radius+1)², H, W] float32
        """Look up where ``flow`` sends each pixel."""
        _check.require(
            isinstance(corr_pyramid, FeaturePair),
            "corr_pyramid",
            "what MMFlowCorrelationPyramid returns",
            type(corr_pyramid).__name__,
        )
        return corr_pyramid.prepared(self.r)(_grid(flow) + _positions(flow, corr_pyramid.maps[0].dtype))
