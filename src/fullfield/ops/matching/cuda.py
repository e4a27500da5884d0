"""Matching on NVIDIA GPUs: cuBLAS multiplies some rows at a time, one kernel makes positions of them.

Products of 16-bit features stay float32, and so does what the forward pass computes of them. Their gradients are
rounded to the features' type before they are multiplied with the features.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._launching import CODES, parse_structures
from fullfield.ops.matching.protocol import HALVES, MatchingRequest, count_rows_per_chunk

LIBRARIES = LibraryCache("kernels of matching by a softmax")
_THREADS, _ALIGNED, _LOG2_E = 256, 8, 1.4426950408889634
_SOURCE = Path(__file__).with_name("positions.cu")
_Params = parse_structures(_launching.HALVES, _launching.VALUES, _SOURCE)["PositionParams"]
# Products of 16-bit features that stay float32: PyTorch 2.8.
_WIDENS = hasattr(torch.ops.aten.bmm, "dtype")


def explain_unsupported(request: MatchingRequest) -> str | None:
    """Return None if the kernels can serve the request, else the reason."""
    if request.dtype not in CODES:
        return "needs float32, float16 or bfloat16 features"
    if not request.eager:
        return "is not for traced or transformed code"
    return _launching.explain_unsupported_device(request.device)


@functools.cache
def generate_matching_source(dtype: torch.dtype) -> KernelSource:
    """Return the source of both kernels for features of ``dtype``."""
    text = _launching.read_source(_launching.HALVES, _launching.VALUES, _launching.WARPS, _SOURCE)
    return KernelSource.with_macros(text, IN=CODES[dtype])


def flatten_map_to_rows(fmap: Tensor, *, pad_rows: bool = False) -> Tensor:
    """Return the map as contiguous rows [B, N, C]; with ``pad_rows``, rows of zeros that no kernel counts follow."""
    flat = fmap.flatten(2).transpose(1, 2)
    lacking = -flat.shape[1] % _ALIGNED if pad_rows else 0
    return functional.pad(flat, (0, 0, 0, lacking)) if lacking else flat.contiguous()


def _multiply_matrices_to_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the products [B, N, M] of [B, N, C] and [B, C, M], always float32."""
    as_they_are = left.is_cuda and left.dtype in HALVES and _WIDENS
    if as_they_are and (left.dtype == torch.float16 or _launching.explain_missing_bfloat16(left.device) is None):
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


class _MatchingLauncher:
    """Parameters of all kernels of a call, and the stored rows of the matrix."""

    def __init__(
        self, query: Tensor, key: Tensor, sizes: tuple[tuple[int, int], tuple[int, int]], scale: float
    ) -> None:
        self.query, self.key = query, key
        self.batch, self.count = query.shape[:2]
        own, searched = sizes
        self.params = p = _Params()
        p.pixels, p.count, p.pitch = self.count, searched[0] * searched[1], key.shape[1]
        p.own_width, p.width = own[1], searched[1]
        p.sharpness, p.scale = scale * _LOG2_E, scale
        self.kernels = _launching.load_kernels(LIBRARIES, generate_matching_source(query.dtype), query.get_device())

    def list_row_chunks(self) -> list[slice]:
        """Return the rows that are in memory together."""
        each = count_rows_per_chunk(self.key)
        each -= each % 64 if each > 64 else 0
        return [slice(at, min(at + each, self.count)) for at in range(0, self.count, each)]

    def multiply_and_bind_chunk_rows(self, chunk: slice) -> Tensor:
        """Return the products of these rows [B, n, M] and pass them to the kernels."""
        product_rows = _multiply_matrices_to_float32(self.query[:, chunk], self.key.transpose(1, 2))
        self.params.products, self.params.begin = product_rows.data_ptr(), chunk.start
        self.params.rows = chunk.stop - chunk.start
        return product_rows

    def launch_kernel(self, name: str) -> None:
        self.kernels.launch(name, self.batch * self.params.rows, _THREADS, self.params)


def compute_flow_and_log_sums(
    query: Tensor,  # [B, N, C]
    key: Tensor,  # [B, M, C], padded
    sizes: tuple[tuple[int, int], tuple[int, int]],  # of the first map and of the second
    scale: float,
) -> tuple[Tensor, Tensor]:  # [B, 2, N] flow, [B, N] logarithms of the softmax's sums, for the gradients
    """Compute the matching in chunks of rows."""
    flow = query.new_empty((query.shape[0], 2, query.shape[1]), dtype=torch.float32)
    logarithms = query.new_empty(query.shape[:2], dtype=torch.float32)
    work = _MatchingLauncher(query, key, sizes, scale)
    work.params.flow, work.params.logarithms = flow.data_ptr(), logarithms.data_ptr()
    with torch.autocast(query.device.type, enabled=False):
        for chunk in work.list_row_chunks():
            product_rows = work.multiply_and_bind_chunk_rows(chunk)
            work.launch_kernel("positions")
            del product_rows
    return flow, logarithms


def compute_query_and_key_gradients(
    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor],  # query, key, flow, logarithms
    grad: Tensor,  # [B, 2, N]
    sizes: tuple[tuple[int, int], tuple[int, int]],
    scale: float,
) -> tuple[Tensor, Tensor]:  # [B, N, C], [B, M, C] float32
    """Return the gradients of queries and keys; the products are computed again."""
    query, key, flow, logarithms = saved_tensors
    grad = grad.contiguous()
    work = _MatchingLauncher(query, key, sizes, scale)
    p: Any = work.params
    p.flow, p.logarithms, p.grad = flow.data_ptr(), logarithms.data_ptr(), grad.data_ptr()
    unit = None
    if query.dtype == torch.float16:  # whose range a loss's small gradients would leave
        unit = grad.abs().amax()
        unit = torch.where(unit.isfinite() & (unit > 0), unit, 1.0)
        p.unit = unit.data_ptr()
    half = query.dtype in HALVES
    grad_query = query.new_empty(query.shape, dtype=torch.float32)
    grad_key = key.new_zeros(key.shape, dtype=torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        for chunk in work.list_row_chunks():
            product_rows = work.multiply_and_bind_chunk_rows(chunk)
            grad_rows = product_rows.new_empty(product_rows.shape, dtype=query.dtype) if half else product_rows
            p.grad_products = grad_rows.data_ptr()
            work.launch_kernel("gradient")
            del product_rows
            grad_query[:, chunk] = _multiply_matrices_to_float32(grad_rows, key)
            grad_key += _multiply_matrices_to_float32(grad_rows.transpose(1, 2), query[:, chunk])
    if unit is not None:
        grad_query *= unit
        grad_key *= unit
    return grad_query, grad_key
