"""The passes as CUDA kernels, compiled by NVRTC on the user's machine; convolutions through cuDNN."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fullfield._kernels.nvrtc import KernelSource, LibraryCache
from fullfield.ops import _launching
from fullfield.ops._fused.arguments import CELL_CHANNELS, FramePadding, ScaleAndShift, TargetSlice
from fullfield.ops._launching import CODES, FRAMES, LoadedKernels, get_address, parse_structures, read_source

LIBRARIES = LibraryCache("kernels of the networks")
LARGEST_FACTOR = 8
_MAX_FIELDS = 7  # channels whose gradients kernels give
_THREADS = 256
_FOLDER = Path(__file__).parent
_DECLARED = parse_structures(*(_FOLDER / name for name in ("passes.cu", "depthwise.cu", "convex.cu")))
_STRIP, _STRIP_ROWS = map(_DECLARED.evaluate_integer_sum, ("STRIP", "ROWS"))
_GRADIENT_PARAMS = parse_structures(_launching.CONVEX_CELLS, _FOLDER / "convex_gradients.cu")
_Gradients = _GRADIENT_PARAMS["ConvexGradientParams"]
GRADIENTS_FACTOR, _GRADIENTS_CELLS = (_GRADIENT_PARAMS.evaluate_integer_sum(name) for name in ("SIDE", "CELLS"))


# ---- sources


def _generate_source(file_name: str, **macros: int) -> KernelSource:
    return KernelSource.with_macros(
        read_source(_launching.HALVES, _launching.VALUES, _FOLDER / "common.cuh", _FOLDER / file_name), **macros
    )


@functools.cache
def generate_passes_source(dtype: torch.dtype) -> KernelSource:
    """Return the source of every pass but the next two, for activations of ``dtype``."""
    return _generate_source("passes.cu", IN=CODES[dtype])


@functools.cache
def generate_depthwise_source(dtype: torch.dtype, channels: int) -> KernelSource:
    """Return the source of both depthwise kernels for a multiple of 64 channels, at most 2048."""
    return _generate_source("depthwise.cu", IN=CODES[dtype], CHANNELS=channels)


@functools.cache
def generate_convex_source(dtype: torch.dtype, factor: int, channels_last: bool) -> KernelSource:
    """Return the source of ``convex`` for weights of ``dtype`` and a factor of 2 to 8."""
    return _generate_source("convex.cu", IN=CODES[dtype], FACTOR=factor, CLAST=channels_last)


@functools.cache
def generate_convex_gradients_source(dtype: torch.dtype, channels: int) -> KernelSource:
    """Return the source of ``convex_gradients`` for weights of ``dtype`` and a field of ``channels`` channels."""
    shared = (_launching.HALVES, _launching.VALUES, _launching.WARPS, _launching.CONVEX_CELLS)
    text = read_source(*shared, _FOLDER / "convex_gradients.cu")
    return KernelSource.with_macros(text, IN=CODES[dtype], CHANNELS=channels)


# ---- launching


def _load_kernels(source: KernelSource, like: Tensor) -> LoadedKernels:
    return _launching.load_kernels(LIBRARIES, source, like.get_device())


def _launch_pass(like: Tensor, name: str, threads_per_item: int, params: ctypes.Structure, batch_size: int = 1) -> None:
    _load_kernels(generate_passes_source(like.dtype), like).launch(
        name, -(-threads_per_item // _THREADS), _THREADS, params, grid_rows=batch_size
    )


def _count_vector_elements(dtype: torch.dtype) -> int:
    return 16 // dtype.itemsize


def _count_pixels(x: Tensor) -> int:
    return x.shape[0] * x.shape[1] * x.shape[2]


def _check_and_get_pixel_stride(x: Tensor) -> int:
    """Return the number of elements from one pixel of [B, h, w, C] to the next."""
    _, height, width, _ = x.shape
    step: int = x.stride(2)
    if x.stride(3) != 1 or x.stride(1) != width * step or (x.shape[0] > 1 and x.stride(0) != height * width * step):
        raise ValueError(f"expected a slice of channels of contiguous activations, got strides {x.stride()}")
    return step


def _require_contiguous(*tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"expected a contiguous tensor, got strides {tensor.stride()}")


# ---- the passes


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """Convolve with cuDNN, which chooses its algorithm by its own estimate.

    With ``relu`` it chooses by trial runs if ``torch.backends.cudnn.benchmark`` is set, because PyTorch's operator
    reads that switch.
    """
    image, pad, step = x.permute(0, 3, 1, 2), list(padding), [stride, stride]
    out: Tensor
    if relu:
        out = torch.ops.aten.cudnn_convolution_relu(image, weight, bias, step, pad, [1, 1], 1)
    else:
        out = torch.ops.aten.cudnn_convolution(image, weight, pad, step, [1, 1], 1, False, False, True)
        if bias is not None:
            out += bias[:, None, None]
    return out.permute(0, 2, 3, 1)


def rescale_and_pack_frames_into_2x2_cells(frame1: Tensor, frame2: Tensor, padding: FramePadding, out: Tensor) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.rescale_and_pack_frames_into_2x2_cells` does."""
    batch, rows, columns, channels = out.shape
    _require_contiguous(out)
    if channels != CELL_CHANNELS or (rows, columns) != (padding.height // 2 + 3, padding.width // 2 + 3):
        raise ValueError(f"expected cells of a {padding.height}×{padding.width} frame, got {list(out.shape)}")
    params = _DECLARED["CellsParams"]()
    for number, source in enumerate((frame1, frame2)):
        params.frames[number] = source.data_ptr()
        params.b[number], params.c[number], params.y[number], params.x[number] = source.stride()
    params.out, params.kind = out.data_ptr(), FRAMES[frame1.dtype]
    params.height, params.width = frame1.shape[-2:]
    params.top, params.left, params.padded_height, params.padded_width = padding
    params.cell_rows, params.cell_columns = rows, columns
    kernels = _load_kernels(generate_passes_source(out.dtype), out)
    kernels.launch("frames_to_cells", batch * rows, _THREADS, params, grid_rows=-(-columns // _THREADS))


def normalize_relu_add_relu_(
    y: Tensor, norm: ScaleAndShift, residual: Tensor | None = None, residual_norm: ScaleAndShift | None = None
) -> Tensor:
    """Run the pass as :func:`fullfield.ops._fused.reference.normalize_relu_add_relu_` does."""
    _require_contiguous(y, residual)
    batch, channels = y.shape[0], y.shape[3]
    params = _DECLARED["AffineParams"]()
    params.y, params.x = y.data_ptr(), get_address(residual)
    params.scale, params.shift = get_address(norm.scale), norm.shift.data_ptr()
    params.y_step = channels if norm.shift.ndim == 2 else 0
    if residual_norm is not None:
        params.x_scale, params.x_shift = get_address(residual_norm.scale), residual_norm.shift.data_ptr()
        params.x_step = channels if residual_norm.shift.ndim == 2 else 0
    params.item, params.channels = y[0].numel(), channels
    params.vectors = params.item // _count_vector_elements(y.dtype)
    _launch_pass(y, "affine", params.vectors, params, batch)
    return y


def compute_instance_norm_scale_and_shift(y: Tensor, epsilon: float) -> ScaleAndShift:
    """Run the pass as :func:`fullfield.ops._fused.reference.compute_instance_norm_scale_and_shift` does."""
    _require_contiguous(y)
    batch, height, width, channels = y.shape
    if channels // _count_vector_elements(y.dtype) > _THREADS:
        raise ValueError(f"y: expected at most {_THREADS * _count_vector_elements(y.dtype)} channels, got {channels}")
    processors = _launching.get_device_gpu_properties(y.device).processors
    chunk = max(256, -(-height * width // (8 * processors)))
    params = _DECLARED["MomentsParams"]()
    params.y, params.item, params.pixels, params.channels = y.data_ptr(), y[0].numel(), height * width, channels
    params.chunk, params.chunks, params.epsilon = chunk, -(-height * width // chunk), epsilon
    partial = torch.empty((batch, params.chunks, 2, channels), dtype=torch.float32, device=y.device)
    scale, shift = torch.empty((2, batch, channels), dtype=torch.float32, device=y.device)
    params.partial, params.scale, params.shift = partial.data_ptr(), scale.data_ptr(), shift.data_ptr()
    kernels = _load_kernels(generate_passes_source(y.dtype), y)
    kernels.launch("moments", params.chunks, _THREADS, params, grid_rows=batch)
    kernels.launch("moments_end", -(-channels // 32), 1024, params, grid_rows=batch)
    return ScaleAndShift(scale, shift)


def write_relu_and_flow_channels(
    source: Tensor,
    bias: Tensor | None,
    targets: Sequence[TargetSlice],
    coords_and_channel: tuple[Tensor, int] | None = None,
) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.write_relu_and_flow_channels` does."""
    _require_contiguous(source)
    channels = source.shape[3]
    params = _DECLARED["PackParams"]()
    params.from_, params.bias = source.data_ptr(), get_address(bias)
    params.targets = _check_and_build_targets(source, targets)
    params.pixels, params.channels = _count_pixels(source), channels
    if coords_and_channel is not None:
        _require_contiguous(coords_and_channel[0])
        params.coords, params.flow_channel = coords_and_channel[0].data_ptr(), coords_and_channel[1]
    _launch_pass(source, "pack", source.numel() // _count_vector_elements(source.dtype), params)


def write_flow_windows_from_coords(coords: Tensor, side: int, out: Tensor) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.write_flow_windows_from_coords` does."""
    _require_contiguous(coords, out)
    params = _DECLARED["PatchesParams"]()
    _, height, width, channels = out.shape
    params.coords, params.out = coords.data_ptr(), out.data_ptr()
    params.pixels, params.channels, params.side = _count_pixels(out), channels, side
    params.plane, params.width, params.height = height * width, width, height
    _launch_pass(out, "flow_patches", out.numel() // _count_vector_elements(out.dtype), params)


def _check_and_build_targets(like: Tensor, outputs: Sequence[TargetSlice]) -> Any:
    """Return the targets of a result [B, h, w, C]."""
    batch, height, width, channels = like.shape
    targets = _DECLARED["Targets"]()
    targets.plane, targets.width = height * width, width
    for number, target in enumerate(outputs):
        shape = (batch, width, height, channels) if target.transposed else (batch, height, width, channels)
        if target.slice.shape != shape:
            raise ValueError(f"expected a target {list(shape)}, got {list(target.slice.shape)}")
        targets.to[number], targets.ld[number] = target.slice.data_ptr(), _check_and_get_pixel_stride(target.slice)
        targets.transposed[number] = target.transposed
    return targets


def write_gru_reset_state(state: Tensor, zr: Tensor, zr_map: Tensor, target: TargetSlice) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.write_gru_reset_state` does."""
    _launch_gru_gate("gate_reset", state, zr, zr_map, None, None, [target])


def write_gru_updated_state(
    state: Tensor, zr: Tensor, zr_map: Tensor, q: Tensor, q_map: Tensor, targets: Sequence[TargetSlice]
) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.write_gru_updated_state` does."""
    _launch_gru_gate("gate_update", state, zr, zr_map, q, q_map, targets)


def _launch_gru_gate(
    name: str,
    state: Tensor,
    zr: Tensor,
    zr_map: Tensor,
    q: Tensor | None,
    q_map: Tensor | None,
    targets: Sequence[TargetSlice],
) -> None:
    _require_contiguous(zr, zr_map, q, q_map)
    params = _DECLARED["GateParams"]()
    params.targets = _check_and_build_targets(state, targets)
    params.zr, params.zr_map, params.q, params.q_map = (get_address(t) for t in (zr, zr_map, q, q_map))
    params.h, params.h_ld = state.data_ptr(), _check_and_get_pixel_stride(state)
    params.pixels, params.channels = _count_pixels(state), state.shape[3]
    _launch_pass(zr, name, state.numel() // _count_vector_elements(zr.dtype), params)


def add_3x3_taps_to_coords_(coords: Tensor, taps: Tensor, bias: Tensor) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.add_3x3_taps_to_coords_` does."""
    _require_contiguous(coords, taps)
    params = _DECLARED["StepParams"]()
    params.coords, params.taps, params.bias = coords.data_ptr(), taps.data_ptr(), bias.data_ptr()
    params.pixels, params.plane = _count_pixels(taps), taps.shape[1] * taps.shape[2]
    params.height, params.width, params.ld = taps.shape[1], taps.shape[2], taps.shape[3]
    _launch_pass(taps, "flow_step", params.pixels, params)


def gelu_(y: Tensor) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.gelu_` does."""
    _require_contiguous(y)
    params = _DECLARED["GeluParams"]()
    params.y, params.vectors = y.data_ptr(), y.numel() // _count_vector_elements(y.dtype)
    _launch_pass(y, "gelu", params.vectors, params)


def convolve_depthwise_and_normalize(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, out: Tensor) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.convolve_depthwise_and_normalize` does."""
    _require_contiguous(x, weight, bias, out)
    params = _DECLARED["DepthwiseParams"]()
    params.x, params.weight, params.bias, params.out = (t.data_ptr() for t in (x, weight, bias, out))
    params.epsilon = epsilon
    _launch_depthwise(x, "depthwise_norm", params)


def explain_depthwise_refusal(x: Tensor, weight: Tensor) -> str | None:
    """Return None if :func:`convolve_depthwise` serves x [B, C, H, W], weight [C, 1, side, side], else the reason."""
    channels, _, *sides = weight.shape
    if sides != [7, 7] or channels % 64 or channels > 2048:
        return f"needs filters of 7x7 for a multiple of 64 channels, 2048 at most, got {channels} of {sides}"
    if x.dtype not in CODES:
        return f"needs float32, float16 or bfloat16, got {x.dtype}"
    return _launching.explain_unsupported_device(x.device)


def convolve_depthwise(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Convolve ``x`` [B, H, W, C] depthwise with ``weight`` [49, C], float32, to ``out``, which is not ``x``."""
    _require_contiguous(x, weight, out)
    params = _DECLARED["DepthwiseParams"]()
    params.x, params.weight, params.out = (t.data_ptr() for t in (x, weight, out))
    if x.numel():
        _launch_depthwise(x, "depthwise", params)


def _launch_depthwise(x: Tensor, name: str, params: ctypes.Structure) -> None:
    """Launch a depthwise kernel: a block for a strip of each ``_STRIP_ROWS`` rows."""
    batch, height, width, channels = x.shape
    params.height, params.width = height, width
    kernels = _load_kernels(generate_depthwise_source(x.dtype, channels), x)
    blocks = batch * -(-height // _STRIP_ROWS)
    kernels.launch(name, blocks, channels // 2, params, grid_rows=-(-width // _STRIP))


def write_convex_upsampled_strip(
    field: Tensor,
    mask: Tensor,
    factor: int,
    out: Tensor,
    *,
    first_row: int = 0,
    origin: tuple[int, int] = (0, 0),
    gain: float = 1.0,
) -> None:
    """Run the pass as :func:`fullfield.ops._fused.reference.write_convex_upsampled_strip` does."""
    params = _DECLARED["ConvexParams"]()
    params.mask, params.field, params.out = mask.data_ptr(), field.data_ptr(), out.data_ptr()
    params.mask_b, params.mask_c, params.mask_y, params.mask_x = mask.stride()
    params.field_b, params.field_c, params.field_y, params.field_x = field.stride()
    params.out_b, params.out_c, params.out_y, step = out.stride()
    if step != 1:
        raise ValueError(f"expected neighbouring pixels to be neighbours in memory, got strides {out.stride()}")
    batch, params.channels, params.height, params.width = field.shape
    params.first_row, params.rows = first_row, mask.shape[2]
    params.top, params.left = origin
    params.out_height, params.out_width, params.gain = *out.shape[-2:], gain
    vector = _count_vector_elements(mask.dtype)
    aligned = not any(s % vector for s in (*mask.stride()[:1], *mask.stride()[2:])) and not mask.data_ptr() % 16
    source = generate_convex_source(mask.dtype, factor, mask.stride(1) == 1 and aligned)
    across = -(-params.width * factor // _THREADS)
    _load_kernels(source, mask).launch("convex", batch * params.rows, _THREADS, params, grid_rows=across)


def explain_convex_refusal(field: Tensor, mask: Tensor, factor: int) -> str | None:
    """Return None if :func:`write_convex_upsampled_strip` can do this, else the reason."""
    if mask.dtype not in CODES or field.dtype != torch.float32:
        return "needs a float32 field and float32, float16 or bfloat16 weights"
    if not 2 <= factor <= LARGEST_FACTOR:
        return f"needs a factor of 2 to {LARGEST_FACTOR}, got {factor}"
    return _launching.explain_unsupported_device(field.device)


def compute_convex_gradients(field: Tensor, mask: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of field [B, C, h, w] and mask [B, 576, h, w] from that of the result [B, C, 8h, 8w]."""
    batch, channels, height, width = field.shape
    cells = batch * height * width
    grad_mask, grad_field = torch.empty_like(mask), torch.empty_like(field, memory_format=torch.contiguous_format)
    if grad_mask.stride() != mask.stride():
        mask = mask.contiguous()
        grad_mask = torch.empty_like(mask)
    partial = field.new_empty((cells, -(-9 * channels // 32) * 32))
    field, grad = field.contiguous(), grad.contiguous()
    params = _Gradients()
    params.mask, params.field, params.grad = mask.data_ptr(), field.data_ptr(), grad.data_ptr()
    params.grad_mask, params.partial, params.grad_field = map(get_address, (grad_mask, partial, grad_field))
    params.mask_b, params.mask_c, params.mask_y, params.mask_x = mask.stride()
    params.batch, params.height, params.width = batch, height, width
    kernels = _load_kernels(generate_convex_gradients_source(mask.dtype, channels), mask)
    kernels.launch("convex_gradients", -(-cells // _GRADIENTS_CELLS), _THREADS, params)
    kernels.launch("convex_gather", -(-cells // _THREADS), _THREADS, params)
    return grad_field, grad_mask


def explain_convex_gradients_refusal(field: Tensor, mask: Tensor, factor: int) -> str | None:
    """Return None if :func:`compute_convex_gradients` can do this, else the reason."""
    if factor != GRADIENTS_FACTOR or not 1 <= field.shape[1] <= _MAX_FIELDS or not field.numel():
        return f"needs a factor of {GRADIENTS_FACTOR} and 1 to {_MAX_FIELDS} channels"
    return explain_convex_refusal(field, mask, factor)
