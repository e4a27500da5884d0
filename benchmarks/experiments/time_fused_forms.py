"""Time the CUDA forms of the convex loss and of the layer norm on points against PyTorch's operators.

python -m benchmarks.experiments.time_fused_forms -o benchmarks/results/fused_forms_h200.json

PyTorch's operators run one after the other, and compiled by ``torch.compile``. Times are of the device, between two
events; memory is the most that one call allocates.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, relu

from benchmarks.experiments import build_program_parser
from benchmarks.harness import event_clock
from benchmarks.stored import state_conditions
from fullfield.io.files import write_atomically
from fullfield.ops.point_norm import point_norm
from fullfield.training.flow.convex_loss import convex_mixture_loss_and_error
from fullfield.training.flow.convex_loss.reference import compute_loss_and_error_sums

SOURCES = ("src/fullfield/training/flow/convex_loss/*.cu", "src/fullfield/ops/point_norm/*.cu")
REPEATS = 20
_WARM_UP = 5
_BATCH, _HEIGHT, _WIDTH = 32, 46, 62  # an eighth of 496x368
_POINTS = ((100_000, 64), (1_000_000, 64), (100_000, 512))  # points, channels


def time_call(call: Callable[[], object]) -> dict[str, Any]:
    """Return the median and the quartiles of a call's device time, ms, and the most memory it allocates, MiB."""
    for _ in range(_WARM_UP):
        call()
    times = [1e3 * event_clock(call) for _ in range(REPEATS)]
    quartiles = statistics.quantiles(times, n=4)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {
        "median_ms": statistics.median(times),
        "quartiles_ms": [quartiles[0], quartiles[2]],
        "repeats": REPEATS,
        "peak_MiB": round(peak),
    }


def time_convex_loss(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Time loss and gradients of a batch of one prediction, with up-sampling weights of ``dtype``."""
    fine = (8 * _HEIGHT, 8 * _WIDTH)
    field = torch.randn(_BATCH, 6, _HEIGHT, _WIDTH, device="cuda").requires_grad_()
    mask = torch.randn(_BATCH, 576, _HEIGHT, _WIDTH, device="cuda").to(dtype).requires_grad_()
    truth = torch.randn(_BATCH, 2, *fine, device="cuda")
    valid = torch.rand(_BATCH, *fine, device="cuda") > 0.1
    compiled = torch.compile(compute_loss_and_error_sums)

    def backpropagate(loss: Tensor) -> None:
        field.grad = mask.grad = None
        loss.backward()  # type: ignore[no-untyped-call]

    forms: dict[str, Callable[[], None]] = {
        "kernel": lambda: backpropagate(convex_mixture_loss_and_error(field, mask, truth, valid)[0]),
        "operators": lambda: backpropagate(compute_loss_and_error_sums(field, mask, truth, valid, 8, 0.0, 10.0)[0]),
        "compiled": lambda: backpropagate(compiled(field, mask, truth, valid, 8, 0.0, 10.0)[0]),
    }
    for name, call in forms.items():
        shape = f"{_BATCH}x{fine[1]}x{fine[0]}"
        yield {"what": f"convex loss {shape}, forward and backward", "dtype": str(dtype), "form": name} | time_call(
            call
        )


def time_point_norm(points: int, channels: int, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Time the layer norm with a residual and a ReLU, forward alone and with gradients."""
    features, residual, grad = (torch.randn(points, channels, device="cuda").to(dtype) for _ in range(3))
    features.requires_grad_()
    weight = torch.ones(channels, device="cuda", dtype=dtype, requires_grad=True)
    bias = torch.zeros(channels, device="cuda", dtype=dtype, requires_grad=True)

    def apply_operators() -> Tensor:
        return relu(layer_norm(features, (channels,), weight, bias) + residual)

    torch.compiler.reset()  # else one shape after another would end in a form for all shapes
    forms: dict[str, Callable[[], Tensor]] = {
        "kernel": lambda: point_norm(features, weight, bias, residual=residual, relu=True),
        "operators": apply_operators,
        "compiled": torch.compile(apply_operators),
    }

    def backpropagate(form: Callable[[], Tensor]) -> None:
        features.grad = weight.grad = bias.grad = None
        form().backward(grad)  # type: ignore[no-untyped-call]

    for name, form in forms.items():
        row = {"what": f"point norm {points}x{channels}", "dtype": str(dtype), "form": name}
        with torch.no_grad():
            forward = time_call(form)
        yield {**row, "forward": forward, "forward and backward": time_call(partial(backpropagate, form))}


def main(arguments: list[str] | None = None) -> None:
    """Time all forms and store the result."""
    parser = build_program_parser(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("time_fused_forms: PyTorch finds no GPU here")
    torch.manual_seed(0)
    rows = [row for dtype in (torch.float32, torch.bfloat16) for row in time_convex_loss(dtype)]
    for points, channels in _POINTS:
        rows += [row for dtype in (torch.float32, torch.float16) for row in time_point_norm(points, channels, dtype)]
    with write_atomically(args.output) as path:
        path.write_text(json.dumps({**state_conditions(*SOURCES), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
