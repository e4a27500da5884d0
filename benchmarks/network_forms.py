"""Forms of networks in stored results: which are compared, what pages call them, and how much their flows differ."""

from __future__ import annotations

from typing import Any

Measured = tuple[dict[str, Any], dict[str, Any]]
"""A case or a row, and the results that it stands in."""

TITLES = {"raft": "RAFT", "sea-raft-m": "SEA-RAFT (M)"}
SINGLE, HALF = "float32", "half precision"
# Ours, then the others, by precision. "exact" is what stored runs call the plain module in float32.
OURS = {SINGLE: ("module", "exact"), HALF: ("fast",)}
OTHERS = {
    SINGLE: (
        "ptlflow, dense",
        "ptlflow, dense, channels-last",
        "ptlflow, dense, compiled",
        "ptlflow, localcorr",
        "ptlflow, localcorr (Triton)",
        "ptlflow, alt_cuda_corr",
        "module, compiled",
    ),
    HALF: (
        "ptlflow, dense, half",
        "ptlflow, dense, channels-last, half",
        "ptlflow, dense, channels-last, compiled, half",
        "ptlflow, alt_cuda_corr, half",
        "compiled, half",
    ),
}
EXTENSION = ("ptlflow, alt_cuda_corr",)
NAMES = {
    "ptlflow, dense": "ptlflow, dense volume",
    "ptlflow, dense, half": "ptlflow, dense volume, autocast",
    "ptlflow, dense, channels-last": "ptlflow, dense volume, channels-last",
    "ptlflow, dense, channels-last, half": "ptlflow, dense volume, channels-last, autocast",
    "ptlflow, dense, compiled": "ptlflow, dense volume, `torch.compile`",
    "ptlflow, dense, channels-last, compiled, half": "ptlflow, dense volume, channels-last, autocast, `torch.compile`",
    "ptlflow, localcorr": "ptlflow on localcorr's compiled kernel",
    "ptlflow, localcorr (Triton)": "ptlflow on localcorr's Triton kernel",
    "ptlflow, alt_cuda_corr, half": "ptlflow, alt_cuda_corr, autocast",
    "module, compiled": "our module through `torch.compile`",
    "compiled, half": "our module through `torch.compile`",
}
NAMES_OF_FORMS = {
    "fast": "prepared in half precision",
    "fast, cascaded": "the same in a cascade",
    "module, cascaded": "in a cascade",
}
RENDERED = ("like_raft_8k_rendered.json", "like_raft_8k_rendered_32.json")
"""Runs of RAFT with a rendered pair on which its flow is right, of 12 and of 32 updates."""


def describe_rendered_cases(cases: list[Measured]) -> list[str]:
    """Return one line for each case of a rendered pair: its motion, and what precision and a cascade change."""
    lines = []
    for case, run in cases:
        if "diverged" in case:
            continue
        rows = {row["name"]: row for row in case["rows"] if "from_module_px" in row}
        distances = [
            f"{NAMES_OF_FORMS.get(name, NAMES.get(name, name))} {row['from_module_px']:.2g} px"
            for name, row in rows.items()
            if name not in OURS[SINGLE]
        ]
        line = f"Rendered pair (seed {run['pair']['seed']}), {case['updates']} updates: its motion is "
        line += f"{case['true_flow_px']:.3g} px in the mean. Mean distances from our module in float32: "
        line += ", ".join(distances)
        if half := rows.get("fast, cascaded", {}).get("from_cascaded_module_px"):
            line += f"; of the two cascades from each other {half:.2g} px"
        lines.append(f"{line}." + (f" Weights: {run['weights']}." if "weights" in run else ""))
    return lines
