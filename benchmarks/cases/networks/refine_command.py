"""``python -m benchmarks refine``: the guided refinement of a flow."""

from __future__ import annotations

import argparse

from benchmarks.bench import Bench, Note, Result, Session
from benchmarks.options import add_sizes_option
from fullfield.cli.argtypes import parse_positive_integer

DESCRIPTION = """\
Time the guided refinement of a flow with a flow back, RGB frames in float32 on the device: median and 99th percentile
of calls one after the other, memory, the time of every kernel, and the floor of its memory traffic. Before a time
counts the flow is compared with the reference in float64 (frames beyond 1920x1080: on that corner), and must be nearer
to the truth than before.
"""
EPILOG = """\
examples:
  python -m benchmarks refine --device cuda -o refine.json
  python -m benchmarks refine --device cuda --shapes --sizes 1920x1080
  python -m benchmarks refine --device cpu --sizes 320x200 --frames 3
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    sizes = [(1080, 1920), (3432, 8192)]
    add_sizes_option(parser, "frames [1920x1080 8192x3432]", sizes)
    parser.add_argument(
        "--frames", type=parse_positive_integer, default=100, metavar="N", help="calls that are timed [%(default)s]"
    )
    parser.add_argument(
        "--passes", type=parse_positive_integer, default=1, metavar="N", help="of the refinement [%(default)s]"
    )
    parser.add_argument("--shapes", action="store_true", help="on a GPU: every shape of the blocks that iterate")


def _open(args: argparse.Namespace, note: Note) -> Session:
    from benchmarks.cases.networks import refine
    from benchmarks.harness import timing_device

    device = timing_device(args.device)
    plan = refine.Plan(args.sizes, device, args.frames, args.shapes, args.passes)
    return Session(refine.cases(plan, note), device=device)


def _report(results: Result) -> list[str]:
    lines = []
    for case in results["cases"]:
        lines.append(f"{case['label']}, {case['near_jumps']:.0%} of the pixels near a jump of the true flow")
        for row in case["rows"]:
            if row["status"] != "ok":
                lines.append(f"  {row['name']}: {row['status']}: {row['reason']}")
                continue
            text = f"  {row['name']}: {row['median_ms']:.2f} ms, 99th percentile {row['p99_ms']:.2f}"
            text += f", {row['kept_mib']:.0f} MiB kept" if "kept_mib" in row else ""
            text += f", peak {row['peak_mib']:.0f} MiB more" if "peak_mib" in row else ""
            text += f", from float64 {row['mean_error']:.1e} px, float32 reference {row['reference_error']:.1e}"
            lines.append(f"{text}; error {row['before']:.3f} -> {row['after']:.3f} px")
            parts = ", ".join(f"{name} {ms:.3f}" for name, ms in row.get("parts_ms", {}).items())
            lines += [f"    ms: {parts}"] if parts else []
        if "floor_ms" in case:
            lines.append(f"  floor of memory traffic at {case['copy_tb_s']:.2f} TB/s: {case['floor_ms']:.2f} ms")
    return lines


REFINE = Bench(
    "refine",
    "the guided refinement of a flow",
    DESCRIPTION,
    EPILOG,
    _add_options,
    lambda _: [],
    _open,
    _report,
)
