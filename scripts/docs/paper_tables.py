"""Tables and figures of the papers with what was measured here, made of the stored results."""

from __future__ import annotations

from statistics import mean, pstdev
from typing import Any

from benchmarks.cases.correlation.report import shares_by_step
from benchmarks.like_for_like import (
    EASY,
    FAST,
    KERNEL,
    environments,
    find_case,
    find_row_by_prefix,
    load_stored_results,
)
from benchmarks.markdown import table_text
from benchmarks.paper import published
from benchmarks.stored import describe_commit, describe_run, stored_result

MARK_SHARES = "<!-- table 3 of Briedis et al.: begin -->\n"
MARK_STEPS = "<!-- table 4 of Briedis et al.: begin -->\n"
MARK_MEMORY = "<!-- table 8 of Briedis et al.: begin -->\n"
MARK_ERRORS = "<!-- errors of RAFT by lookup: begin -->\n"
MARK_ABLATIONS = "<!-- figures A to C of PointCNN++: begin -->\n"


def shares_table() -> str:
    """Return the paper's table 3 and the shares of the recorded lookups, mean and deviation over the pairs."""
    stored = stored_result("lookup_shares_cpu.json")
    shares: dict[tuple[int, str], list[float]] = {}
    for share in (share for file in stored["files"] for share in file["shares"] if share["level"] == 0):
        shares.setdefault((share["block"], share["layout"]), []).append(100 * share["share"])
    rows = [
        ["blocks", *(f"{layout}, {who}" for layout in ("row-major", "patch-major") for who in ("published", "here"))]
    ]
    for line in published.rows("3"):
        cells = []
        for layout in ("row-major", "patch-major"):
            paper, here = line[layout.replace("-", "_")], shares.get((line["block"], layout))
            if paper is None:  # single cells have only one layout
                cells += ["", ""]
                continue
            here = here or shares[line["block"], "row-major"]
            cells += [f"{paper['mean']} ± {paper['std']} %", f"{mean(here):.1f} ± {pstdev(here):.1f} %"]
        rows.append([f"{line['block']}×{line['block']}", *cells])
    sizes = sorted((file["size"] for file in stored["files"]), key=lambda size: size[0] * size[1])
    return (
        f"{table_text(rows)}\nShare of the finest level's matrix that 32 lookups of RAFT read, in blocks. Published: "
        f"{published.source()}, table 3, the training set of Sintel. Here: {len(sizes)} pairs, maps of "
        f"{sizes[0][1]}×{sizes[0][0]} to {sizes[-1][1]}×{sizes[-1][0]}, {describe_commit(stored)}.\n"
    )


OUR_STEPS = {
    "Preprocessing": "Preprocessing",
    "Computing Per-Thread Blocks": "Planning",
    "Matrix-Matrix Multiplication": "Copies and products",
    "Sampling Blocks and Writing Outputs": "Sampling and writing outputs",
}
"""Steps of our kernel by those of the paper's; its plan takes the place of the votes."""


def steps_table() -> str:
    """Return the paper's table 4, and the shares of the steps of its kernel, reimplemented, and of ours."""
    stored = load_stored_results("lookup_steps_h200.json")
    shares = {
        (case["size"][1], case["scene"]): shares_by_step(case)
        for case in (case for each in stored for case in each["cases"])
    }
    kernels: tuple[tuple[str, dict[str, str]], ...] = ((KERNEL, {}), ("fullfield", OUR_STEPS))
    widths = (256, 512)
    heads = [f"{who}, {width} wide" for width in widths for who in ("published", KERNEL, "fullfield")]
    rows = [["32 lookups", *heads]]

    def describe(width: int, scene: str, kernel: str, step: str) -> str:
        measured = shares.get((width, scene), {}).get(kernel)
        if measured is None:
            return ""
        if step == "Total":
            return f"{1e3 * measured[1]:.3g} ms"
        return f"{100 * measured[0][step]:.1f} %" if step in measured[0] else ""

    for line in published.rows("4"):
        cells = []
        for width in widths:
            cells.append(f"{line[f'width_{width}']} {'ms' if line['step'] == 'Total' else '%'}")
            for kernel, steps in kernels:
                step = steps.get(line["step"]) or line["step"]
                fast, calm = (describe(width, scene, kernel, step) for scene in (FAST, EASY))
                cells.append(f"{fast} (calm {calm})" if calm else fast)
        rows.append([line["step"], *cells])
    measured = f"{environments(stored)}; `python -m benchmarks correlation --steps`." if stored else "Not measured yet."
    return (
        f"{table_text(rows)}\nPublished: {published.source()}, table 4, shares by early exits from its "
        "kernel, and the total.\nHere: both kernels also ran in forms that end after one of the steps; a step's share "
        "is the difference of two such times over the total; graph replay, fast scene, bfloat16. "
        "Preprocessing is\npooling, layout, zeros where a kernel adds, and launches that return at once. Our kernel "
        "plans in place of blocks and votes, while others of its\nwarps multiply and sample, so only what another step "
        f"does not hide is counted. {measured}\n"
    )


def memory_table() -> str:
    """Return the paper's table 8, and ptlflow's models at two of its sizes, unpatched and patched."""
    stored = stored_result("patched_h200.json")
    names = {"raft": "raft", "ms-raft+": "ms_raft_p", "dpflow": "dpflow", "sea-raft": "sea_raft_m"}
    sizes = {"KITTI 2015": [375, 1242], "Sintel": [436, 1024]}
    heads = [f"{form}, {who}" for who in ("published", "here") for form in ("dense volume", "linear")]
    rows = [["network, frames", *heads]]

    def cell(seconds: float | None, memory: float) -> str:
        return "failed" if seconds is None else f"{seconds:.2g} s, {memory:.2f} GiB"

    for line in published.rows("8"):
        if line["dataset"] not in sizes:
            continue
        case = find_case(stored["cases"], model=names[line["method"]], size=sizes[line["dataset"]], train=False)
        paper = (line[key] for key in ("default", "ours"))
        cells = [each if isinstance(each, str) else cell(each["runtime_s"], each["memory_gib"]) for each in paper]
        here = (find_row_by_prefix(case, name) for name in ("as it is", "patched"))
        cells += [cell(row.get("median_s"), row.get("peak_bytes", 0) / 2**30) for row in here]
        rows.append([f"{line['method']}, {line['dataset']}", *cells])
    return (
        f"{table_text(rows)}\nPublished: {published.source()}, table 8, NVIDIA GH200, trained weights. Here: one pair "
        "of the data sets' size, random weights, ptlflow 0.4.2 as it is and patched; sea-raft is M. Spring's size was "
        f"not measured. {environments([stored])}.\n"
    )


def lookup_errors_table() -> str:
    """Return the errors of RAFT with the whole volume and with our lookup, and by how much they differ."""
    stored = stored_result("raft_lookup_errors_cpu.json")
    errors: dict[str, dict[str, float]] = stored["errors"]
    baseline = errors["ptlflow, volume"]
    names = {
        "ptlflow, volume": "ptlflow's RAFT, whole volume",
        "volume": "our RAFT, whole volume",
        "lookup": "our RAFT, our lookup",
        "lookup, bfloat16 features": "our RAFT, our lookup, features rounded to bfloat16",
    }
    rows = [["RAFT, 32 updates, float32, CPU", "mean error", "from the first row", "of one pair, at most"]]
    for name, title in names.items():
        error = mean(errors[name].values())
        change = 100 * (error / mean(baseline.values()) - 1)
        by_pair = sorted((100 * abs(errors[name][pair] / baseline[pair] - 1), pair) for pair in baseline)
        (second, _), (largest, worst) = by_pair[-2:]
        differences = ["", ""] if name == "ptlflow, volume" else [f"{change:+.3f} %", f"{largest:.3f} %"]
        rows.append([title, f"{error:.5f} px", *differences])
    environment = stored["environment"]
    return (
        f"{table_text(rows)}\nThe paper (section 5, on the training set of Sintel) states 0.03 % between "
        f"its kernel and RAFT's code. Here: weights\nraft-sintel, which saw these {len(baseline)} pairs of Sintel, "
        "1024×436; ptlflow 0.4.2 has RAFT's code. Rounded features are what the GPU's\nkernels multiply in bfloat16: "
        f"{worst.removeprefix('sintel ')} changes most, the others by {second:.3f} % at most.\n"
        f"{environment['cpu']}, one thread, PyTorch {environment['versions']['torch']}, "
        f"{describe_commit(stored)};\n`python -m benchmarks.experiments.compare_lookups`.\n"
    )


ABLATIONS = (
    ("A, radius", "lowering", ("cuda", "pointelligence", "the supplement's listing", "im2col", "GEMM + reduction")),
    ("B, radius", "order", ("listing sorted by k", "listing sorted by i", "listing sorted by j")),
    ("C, 16 neighbours", "knn", ("cuda", "pointelligence", "the supplement's listing", "im2col", "GEMM + reduction")),
)
"""Figure, part of the benchmark and the first words of its rows."""


def ablations_table() -> str:
    """Return what the supplement's figures A to C compare, measured here."""
    stored = stored_result("points_h200.json")
    parts = [part for _, part, _ in ABLATIONS]
    cases = {(case["part"], case["size"]): case for case in stored["cases"] if case["part"] in parts}
    sizes = sorted({size for _, size in cases})

    def cell(row: dict[str, Any]) -> str:
        times = " / ".join(f"{1e3 * row[way]['median_s']:.3g}" for way in ("forward", "training"))
        return f"{times} ms, {row['training_peak_bytes'] / 1e6:.0f} MB"

    rows = [["figure", "forward / with gradients, memory", *(f"{size / 1e6:g} million points" for size in sizes)]]
    for figure, part, begins in ABLATIONS:
        for begin in begins:
            measured = [find_row_by_prefix(cases[part, size], begin) for size in sizes]
            name = "fullfield" if begin == "cuda" else measured[0]["name"]
            rows.append([figure, name, *map(cell, measured)])
    ratios = [
        find_row_by_prefix(cases[part, size], "the supplement's listing")["training"]["median_s"]
        / find_row_by_prefix(cases[part, size], "im2col")["training"]["median_s"]
        for part in ("lowering", "knn")
        for size in sizes
    ]
    return (
        f"{table_text(rows)}\nThe figures are plots without numbers. By the supplement, PointCNN++'s kernel takes less "
        "time and memory than both lowerings\n(A), also with nearest neighbours (C), and sorting by k takes the least "
        "time (B). Here: 64→64 channels, bfloat16; pointelligence v1.5.0 is\nthe authors' code, the others are "
        f"reimplemented. With gradients the listing takes {min(ratios):.2g} to {max(ratios):.2g} times as long as "
        f"im2col + GEMM.\n{describe_run(stored, 'points --parts lowering order knn')}"
    )


PAGES = {
    "benchmarks/notes/lookup_paper.md": (
        (MARK_STEPS, steps_table),
        (MARK_SHARES, shares_table),
        (MARK_MEMORY, memory_table),
        (MARK_ERRORS, lookup_errors_table),
    ),
    "benchmarks/notes/points_layers.md": ((MARK_ABLATIONS, ablations_table),),
}
"""Page, then the mark and the words of each part, as in ``tables.py``."""
