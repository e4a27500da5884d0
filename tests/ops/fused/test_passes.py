"""What networks do between convolutions: the definition against PyTorch's modules, and the kernels against it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from emulator import AMPERE, TURING, Emulator
from torch import Tensor
from torch.nn import functional

from fullfield.ops import _launching
from fullfield.ops._fused import cuda, reference
from fullfield.ops._fused.arguments import CELL_CHANNELS, FramePadding, ScaleAndShift, TargetSlice
from fullfield.ops._launching import GpuProperties

POISON = 7.0
gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def nchw(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def grid(batch: int, height: int, width: int) -> Tensor:
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((xs, ys)).float().expand(batch, 2, height, width)


# ---- the definition


def test_normalize_add_relu_equals_instance_norm() -> None:
    y, x = torch.randn(2, 2, 5, 6, 16)
    done = reference.normalize_relu_add_relu_(
        y.clone(),
        reference.compute_instance_norm_scale_and_shift(y, 1e-5),
        x,
        reference.compute_instance_norm_scale_and_shift(x, 1e-5),
    )
    both = functional.relu(functional.instance_norm(nchw(y))) + functional.instance_norm(nchw(x))
    torch.testing.assert_close(nchw(done), functional.relu(both))
    shift = torch.randn(16)
    torch.testing.assert_close(
        reference.normalize_relu_add_relu_(y.clone(), ScaleAndShift(None, shift), x), (x + (y + shift).relu()).relu()
    )


def test_gate_passes_equal_gru() -> None:
    state, q, q_map = torch.randn(3, 2, 4, 5, 8)
    zr, zr_map = torch.randn(2, 2, 4, 5, 16)
    update, reset = torch.sigmoid(zr + zr_map).chunk(2, 3)
    out = torch.full((2, 4, 5, 12), POISON)
    reference.write_gru_reset_state(state, zr, zr_map, TargetSlice(out[..., 4:]))
    torch.testing.assert_close(out[..., 4:], reset * state)
    assert (out[..., :4] == POISON).all()
    transposed = torch.full((2, 5, 4, 8), POISON)
    want = (1 - update) * state + update * torch.tanh(q + q_map)
    reference.write_gru_updated_state(state, zr, zr_map, q, q_map, [TargetSlice(state), TargetSlice(transposed, True)])
    torch.testing.assert_close(state, want)
    torch.testing.assert_close(transposed, want.transpose(1, 2))


def test_flow_window_passes_equal_convolutions() -> None:
    coords = grid(2, 9, 11) + 3 * torch.randn(2, 2, 9, 11)
    flow = coords - grid(2, 9, 11)
    windows = torch.full((2, 9, 11, 104), POISON)
    reference.write_flow_windows_from_coords(coords, 7, windows)
    assert (windows[..., 98:] == 0).all()
    weight = torch.randn(5, 2, 7, 7)
    done = windows[..., :98] @ weight.permute(0, 2, 3, 1).flatten(1).t()
    torch.testing.assert_close(nchw(done), functional.conv2d(flow, weight, padding=3), atol=1e-4, rtol=1e-4)

    hidden, head, bias = torch.randn(2, 9, 11, 6), torch.randn(2, 6, 3, 3), torch.randn(2)
    taps = torch.cat((hidden @ head.permute(2, 3, 0, 1).reshape(18, 6).t(), torch.full((2, 9, 11, 6), POISON)), 3)
    stepped = coords.clone()
    reference.add_3x3_taps_to_coords_(stepped, taps, bias)
    step = functional.conv2d(nchw(hidden), head, bias, padding=1)
    torch.testing.assert_close(stepped, coords + step, atol=1e-4, rtol=1e-4)


def test_write_relu_and_flow_fills_flow_channels() -> None:
    coords = grid(1, 3, 4) + torch.randn(1, 2, 3, 4)
    source, bias = torch.randn(1, 3, 4, 8), torch.randn(8)
    first, second = torch.full((1, 3, 4, 12), POISON), torch.full((1, 4, 3, 8), POISON)
    reference.write_relu_and_flow_channels(
        source, bias, [TargetSlice(first[..., 4:]), TargetSlice(second, True)], (coords, 6)
    )
    torch.testing.assert_close(first[..., 4:10], (source + bias).relu()[..., :6])
    torch.testing.assert_close(nchw(first[..., 10:]), coords - grid(1, 3, 4))
    assert torch.equal(second, first[..., 4:].transpose(1, 2))
    assert (first[..., :4] == POISON).all()


def test_convolve_depthwise_and_norm_equals_pytorch() -> None:
    x, weight, bias = torch.randn(2, 5, 6, 64), torch.randn(49, 64), torch.randn(64)
    out = torch.full_like(x, POISON)
    reference.convolve_depthwise_and_normalize(x, weight, bias, 1e-6, out)
    conv = torch.nn.Conv2d(64, 64, 7, padding=3, groups=64)
    conv.load_state_dict({"weight": weight.t().reshape(64, 1, 7, 7), "bias": bias})
    want = functional.layer_norm(conv(nchw(x)).permute(0, 2, 3, 1), (64,), eps=1e-6)
    torch.testing.assert_close(out, want.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_frame_cells_contain_both_frames_and_border(dtype: torch.dtype) -> None:
    scale = 255 if dtype == torch.uint8 else 1
    first, second = (torch.rand(2, 2, 3, 13, 10) * scale).to(dtype)
    out = torch.full((2, 11, 11, CELL_CHANNELS), POISON)
    reference.rescale_and_pack_frames_into_2x2_cells(first, second, FramePadding(1, 3, 16, 16), out)
    for number, frame in enumerate((first, second)):
        padded = functional.pad(2 * frame.float() / scale - 1, (3, 3, 1, 2), mode="replicate")
        cells = functional.pixel_unshuffle(padded, 2).unflatten(1, (3, 2, 2)).permute(0, 4, 5, 2, 3, 1).flatten(3)
        torch.testing.assert_close(out[:, 2:10, 2:10, 12 * number : 12 * number + 12], cells)
    inner = torch.zeros(11, 11, dtype=torch.bool)
    inner[2:10, 2:10] = True
    assert (out[:, ~inner] == 0).all()
    assert (out[..., 24:] == 0).all()


def by_unfold(field: Tensor, mask: Tensor, factor: int) -> Tensor:
    batch, channels, height, width = field.shape
    weights = mask.view(batch, 1, 9, factor, factor, height, width).softmax(2)
    windows = functional.unfold(field, 3, padding=1).view(batch, channels, 9, 1, 1, height, width)
    return (weights * windows).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, factor * height, -1)


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 8])
def test_convex_upsampling_in_strips_equals_whole(factor: int) -> None:
    field, mask = torch.randn(2, 3, 7, 6), 3 * torch.randn(2, 9 * factor * factor, 7, 6)
    whole = by_unfold(field, mask, factor)
    torch.testing.assert_close(reference.convex_upsample(field, mask, factor), whole)
    out = torch.full((2, 3, 7 * factor - 3, 6 * factor - 2), POISON)
    for first, last in ((0, 2), (2, 3), (3, 7)):
        reference.write_convex_upsampled_strip(
            field, mask[:, :, first:last], factor, out, first_row=first, origin=(2, 1), gain=4
        )
    torch.testing.assert_close(out, 4 * whole[:, :, 2:-1, 1:-1])


# ---- the kernels

DTYPES = {torch.float16: 4e-5, torch.bfloat16: 3e-4, torch.float32: 2e-6}


def off(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right.double()).norm() / right.double().norm())


NAMES = ["norms", "pack", "windows", "gates", "step", "gelu", "depthwise", "cells", "convex"]


@gpu
@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_fused_kernels_on_gpu_equal_reference(name: str, dtype: torch.dtype) -> None:
    compare(name, dtype, torch.device("cuda"), (21, 37, 96), (300, 500), 384)


EMULATED = [(name, (torch.float32, torch.float16)[number % 2], AMPERE) for number, name in enumerate(NAMES)]
EMULATED += [("norms", torch.float16, AMPERE), ("norms", torch.bfloat16, TURING), ("pack", torch.float16, TURING)]


@pytest.mark.parametrize(("name", "dtype", "device"), EMULATED, ids=str)
def test_fused_kernels_emulated_equal_reference(
    name: str, dtype: torch.dtype, device: GpuProperties, emulate: Callable[..., Emulator]
) -> None:
    emulate(cuda, gpu=device, serve=True)
    compare(name, dtype, torch.device("cpu"), (7, 9, 64), (17, 40), 64)


def compare(
    name: str, dtype: torch.dtype, device: torch.device, size: tuple[int, int, int], area: tuple[int, int], widest: int
) -> None:
    """The kernels of a pass with the reference; ``area``: of what has moments, ``widest``: channels."""
    batch, (height, width, channels) = 2, size

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    def poisoned(*shape: int) -> Tensor:
        return torch.full(shape, POISON, device=device, dtype=dtype)

    y, x, q, q_map = (normal(batch, height, width, channels).to(dtype) for _ in range(4))
    zr, zr_map = (normal(batch, height, width, 2 * channels).to(dtype) for _ in range(2))
    scale, shift, taps = normal(channels), normal(channels), normal(batch, height, width, 24).to(dtype)
    large = (3 * normal(1, *area, 64) + 1).to(dtype)
    coords = grid(batch, height, width).to(device) + 5 * normal(batch, 2, height, width)
    wide, filters, offsets = normal(batch, height, width, widest).to(dtype), normal(49, widest), normal(widest)
    rows, columns = 4 * height + 15, 3 * width + 22
    frames = torch.rand(2, batch, 3, rows, columns, device=device)
    field, mask = 10 * normal(batch, 2, height, width), (3 * normal(batch, 576, height, width)).to(dtype)

    def norms(m: ModuleType) -> list[Tensor]:
        plainly = m.normalize_relu_add_relu_(y.clone(), ScaleAndShift(None, shift))
        scaled = m.normalize_relu_add_relu_(y.clone(), ScaleAndShift(scale, shift), x)
        instance = m.normalize_relu_add_relu_(
            y.clone(),
            m.compute_instance_norm_scale_and_shift(y, 1e-5),
            x,
            m.compute_instance_norm_scale_and_shift(x, 1e-5),
        )
        return [plainly, scaled, instance, *m.compute_instance_norm_scale_and_shift(large, 1e-5)]

    def pack(m: ModuleType) -> list[Tensor]:
        first, second = poisoned(batch, height, width, channels + 32), poisoned(batch, width, height, channels + 16)
        m.write_relu_and_flow_channels(
            y, shift, [TargetSlice(first[..., 32:]), TargetSlice(second[..., 8:-8], True)], (coords, channels - 2)
        )
        third = poisoned(batch, height, width, channels + 32)
        m.write_relu_and_flow_channels(y, None, [TargetSlice(third[..., :channels])])
        return [first, second, third]

    def windows(m: ModuleType) -> list[Tensor]:
        out = poisoned(batch, height, width, 104)
        m.write_flow_windows_from_coords(coords, 7, out)
        return [out]

    def gates(m: ModuleType) -> list[Tensor]:
        joint, reset = torch.cat((y, x), 3), poisoned(batch, height, width, 2 * channels)
        state, transposed = joint[..., :channels], poisoned(batch, width, height, channels)
        m.write_gru_reset_state(state, zr, zr_map, TargetSlice(reset[..., channels:]))
        m.write_gru_updated_state(state, zr, zr_map, q, q_map, [TargetSlice(state), TargetSlice(transposed, True)])
        return [joint, reset, transposed]

    def step(m: ModuleType) -> list[Tensor]:
        stepped = coords.clone()
        m.add_3x3_taps_to_coords_(stepped, taps, shift[:2].contiguous())
        return [stepped]

    def gelu(m: ModuleType) -> list[Tensor]:
        values = 3 * y
        m.gelu_(values)
        return [values]

    def depthwise(m: ModuleType) -> list[Tensor]:
        out = poisoned(*wide.shape)
        m.convolve_depthwise_and_normalize(wide, filters, offsets, 1e-6, out)
        return [out]

    def cells(m: ModuleType) -> list[Tensor]:
        found = []
        for kind in (torch.float32, torch.float16, torch.uint8):
            first, second = (frames * (255 if kind == torch.uint8 else 1)).to(kind)
            frame = FramePadding(2, 1, (rows + 5) // 2 * 2, (columns + 3) // 2 * 2)
            out = poisoned(batch, frame.height // 2 + 3, frame.width // 2 + 3, CELL_CHANNELS)
            m.rescale_and_pack_frames_into_2x2_cells(
                first, second.contiguous(memory_format=torch.channels_last), frame, out
            )
            found.append(out)
        return found

    def convex(m: ModuleType) -> list[Tensor]:
        found = []
        for factor in (8, 4, 3):
            for layout in (torch.contiguous_format, torch.channels_last):
                weights = mask[:, : 9 * factor * factor].contiguous(memory_format=layout)
                out = torch.full((batch, 2, height * factor - 3, width * factor - 3), POISON, device=device)
                m.write_convex_upsampled_strip(
                    field, weights[:, :, 2:6], factor, out, first_row=2, origin=(1, 2), gain=8.0
                )
                found.append(out)
        return found

    work: dict[str, Callable[[ModuleType], list[Tensor]]] = {
        f.__name__: f for f in (norms, pack, windows, gates, step, gelu, depthwise, cells, convex)
    }
    for got, right in zip(work[name](cuda), work[name](reference), strict=True):
        assert off(got, right) <= DTYPES[dtype]


@gpu
@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_fused_kernels_keep_nonfinite_values(bad: float, dtype: torch.dtype) -> None:
    def values(channels: int) -> Tensor:
        x = torch.randn(1, 9, 11, channels, device="cuda").to(dtype)
        x[0, 4, 5, 3] = bad
        return x

    def all_of(m: ModuleType) -> list[Tensor]:
        torch.manual_seed(0)
        y, x, state, zr = values(16), torch.randn(1, 9, 11, 16, device="cuda").to(dtype), values(16), values(32)
        still = torch.zeros_like(zr), torch.zeros_like(x)
        out = [torch.empty_like(y) for _ in range(4)]
        m.write_relu_and_flow_channels(y, torch.zeros(16, device="cuda"), [TargetSlice(out[0])])
        m.write_gru_reset_state(state, zr, still[0], TargetSlice(out[1]))
        m.write_gru_updated_state(state, zr, still[0], x, still[1], [TargetSlice(out[2])])
        m.write_gru_updated_state(x, zr, still[0], y, still[1], [TargetSlice(out[3])])
        norm = ScaleAndShift(None, torch.zeros(16, device="cuda"))
        done = [
            m.normalize_relu_add_relu_(y.clone(), norm),
            m.normalize_relu_add_relu_(x.clone(), norm, y),
            m.normalize_relu_add_relu_(y.clone(), m.compute_instance_norm_scale_and_shift(y, 1e-5)),
        ]
        active, coords, wide = (
            y.clone(),
            torch.zeros(1, 2, 9, 11, device="cuda"),
            torch.empty(1, 9, 11, 64, device="cuda"),
        )
        m.gelu_(active)
        m.add_3x3_taps_to_coords_(coords, values(24), torch.zeros(2, device="cuda"))
        wide = wide.to(dtype)
        m.convolve_depthwise_and_normalize(
            values(64), torch.ones(49, 64, device="cuda"), torch.zeros(64, device="cuda"), 1e-6, wide
        )
        fine = torch.zeros(1, 2, 18, 22, device="cuda")
        m.write_convex_upsampled_strip(torch.randn(1, 2, 9, 11, device="cuda"), values(36).permute(0, 3, 1, 2), 2, fine)
        return [*out, *done, active, coords, wide, fine]

    for number, (got, right) in enumerate(zip(all_of(cuda), all_of(reference), strict=True)):
        assert torch.equal(got.isfinite(), right.isfinite()), number


@gpu
@needs_cuda
def test_rectified_convolutions_overflow_to_infinity() -> None:
    """What they make of NaN is left open: fullfield.models.prepared.shared.compute_nan_guard."""
    from fullfield.models.prepared.shared import multiply_relu

    x = torch.rand(1, 16, 24, 64, device="cuda").half()
    x[0, 7, 9] = 60000.0
    weight, bias = torch.rand(64, 64, 3, 3, device="cuda").half(), torch.rand(64, device="cuda").half()
    done = cuda.convolve(x, weight.contiguous(memory_format=torch.channels_last), bias, relu=True, padding=(1, 1))
    assert bool(done[0, 6:9, 8:11].isposinf().all())
    assert int(done.isfinite().sum()) == done.numel() - 9 * 64
    rows = x.flatten(0, 2)
    out = multiply_relu(bias, rows, weight[:, :, 0, 0].t().contiguous(), torch.empty_like(rows))
    assert torch.equal(out.isposinf().all(1), rows[:, 0] == 60000)


@gpu
@needs_cuda
def test_fused_kernels_refuse_unsupported_layouts() -> None:
    x = torch.zeros(1, 4, 6, 16, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="contiguous"):
        cuda.normalize_relu_add_relu_(x[..., :8], ScaleAndShift(None, torch.zeros(8, device="cuda")))
    with pytest.raises(ValueError, match="slice of channels"):
        cuda.write_relu_and_flow_channels(x[:, :, :3].contiguous(), None, [TargetSlice(x[:, :, :3])])
    with pytest.raises(ValueError, match="expected a target"):
        cuda.write_relu_and_flow_channels(x, None, [TargetSlice(x, True)])


def test_fused_kernels_launch_expected_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []

    class LoadedKernels:
        def launch(self, name: str, blocks: int, threads: int, _params: object, grid_rows: int = 1) -> None:
            launched.append((name, blocks, threads, grid_rows))

    monkeypatch.setattr(_launching, "load_kernels", lambda *_: LoadedKernels())
    x = torch.zeros(2, 20, 30, 16)
    cuda.gelu_(x)
    cuda.normalize_relu_add_relu_(x, ScaleAndShift(None, torch.zeros(16)))
    wide, row = torch.zeros(2, 20, 30, 64), torch.zeros(64)
    cuda.convolve_depthwise_and_normalize(wide, row, row, 1e-5, wide)
    assert launched == [("gelu", 19, 256, 1), ("affine", 10, 256, 2), ("depthwise_norm", 20, 32, 4)]


def test_fused_kernels_explain_refusals() -> None:
    field, mask = torch.zeros(1, 2, 4, 4), torch.zeros(1, 9 * 81, 4, 4)
    assert cuda.explain_convex_refusal(field, mask, 8) == "runs on NVIDIA GPUs, the tensors are on cpu"
    assert "factor of 2 to 8" in str(cuda.explain_convex_refusal(field, mask, 9))
    assert "float32 field" in str(cuda.explain_convex_refusal(field.double(), mask, 8))
