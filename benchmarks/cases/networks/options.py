"""What the benchmarks of networks have in common: RAFT's extension and the device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Note
from fullfield._check import InputError

if TYPE_CHECKING:
    import torch


def add_extension_option(parser: argparse._ActionsContainer, use: str = "") -> None:
    """``--alt-cuda-corr DIR``; ``use`` says what for."""
    parser.add_argument(
        "--alt-cuda-corr",
        metavar="DIR",
        help=f"{use}folder with correlation.cpp and correlation_kernel.cu of RAFT; compiled here (nvcc, ninja)",
    )


def check_extension(args: argparse.Namespace) -> None:
    """Check that the extension's folder exists."""
    if args.alt_cuda_corr and not Path(args.alt_cuda_corr).is_dir():
        raise InputError(f"--alt-cuda-corr {args.alt_cuda_corr}: no such folder")


def set_up(args: argparse.Namespace, note: Note) -> tuple[torch.device, Any]:
    """Make the device current; return it, and RAFT's compiled extension where it is requested."""
    import torch

    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not args.alt_cuda_corr:
        return device, None
    from benchmarks.cases.correlation.alt_cuda_corr import alt_cuda_corr_extension

    extension = alt_cuda_corr_extension(args.alt_cuda_corr, note)
    sys.modules["alt_cuda_corr"] = extension  # where ptlflow looks for it when it is imported
    return device, extension
