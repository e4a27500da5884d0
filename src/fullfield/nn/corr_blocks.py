"""Correlation blocks with the names and signatures that networks already call.

Each class computes what the class it replaces computes, with :class:`fullfield.nn.CorrelationPyramid`: in memory linear
in pixels, exact for sizes on which the original fails or gives NaN (a level of side one, levels that pool to nothing),
differentiable in features and coordinates. Coordinates of other dtypes are converted to float32.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fullfield import _check
from fullfield.nn.correlation import CorrelationPyramid
from fullfield.ops._positions import create_pixel_grid
from fullfield.ops.correlation.protocol import check_features, check_levels_and_radius


def _check_and_cast_coords(coords: Tensor, features_dtype: torch.dtype) -> Tensor:
    """Convert coordinates to the dtype that the lookup of such features takes."""
    _check.require(isinstance(coords, Tensor), "coords", "a tensor [B, 2, H1, W1]", coords)
    exact = coords.dtype == torch.float64 and features_dtype == torch.float64
    return coords if exact or coords.dtype == torch.float32 else coords.float()


class RAFTCorrBlock:
    """RAFT's ``CorrBlock`` and its ``AlternateCorrBlock``.

    Args:
        fmap1: [B, C, H1, W1].
        fmap2: [B, C, H2, W2] of the same dtype.
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`.
        out_dtype: dtype of the result; RAFT's block always returns float32.

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
        return self._pyramid(_check_and_cast_coords(coords, self._dtype))


class SEARAFTArguments(Protocol):
    """Arguments of the network that SEA-RAFT's block reads."""

    corr_levels: int
    corr_radius: int


class SEARAFTCorrBlock(RAFTCorrBlock):
    """SEA-RAFT's ``CorrBlock``: RAFT's, and a dilation, which must be ones as SEA-RAFT passes them.

    The block reads the dilation's values at the first lookup and when the tensor changes (a tensor created under
    ``torch.inference_mode``: in every lookup). On a GPU reading waits for the device, and while a CUDA graph is
    captured it is impossible: pass None there.

    Args:
        fmap1: [B, C, H1, W1].
        fmap2: [B, C, H2, W2] of the same dtype.
        args: anything with ``corr_levels`` and ``corr_radius``.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`.
        out_dtype: dtype of the result.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self,
        fmap1: Tensor,
        fmap2: Tensor,
        args: SEARAFTArguments,
        *,
        backend: str | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(fmap1, fmap2, args.corr_levels, args.corr_radius, backend=backend, out_dtype=out_dtype)
        self._dilation_shape = (fmap1.shape[0], 1, *fmap1.shape[2:])
        self._device = fmap1.device
        self._last_ones: tuple[Tensor, int] | None = None

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H1, W1]
        dilation: Tensor | None = None,  # [B, 1, H1, W1], ones
    ) -> Tensor:  # [B, corr_levels·(2·corr_radius+1)², H1, W1] float32
        """Look up around ``coords``."""
        if dilation is not None:
            self._check_dilation_is_ones(dilation)
        return super().__call__(coords)

    def _check_dilation_is_ones(self, dilation: Tensor) -> None:
        """Refuse a dilation other than ones without gradient."""
        _check.check_tensor(dilation, "dilation", self._dilation_shape, device=self._device)
        expected = "None or ones without gradient"
        _check.require(not dilation.requires_grad, "dilation", expected, "a tensor with gradient")
        # Changes of inference tensors are not counted, and compiled code has no counter.
        has_version = not torch.compiler.is_compiling() and not dilation.is_inference()
        if has_version and self._last_ones is not None:
            tensor, version = self._last_ones
            if tensor is dilation and version == dilation._version:
                return
        if dilation.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _check.InputError("dilation: expected None while a CUDA graph is captured, got a tensor")
        _check.require(bool((dilation == 1).all()), "dilation", expected, "other values")
        if has_version:
            self._last_ones = dilation, dilation._version


class TorchvisionCorrBlock(nn.Module):
    """Block of torchvision's RAFT: ``model.corr_block = TorchvisionCorrBlock(num_levels=4, radius=4)``.

    It holds the present pair from ``build_pyramid`` on, as the original does; copies and pickles of the module leave it
    out. It also accepts maps that torchvision refuses because they are too small or differ in size.

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
            raise RuntimeError("index_pyramid: call build_pyramid first")
        pyramid, dtype = self._pair
        return pyramid(_check_and_cast_coords(centroids_coords, dtype))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pair": None}


class DroidCorrBlock:
    """DROID-SLAM's ``CorrBlock``: many pairs at a time, which can be added and removed.

    It stores the features of its pairs instead of their volumes. As in the original, products are divided by 16 and not
    by √C, the result has the dtype that a matrix product would have (the features', or autocast's), and the coordinates
    get no gradient.

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
            _check.check_tensor(fmap, name, ("B", "N", "C", "H", "W"))
        self.num_levels = num_levels
        self.radius = radius
        self._backend = backend
        self._dtype = _get_matmul_dtype_under_autocast(fmap1)
        self._fmap1, self._fmap2 = fmap1.flatten(0, 1), fmap2.flatten(0, 1)
        check_levels_and_radius(num_levels, radius)
        check_features(self._fmap1, [self._fmap2], ["fmap2"])
        self._pyramid: CorrelationPyramid | None = None  # made by the first lookup of the present pairs

    def __call__(
        self,
        coords: Tensor,  # [B, N, H1, W1, 2], (x, y)
    ) -> Tensor:  # [B, N, num_levels·(2·radius+1)², H1, W1]
        """Look up around ``coords``; B·N is the number of pairs."""
        _check.check_tensor(coords, "coords", ("B", "N", *self._fmap1.shape[2:], 2))
        pairs = coords.shape[0] * coords.shape[1]
        _check.require(pairs == len(self._fmap1), "coords", f"positions of {len(self._fmap1)} pairs", coords)
        at = _check_and_cast_coords(coords.detach(), self._fmap1.dtype).flatten(0, 1).permute(0, 3, 1, 2)
        if self._pyramid is None:
            self._pyramid = CorrelationPyramid(
                self._fmap1, self._fmap2, self.num_levels, self.radius, backend=self._backend, out_dtype=self._dtype
            )
        out = self._pyramid(at)
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


def _get_matmul_dtype_under_autocast(fmap: Tensor) -> torch.dtype:
    """Return the dtype of a matrix product of such tensors under the current autocast."""
    kind = fmap.device.type
    if fmap.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return fmap.dtype
    return torch.get_autocast_dtype(kind)


def local_correlation_with_flow(
    feature0: Tensor,  # [B, C, H, W]
    feature1: Tensor,  # [B, C, H, W]
    flow: Tensor | float,  # [B, 2, H, W] pixels, or 0.0
    local_radius: int,
    padding_mode: str = "zeros",
    dilation: int = 1,
    *,
    backend: str | None = None,
) -> Tensor:  # [B, (2·local_radius+1)², H, W]; dy slow, dx fast; of the dtype of the features' product
    """Correlate each pixel with a window of one level around where ``flow`` sends it: unimatch's function.

    It prepares the pair in every call. ``backend`` is as for :class:`fullfield.nn.CorrelationPyramid`.

    Raises:
        InputError: naming the argument that does not fit; ``padding_mode`` can only be "zeros" and ``dilation`` 1.
    """
    _check.check_choice(padding_mode, "padding_mode", ("zeros",))
    _check.check_choice(dilation, "dilation", (1,))
    check_levels_and_radius(1, local_radius)
    check_features(feature0, [feature1], ["feature1"])
    coords = create_pixel_grid(feature0.shape[2:], feature0.device).expand(feature0.shape[0], -1, -1, -1)
    if isinstance(flow, Tensor):
        _check.check_tensor(flow, "flow", (feature0.shape[0], 2, *feature0.shape[2:]), device=feature0.device)
        coords = coords + _check_and_cast_coords(flow, feature0.dtype)
    else:
        _check.require(flow == 0, "flow", "a tensor [B, 2, H, W] or 0.0", flow)
    dtype = _get_matmul_dtype_under_autocast(feature0)
    windows = CorrelationPyramid(feature0, feature1, 1, local_radius, backend=backend, out_dtype=dtype)(coords)
    side = 2 * local_radius + 1
    return torch.unflatten(windows, 1, (side, side)).transpose(1, 2).flatten(1, 2)


class StereoCorrBlock:
    """RAFT-Stereo's ``CorrBlock1D``, ``PytorchAlternateCorrBlock1D`` and ``CorrBlockFast1D``, in linear memory.

    A pixel is compared with its own row of the second map, whatever coords[:, 1] says, and the levels are pooled along
    x only. They lie side by side in one map, with columns of zeros behind each. The block stores a row's products with
    that map if they take no more memory than two float32 feature vectors per pixel (W2 up to about C). Wider maps are
    looked up by :class:`fullfield.nn.CorrelationPyramid`, and the middle row of its windows is returned: on CUDA for
    whole images, elsewhere every row is a separate image. There positions on the coarser levels are rounded as float32
    numbers of twice their size: by 6e-5 pixels at W2 = 1000.

    Args:
        fmap1: [B, C, H, W1].
        fmap2: [B, C, H, W2] of the same dtype.
        num_levels: 1 to 8.
        radius: 1 to 8.
        backend: as for :class:`fullfield.nn.CorrelationPyramid`; a named one is used for narrow maps, too.

    Raises:
        InputError: naming the argument that does not fit.
    """

    def __init__(
        self, fmap1: Tensor, fmap2: Tensor, num_levels: int = 4, radius: int = 4, *, backend: str | None = None
    ) -> None:
        check_levels_and_radius(num_levels, radius)
        check_features(fmap1, [fmap2], ["fmap2"])
        _check.require(fmap1.shape[2] == fmap2.shape[2], "fmap2", f"{fmap1.shape[2]} rows, as fmap1 has", fmap2)
        self.num_levels = num_levels
        self.radius = radius
        self._size = (fmap1.shape[0], fmap1.shape[2], fmap1.shape[3])
        self._products: Tensor | None = None
        with torch.autocast(fmap1.device.type, enabled=False):
            joined, self._levels = _join_pooled_levels_and_list_spans(fmap2, num_levels, 2 * radius + 2)
            if backend is None and joined.shape[3] <= 2 * fmap1.shape[1]:
                self._by_row = True
                self._starts = torch.tensor([[start] for start, _ in self._levels], device=fmap1.device)
                self._products = _compute_scaled_row_products(
                    self._view_rows_as_images_if_by_row(fmap1), self._view_rows_as_images_if_by_row(joined)
                )
                return
        self._by_row = not fmap1.is_cuda or fmap1.dtype == torch.float64
        self._pyramid = CorrelationPyramid(
            self._view_rows_as_images_if_by_row(fmap1),
            self._view_rows_as_images_if_by_row(joined),
            1,
            radius,
            backend=backend,
            out_dtype=torch.float32,
        )

    def _view_rows_as_images_if_by_row(self, maps: Tensor) -> Tensor:
        """Return [B·H, C, 1, W] if every row is treated as an image, else ``maps``."""
        if not self._by_row:
            return maps
        return maps.transpose(1, 2).flatten(0, 1)[:, :, None]

    def __call__(
        self,
        coords: Tensor,  # [B, 2, H, W1] (or [B, 1, H, W1]), x first
    ) -> Tensor:  # [B, num_levels·(2·radius+1), H, W1] float32: level, dx
        """Look up around column coords[:, 0]."""
        batch, height, width = self._size
        _check.check_tensor(coords, "coords", (batch, "2", height, width))
        x = coords[:, :1].float()
        # Beyond these bounds all taps are outside, and so they are at them.
        x_levels = [
            (x / 2**level).clamp(-self.radius - 1, columns + self.radius)
            for level, (_, columns) in enumerate(self._levels)
        ]
        if self._products is not None:
            return self._blend_neighboring_products(self._products, torch.cat(x_levels, 1))
        y = x.new_zeros(1) if self._by_row else torch.arange(height, device=x.device, dtype=x.dtype)[:, None]
        taps = []
        for x_level, (start, _) in zip(x_levels, self._levels, strict=True):
            taps.append(self._look_up_middle_window_row(torch.cat((x_level + start, y.expand_as(x)), 1)))
        return torch.cat(taps, 1)

    def _look_up_middle_window_row(self, coords: Tensor) -> Tensor:
        """Return the middle row of the windows: [B, 2r+1, H, W1]."""
        out = self._pyramid(self._view_rows_as_images_if_by_row(coords))
        side = 2 * self.radius + 1
        taps = torch.unflatten(out, 1, (side, side))[:, :, self.radius]
        if not self._by_row:
            return taps
        return torch.unflatten(taps[:, :, 0], 0, self._size[:2]).transpose(1, 2)

    def _blend_neighboring_products(self, products: Tensor, x: Tensor) -> Tensor:
        """Blend neighbouring products at columns ``x`` [B, L, H, W1] of each level."""
        x = x.permute(0, 2, 3, 1).flatten(0, 1)[..., None]  # [B·H, W1, L, 1]
        x = torch.where(x.isnan(), -self.radius - 1.0, x)
        left = x.detach().floor()
        columns = left.long() + torch.arange(-self.radius, self.radius + 2, device=x.device)
        zero = products.shape[2] - 1
        columns = torch.where(columns < 0, zero, columns + self._starts)
        neighbors = torch.unflatten(products.gather(2, columns.flatten(2)), 2, columns.shape[2:])
        right = x - left
        taps = (1 - right) * neighbors[..., :-1] + right * neighbors[..., 1:]
        return torch.unflatten(taps.flatten(2), 0, self._size[:2]).permute(0, 3, 1, 2).contiguous().float()


def _join_pooled_levels_and_list_spans(
    fmap2: Tensor, levels: int, gap_columns: int
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Return all levels in one map, zeros in ``gap_columns`` behind each, and each level's first column and width."""
    zeros = fmap2.new_zeros((*fmap2.shape[:3], gap_columns))
    maps: list[Tensor] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for _ in range(levels):
        width = fmap2.shape[3]
        spans.append((start, width))
        maps += (fmap2, zeros)
        start += width + gap_columns
        fmap2 = functional.avg_pool2d(fmap2, (1, 2)) if width > 1 and fmap2.numel() else fmap2[..., : width // 2]
    return torch.cat(maps, 3), spans


def _compute_scaled_row_products(rows1: Tensor, rows2: Tensor) -> Tensor:
    """Return the products [n, W1, W2] of the rows [n, C, 1, W], divided by √C, at least in float32."""
    dtype = torch.float64 if rows1.dtype == torch.float64 else torch.float32
    first, second = (rows[:, :, 0].to(dtype) for rows in (rows1, rows2))
    return torch.bmm(first.transpose(1, 2) / rows1.shape[1] ** 0.5, second)
