"""Write the tables of measurements, and sentences with such numbers, into README.md and docs from the stored results.

python scripts/docs/tables.py           write them
python scripts/docs/tables.py --check   exit with 1 when a page says something else
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = str(ROOT), str(Path(__file__).resolve().parent)  # the benchmarks read their results
import error_tables  # noqa: E402  lies beside this file
import operator_tables  # noqa: E402  so do these
import paper_tables  # noqa: E402
import sentences  # noqa: E402
import shot_tables  # noqa: E402

from benchmarks import like_for_like, network_forms  # noqa: E402
from benchmarks.cases.points.report import PUBLISHED  # noqa: E402
from benchmarks.stored import describe_commit, describe_run, get_row, stored_result  # noqa: E402

MARK_MODELS = "<!-- table of the networks: begin -->\n"
MARK_POINTS = "<!-- table of convolution on points: begin -->\n"
MARK_TVL1_GPU = "<!-- table of TV-L1 on the GPU: begin -->\n"
MARK_TVL1_RATES = "<!-- rates of TV-L1 on the GPU: begin -->\n"
MARK_DESCRIPTORS = "<!-- table of descriptors: begin -->\n"
MARK_REFINEMENT = "<!-- table of the refinement: begin -->\n"
MARK_WINDOWS = "<!-- table of fixed windows: begin -->\n"
MARK_TRAINING = "<!-- table of training steps: begin -->\n"
MARK_PACKING = "<!-- table of packing: begin -->\n"
MARK_TVL1_PAGE = "<!-- tables of TV-L1 on the GPU: begin -->\n"
OTHERS = {"opencv cpu": "OpenCV", "scikit-image cpu": "scikit-image (all scales of ½)"}
MARK = "<!-- table: begin -->\n"


def markdown_table(rows: list[list[str]]) -> list[str]:
    from benchmarks.markdown import table

    return table(rows)


def table() -> str:
    stored = stored_result("tvl1_cpu.json")
    cases = {case["case"]: case for case in stored["cases"]}
    fixed, own = (cases[name] for name in ("fixed work", "own defaults"))
    height, width = fixed["size"]
    setting = fixed["setting"]
    environment = stored["environment"]
    versions = environment["versions"]

    columns = ("fullfield fast", "fullfield default", "opencv defaults", "scikit-image defaults")
    ends = [get_row(own, name) for name in columns]
    rates = [get_row(fixed, name) for name in ("fullfield", "opencv", "scikit-image")]
    big = [get_row(cases["large"], name) for name in ("fast", "default")]
    full = [get_row(cases["whole command"], name) for name in ("fast", "default")]
    names = ("OpenCV", "scikit-image")
    size = f"{width}×{height}"
    rows = [
        [
            f"TV-L1 on {environment['threads']} CPU cores, Sintel {size}",
            "fullfield `fast`",
            "fullfield `default`",
            *names,
        ],
        ["one pair, each library's own defaults", *(f"{r['median_s']:.3g} s" for r in ends)],
        ["its end-point error", *(f"{r['epe']:.3f} px" for r in ends)],
        ["pixel-iterations a second, equal work*", "", *(f"{r['rate'] / 1e6:.0f} million" for r in rates)],
        ["the whole command, PNG to .flo", *(f"{r['median_s']:.3g} s" for r in full), "", ""],
        [
            "8192×3432 pair†, estimate and peak memory",
            *(f"{r['seconds']['estimate']:.0f} s, {r['peak_memory_bytes'] / 2**30:.1f} GiB" for r in big),
            "",
            "",
        ],
    ]
    notes = [
        "Sintel's frame 2 of alley_1, clean pass, on which our defaults were tuned. "
        f"\\* {setting['scales']} scales of {setting['scale_factor']}, {setting['warps']} warp,",
        f"{setting['iterations']} iterations, no early stopping; scikit-image's pyramid halves.",
        f"Medians of {rates[0]['repeats']}, in turns; 8192×3432: one run.",
        f"{environment['cpu']}, Python {versions['python']}, PyTorch {versions['torch']}, numba {versions['numba']},",
        f"OpenCV {versions['cv2']}, scikit-image {versions['skimage']}, {describe_commit(stored)}.",
        "† A real 4K pair of small motion, cropped and enlarged. The machine is a noisy virtual one: ratios count.",
    ]
    return "\n".join([*markdown_table(rows), "", *notes]) + "\n"


FORMS = ("exact", "ptlflow, dense", "ptlflow, alt_cuda_corr", "fast", "fast, cascaded")
"""As stored runs call them: our plain module and the peer in float32, then our prepared form."""
HEADS = (
    "fullfield, module, float32",
    "ptlflow 0.4.2, dense, float32",
    "ptlflow 0.4.2, alt_cuda_corr, float32",
    "fullfield, prepared, half precision",
    "the same, cascaded",
)


def times_and_memory(case: dict[str, Any], told: str) -> list[str]:
    """Put seconds and peak GiB of each of ``FORMS`` into ``told``; why there are none, or nothing if not timed.

    The error of the flow follows where it is known.
    """
    by_name = {row["name"]: row for row in case["rows"]}
    result = (by_name.get(name, {"status": ""}) for name in FORMS)
    return [
        told.format(row["median_s"], row["peak_bytes"] / 2**30)
        + (f", {error}" if (error := like_for_like.format_error(row)) else "")
        if row["status"] == "ok"
        else like_for_like.describe_status(row)
        for row in result
    ]


NETWORK_RUNS = ("models_h200.json", "like_sea_raft_8k.json")
"""Where both have a row, the later one's counts."""


def network_cases() -> list[dict[str, Any]]:
    """Return whole networks on the GPU by network and size."""
    result: dict[tuple[str, tuple[int, int], int, bool], dict[str, Any]] = {}
    for case, run in like_for_like.load_cases(*NETWORK_RUNS, *network_forms.RENDERED):
        if "diverged" in case:
            continue
        case["is_rendered"] = "pair" in run
        key = case["method"], tuple(case["size"]), case["updates"], case["is_rendered"]
        rows = {row["name"]: row for row in result.get(key, {"rows": []})["rows"]}
        for row in case["rows"]:
            name = "exact" if row["name"] == "module" else row["name"]
            rows[name] = {**row, "name": name}
        result[key] = {**case, "rows": list(rows.values())}
    return [result[key] for key in sorted(result)]


def models_table() -> str:
    """Return seconds and peak memory of whole networks on the GPU, and of ptlflow's."""
    cases = network_cases()
    rows = [["one pair of frames, one H200", *HEADS]]
    titles = {"sea-raft-m": "SEA-RAFT (M)", "raft": "RAFT"}
    for case in cases:
        height, width = case["size"]
        title = f"{titles[case['method']]}, {case['updates']} updates, {width}×{height}"
        title += ", rendered pair" if case["is_rendered"] else ""
        rows.append([title, *times_and_memory(case, "{:.3g} s, {:.1f} GiB")])
    enlarged = [case["lookups"] for case in cases if not case["is_rendered"]]
    inside = [lookups["inside"] for lookups in enlarged]
    windows = [lookups["mean_window"] for lookups in enlarged]
    runs = [stored_result(name) for name in NETWORK_RUNS]
    rendered = like_for_like.load_cases(*network_forms.RENDERED)
    used = {run["file"]: run for _, run in rendered}
    lines = [
        *markdown_table(rows),
        "",
        "End to end, frames on the GPU; peak memory as PyTorch counts it. float32: convolutions use TF32, PyTorch's",
        "default. RAFT has its Sintel weights, SEA-RAFT random ones",
        f"({min(inside):.0%} to {max(inside):.0%} of the lookups inside the map, mean window {min(windows):.0f} to "
        f"{max(windows):.0f} cells); Sintel's frames, enlarged, unless marked.",
        "RAFT at 8192×3432 on Sintel's frames is not shown: its estimate had diverged.",
        f"At 8192×3432 SEA-RAFT's module and prepared form are of {describe_commit(runs[1])}.",
        *network_forms.describe_rendered_cases(rendered),
        f"{like_for_like.environments([runs[0], *used.values()])}; `python -m benchmarks models`.",
    ]
    return "\n".join(lines) + "\n"


def tvl1_gpu_table() -> str:
    """TV-L1 on the GPU in both precisions: iterations alone, whole frames, the largest real-time frame."""
    stored = stored_result("tvl1_h200.json")
    cases = {case["case"]: case["rows"] for case in stored["cases"]}
    precisions = ("float32", "float16")

    def line(title: str, case: str, cell: Callable[[dict[str, Any]], str], **wanted: Any) -> list[str]:
        """The fastest of each precision that passed its check."""
        cells = []
        for precision in precisions:
            rows = [row for row in cases.get(case, []) if row["precision"] == precision and "median_s" in row]
            rows = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
            cells.append(cell(min(rows, key=lambda row: float(row["median_s"]))) if rows else "")
        return [title, *cells]

    def schedule(row: dict[str, Any]) -> str:
        return f"{1e3 * row['median_s']:.3f} ms (`{row['schedule']}`)"

    def whole(row: dict[str, Any]) -> str:
        times = f"{1e3 * row['median_s']:.3g} ms (p99 {1e3 * row['p99_s']:.3g}), {row['frames_per_s']:.3g} a second"
        return times + (f", {row['over_floor']:.2g}× its floor" if "over_floor" in row else "")

    lines = [["TV-L1 on one H200, scales × warps × iterations", *precisions]]
    for side in (2048, 8192):
        title = f"inner iterations alone, {side}×{side}, 1 × 1 × 10"
        lines.append(line(title, "schedules", schedule, size=[side, side]))
    for row in cases.get("whole frames", []):
        if row["precision"] == precisions[0]:
            (height, width), same = row["size"], {key: row[key] for key in ("preset", "changes", "size")}
            work = f"{width}×{height}, {row['scales']} × {row['warps']} × {row['iterations']}"
            called = "".join(f", {key} {value}" for key, value in row["changes"].items())
            error = f", {row['epe']['middlebury']:.3f} px off on Middlebury" if "middlebury" in row["epe"] else ""
            lines.append(line(f"preset `{row['preset']}`{called}, {work}{error}", "whole frames", whole, **same))
    own = next((case["commit"] for case in stored["cases"] if case["case"] == "real time" and "commit" in case), None)
    apart = "" if own is None else f", commit {own}"
    for milliseconds in (5, 40):
        title = f"largest square frame within {milliseconds} ms, 3 × 1 × 10{apart}"
        lines.append(line(title, "real time", lambda row: f"{row['side']}²", limit_s=milliseconds / 1e3))
    calls = [row["repeats"] for row in cases.get("whole frames", []) if "repeats" in row]
    some = f", p99 of {min(calls)} to {max(calls)} calls, the fewer the longer they take" if calls else ""
    energy = [row for row in cases.get("energy", []) if "nj_per_pixel" in row]
    best = [[row["nj_per_pixel"] for row in energy if row["precision"] == precision] for precision in precisions]
    title = "energy a pixel, 2048×2048, 1 × 1 × 10, best schedule"
    lines.append([title, *(f"{min(values):.2f} nJ" if values else "" for values in best)])
    peers = {row["name"]: f"{1e3 * row['median_s']:.3g} ms, {row['epe']:.2f} px off" for row in cases.get("peers", [])}
    if "opencv cpu" in peers:
        others = [f"{title} {peers[name]}" for name, title in OTHERS.items() if name in peers]
        title = f"Sintel 1024×436, 3 × 1 × 10; on {stored['environment']['cores']} CPU cores {'; '.join(others)}"
        lines.append([title, *(peers[f"fullfield {precision}"] for precision in precisions)])
    notes = [
        f"RGB bytes on the GPU to flow on the GPU (the largest frame: grey){some};",
        "iterations alone by graph replay, the",
        "fastest schedule. The floor: every level and warp at the larger of memory, where each stage reads its inputs",
        "and writes its results once, and special functions. Every number after a check against plain PyTorch or the",
        "true flow. In float16 less is stored; levels whose warps are one kernel compute in float32 in both columns. "
        "All of it: `python -m benchmarks tvl1 --stored benchmarks/results/tvl1_h200.json`.",
        describe_run(stored, "tvl1 --device cuda").rstrip(),
    ]
    return "\n".join([*markdown_table([row for row in lines if any(row[1:])]), "", *notes]) + "\n"


def points_table() -> str:
    """Milliseconds and memory of one convolution on the GPU against size, beside everybody who takes part."""
    stored = stored_result("points_h200.json")
    cases = stored["cases"]

    def cell(case: dict[str, Any], begin: str) -> str:
        row = next((row for row in case["rows"] if row["name"].startswith(begin)), None)
        if row is None:
            return ""
        if row["status"] != "ok":
            return str(row["status"])
        times = " / ".join(f"{1e3 * row[way]['median_s']:.3g}" for way in ("forward", "training"))
        return f"{times} ms, {row['training_peak_bytes'] / 1e6:.0f} MB"

    lines: list[str] = []
    names: tuple[str, ...] = ("pointelligence", "the supplement's listing", "gather-GEMM-scatter")
    rows = [["one layer, forward / with gradients, memory", "fullfield", *names]]
    for case in cases:
        if case["part"] == "layer" and case["kernel"] == [3, 3, 3]:
            density = "2 cm grid" if "2 cm grid" in case["label"] else "native density"
            kind = f"{case['dtype']}, {case['channels'][0]}→{case['channels'][1]}"
            rows.append([f"{case['points']:,}, {density}, {kind}", *(cell(case, name) for name in ("cuda", *names))])
    lines += ["", *markdown_table(rows)]
    for part, title, names in (
        ("sizes", "points, bfloat16", ("pointelligence", "the supplement's listing", "gather-GEMM-scatter")),
        ("voxels", "voxels, float16", ("spconv", "ocnn")),
    ):
        heads = [f"{title}, forward / with gradients, memory", "fullfield", *names]
        rows = [heads]
        for case in cases:
            if case["part"] == part:
                begins = ("cuda", *names)
                density = case["series"].partition(", ")[2].partition(", ")[0] or "native density"
                form = case["series"].removeprefix("voxels ") if part == "voxels" else density
                size = f"{case['size'] / 1e6:g} million, {form}"
                rows.append([size, *(cell(case, begin) for begin in begins)])
        lines += ["", *markdown_table(rows)]
    network = next(case for case in cases if case["part"] == "network")
    row, *others = network["rows"]
    alone = "".join(
        f" ({1e3 * other['whole']['median_s']:.3g} ms, {other['name'].removeprefix('ResNet-18, ')})" for other in others
    )
    limit = {case["size"]: case for case in cases if case["part"] == "limit"}
    fits = [size for size, case in limit.items() if case["rows"][0]["status"] == "ok"]
    short = [size for size, case in limit.items() if case["rows"][0]["status"] == "out of memory"]
    scale = min(fits, key=lambda size: abs(size - 100_000_000))  # the supplement's largest
    largest, apart = limit[scale]["rows"][0], f", commit {limit[scale]['commit']}" if "commit" in limit[scale] else ""
    most = ""
    if short:
        bounds = max(fits), min(short)
        own = sorted({limit[size]["commit"] for size in bounds if "commit" in limit[size]})
        most = f"; {bounds[0]:,} fit, {bounds[1]:,} do not{''.join(f', commit {name}' for name in own)}"
    first = next(case for case in cases if case["part"] == "sizes")
    versions = ", ".join(
        sorted({row["name"] for case in cases for row in case["rows"] if row["name"].startswith(("spconv", "ocnn"))})
    )
    lines += [
        "",
        f"One layer, {first['channels'][0]}→{first['channels'][1]} unless said, 3×3×3, parts and copies of three "
        "indoor scans, all with the same",
        "triplets; memory: what a call with both gradients takes beyond its inputs. pointelligence v1.5.0 is "
        "PointCNN++'s own code",
        "(its route through Triton, float16 weight gradient tuned over 60 of its 216 tiles), the listing its "
        f"supplement's kernels reimplemented; {versions}.",
        f"ResNet-18 on {network['points']:,} points, {network['dtype']}, geometry and both directions: "
        f"{1e3 * row['whole']['median_s']:.3g} ms{alone};",
        f"on {scale:,} points forward and backward "
        f"{largest['training']['median_s']:.3g} s (one run), "
        f"{largest['training_allocated_bytes'] / 1e9:.0f} GB in all{apart}"
        f"{most}.",
        describe_run(stored, "points").rstrip(),
        "",
        "Published by the authors, on other machines, and ours:",
        "",
        *markdown_table(
            [
                ["what", "whose", "value", "source"],
                *(list(line) for line in PUBLISHED if "its authors" in line[3] or "PointCNN" in line[3]),
                *_own_network(),
            ]
        ),
        "",
        *_points_alone(),
    ]
    return "\n".join(lines[1:]) + "\n"


def _own_network() -> list[list[str]]:
    """Return our values of what the authors publish of ResNet-18, as rows of their table."""
    stored = stored_result("points_layers_h200.json")
    case = next(case for case in stored["cases"] if case["part"] == "network")
    row = next(row for row in case["rows"] if row["name"] == "ResNet-18")
    what, source = f"ResNet-18 at {case['points']:,} points", f"here, H200, {describe_commit(stored)}"
    forward, training, whole = (f"{1e3 * row[way]['median_s']:.3g}" for way in ("forward", "training", "whole"))
    name = f"fullfield, {case['dtype']}, eager"
    return [
        [f"{what}, search apart, forward / forward and backward, ms", name, f"{forward} / {training}", source],
        [f"{what}, training step with its search, ms", name, whole, source],
        [
            f"{what}, memory of that step beyond what was allocated before, GB",
            name,
            f"{row['whole_peak_bytes'] / 1e9:.2f}",
            source,
        ],
    ]


def _points_alone() -> list[str]:
    """Return layers in both half precisions, clouds that are hard for them, and recorded training steps."""
    stored = stored_result("points_layers_h200.json")
    cases = stored["cases"]

    def milliseconds(case: dict[str, Any]) -> str:
        return " / ".join(f"{1e3 * case['rows'][0][way]['median_s']:.3g}" for way in ("forward", "training")) + " ms"

    def each(case: dict[str, Any]) -> float:
        return float(case["rows"][0]["forward"]["median_s"]) / float(case["triplets"])

    halves = {case["label"]: case for case in cases if case["part"] in ("worst", "layer")}
    table = [["one layer, forward / with gradients", "triplets", "float16", "bfloat16", "a triplet, float16"]]
    for label, one in halves.items():
        if one["dtype"] == "float16":
            kind = f"{one['channels'][0]}→{one['channels'][1]}"
            scan = each(one) / each(halves[f"indoor_dense, {kind}, float16"])
            name = label.removeprefix("indoor_dense, ").removesuffix(f"{kind}, float16") or "native density, "
            times = (milliseconds(case) for case in (one, halves[label.replace("float16", "bfloat16")]))
            table.append([f"{name}{kind}", f"{one['triplets']:,}", *times, f"{scan:.2f}×"])
    network = next(case for case in cases if case["part"] == "network")
    rows = {row["name"]: row for row in network["rows"]}
    plain, recorded = rows["ResNet-18"], rows["ResNet-18, recorded"]
    sizes = [
        ("", network["points"]),
        *((f", {n:,} points", n) for n in (e["points"] for e in network["gradient_errors"][1:])),
    ]
    steps = ",\n".join(
        f"{count:,} points {1e3 * rows[f'ResNet-18, recorded{end}']['whole']['median_s']:.3g} ms "
        f"(eager {1e3 * rows[f'ResNet-18{end}']['whole']['median_s']:.3g})"
        for end, count in sizes
    )
    hosts = [1e3 * row["whole_host_s"] for row in (recorded, plain)]
    return [
        *markdown_table(table),
        "",
        "Last column: forward time of a triplet, relative to the scan at its native density with as many channels.",
        f"Steps of ResNet-18 by one `RecordedStep`, {network['dtype']}, geometry and both directions:",
        f"{steps};",
        f"the host issues the first in {hosts[0]:.2g} ms (eager {hosts[1]:.2g}), and the recording keeps "
        f"{network['recorded_bytes'] / 1e6:.0f} MB.",
        describe_run(stored, "points --parts layer worst network").rstrip(),
    ]


def tvl1_rates() -> str:
    """Settings of TV-L1 by frame rate, with their errors."""
    stored = stored_result("tvl1_h200.json")
    rows = next(case["rows"] for case in stored["cases"] if case["case"] == "whole frames")
    groups = list(dict.fromkeys(name for row in rows for name in row.get("epe", {})))
    heads = ["setting", "frame", "scales × warps × iterations", "flows a second", "in float16", "ms, p99", "memory"]
    lines = [[*heads, *(f"{name.capitalize()} px" for name in groups)]]
    for row in rows:
        same = [other for other in rows if all(other[key] == row[key] for key in ("preset", "changes", "size"))]
        if row is not same[0] or any(other["status"] != "ok" for other in same):
            continue
        height, width = row["size"]
        called = "".join(f", `{key}={value}`" for key, value in row["changes"].items())
        work = f"{row['scales']} × {row['warps']} × {row['iterations']}"
        rates = [f"{other['sequence']['frames_per_s']:.3g}" for other in same]
        times = f"{1e3 * row['median_s']:.3g}, {1e3 * row['p99_s']:.3g}"
        result = [f"`{row['preset']}`{called}", f"{width}×{height}", work, rates[0], rates[-1], times]
        result.append(f"{row['memory_bytes'] / 2**20:.0f} MiB")
        lines.append([*result, *(f"{row['epe'][name]:.3f}" for name in groups)])
    calls = [row["repeats"] for row in rows if row["precision"] == "float32"]
    about = f"p99 of {min(calls)} to {max(calls)} calls. {stored['environment']['gpu']}, {describe_commit(stored)}."
    return "\n".join([*markdown_table(lines), "", about]) + "\n"


def tvl1_gpu_page() -> str:
    """Everything that was measured of TV-L1 on the GPU."""
    from benchmarks.cases.tvl1.report import section

    return section(stored_result("tvl1_h200.json"))


def refinement_table() -> str:
    results = stored_result("refine_h200.json")
    rows = [["guided refinement, prepared", "median", "99th percentile", "memory at most", "of its memory floor"]]
    for case in results["cases"]:
        (row,) = case["rows"]
        times = [f"{row[name]:.2f} ms" for name in ("median_ms", "p99_ms")]
        floor = f"{row['median_ms'] / case['floor_ms']:.1f}×"
        rows.append([case["label"], *times, f"{row['peak_mib'] / 1024:.2f} GiB", floor])
    return "\n".join([*markdown_table(rows), "", describe_run(results, "refine --device cuda")])


def windows_table() -> str:
    results = stored_result("windows_h200.json")
    rows = [["float16 features", "forward", "localcorr", "with gradients", "localcorr"]]
    cases = {case["label"]: case for case in results["cases"] if case["dtype"] == "torch.float16"}

    def told(row: dict[str, Any]) -> str:
        if row["status"] != "ok":
            return "error too large" if row["status"] == "check failed" else "cannot"
        return f"{1e3 * row['median_s']:.3f} ms"

    for label, case in cases.items():
        if not label.endswith(", forward") or case["part"] == "matching":
            continue
        both = [case, cases[label.replace(", forward", ", with gradients")]]
        times = [told(get_row(one, name)) for one in both for name in ("ours", "localcorr (Triton)")]
        rows.append([label.removesuffix(", float16, forward"), *times])
    words = "Eager calls; every result is compared with float64 first. localcorr 0.1.1 has no stride."
    return "\n".join([*markdown_table(rows), "", words, describe_run(results, "windows")])


def packing_table() -> str:
    results = stored_result("packing_cpu.json")
    cases = {(case["flow"], case["type"]): case for case in results["cases"]}
    flows = list(dict.fromkeys(flow for flow, _ in cases))
    rows = [["vectors", "packed as", *(f"{flow}: {what}" for flow in flows for what in ("size", "writing", "reading"))]]
    for kind in ("float", "half"):
        for name in (row["name"] for row in cases[flows[0], kind]["rows"]):
            cells = []
            for flow in flows:
                row = get_row(cases[flow, kind], name)
                times = [f"{1e3 * row[part]['min']:.0f} ms" for part in ("writing", "reading")]
                cells += [f"{row['bytes'] / 1e6:.2f} MB", *times]
            rows.append([kind, f"`{name}`", *cells])
    height, width = results["cases"][0]["size"]
    words = (
        f"Flow of a pair of Sintel, {width}×{height}; seconds of the CPU in all threads, the least of each candidate."
    )
    return "\n".join([*markdown_table(rows), "", words, describe_run(results, "packing")])


def training_table() -> str:
    results = stored_result("training_h200.json")
    rows = [["a step of training in bfloat16", "fullfield", "dense volume", "localcorr 0.1.1"]]

    def told(row: dict[str, Any]) -> str:
        fits = row["status"] == "ok"
        return f"{1e3 * row['median_s']:.0f} ms, {row['peak_bytes'] / 2**30:.1f} GiB" if fits else row["status"]

    for case in results["cases"]:
        cells = [told(get_row(case, name)) for name in ("fullfield", "dense", "localcorr")]
        rows.append([f"{case['label'].replace('x', '×')}, {case['updates']} updates", *cells])
    return "\n".join([*markdown_table(rows), "", describe_run(results, "training")])


def descriptors_table() -> str:
    """Both descriptors on the shared pairs, by pair and change, and over all."""
    stored = stored_result("descriptors_cpu.json")
    changes = {"10 % of it": "10 % of its points", "60 % of it": "cropped to 60 %"}

    def both(values: tuple[float, float], shown: str, factor: float = 1.0) -> str:
        return ", ".join(format(factor * value, shown) for value in values)

    rows = [["pair, 3 poses each", "found: FPFH, learned", "inlier ratio %", "FMR %", "seconds"]]
    for pair, by_change in stored["rows"].items():
        for change, by_name in by_change.items():
            runs = [by_name[name] for name in ("FPFH", "learned")]
            ratios = [[run["ir"] for run in each] for each in runs]
            result = both(tuple(sum(run["found"] for run in each) for each in runs), ".0f")
            mean = both(tuple(sum(each) / len(each) for each in ratios), ".1f", 100)
            recall = both(tuple(sum(value > 0.05 for value in each) / len(each) for each in ratios), ".0f", 100)
            seconds = both(tuple(median(run["seconds"] for run in each) for each in runs), ".1f")
            rows.append([f"{pair}, {changes.get(change, change)}", result, mean, recall, seconds])
    total = [stored["unseen"][name] for name in ("FPFH", "learned")]
    of = {name: tuple(each[name] for each in total) for name in ("found", "ir", "fmr", "seconds", "runs")}
    last = [
        both(of["found"], ".0f"),
        both(of["ir"], ".1f", 100),
        both(of["fmr"], ".1f", 100),
        both(of["seconds"], ".1f"),
    ]
    rows.append([f"**all {of['runs'][0]}**", *last])
    about = f"{stored['environment']['cpu']}, one thread, {describe_commit(stored)}."
    return "\n".join([*markdown_table(rows), "", about]) + "\n"


PAGES: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "docs/measured.md": ((MARK, table),),
    "benchmarks/notes/more_tables.md": (
        (MARK_REFINEMENT, refinement_table),
        (MARK_TRAINING, training_table),
    ),
    "src/fullfield/ops/spatial_correlation/README.md": ((MARK_WINDOWS, windows_table),),
    "benchmarks/notes/packing.md": ((MARK_PACKING, packing_table),),
    "benchmarks/notes/networks.md": ((MARK_MODELS, models_table),),
    "benchmarks/notes/points_layers.md": ((MARK_POINTS, points_table),),
    "benchmarks/notes/descriptor.md": ((MARK_DESCRIPTORS, descriptors_table),),
    "docs/tvl1.md": ((MARK_TVL1_RATES, tvl1_rates),),
    "benchmarks/notes/tvl1_romera.md": ((MARK_TVL1_GPU, tvl1_gpu_table), (MARK_TVL1_PAGE, tvl1_gpu_page)),
}
for _others in (
    like_for_like.PAGES,
    *(each.PAGES for each in (operator_tables, paper_tables, error_tables, sentences, shot_tables)),
):
    for _page, _parts in _others.items():
        PAGES[_page] = (*PAGES.get(_page, ()), *_parts)


def filled(text: str, parts: tuple[tuple[str, Callable[[], str]], ...]) -> str:
    """The page with its tables and sentences, each up to the next mark, as they should be."""
    for start, make in parts:
        head, marked, rest = text.partition(start)
        if not marked:
            raise ValueError(f"the page has no line {start!r}")
        text = head + start + make() + rest[rest.index("<!-- ") :]
    return text


def main(arguments: list[str]) -> int:
    different = []
    for name, parts in PAGES.items():
        page = ROOT / name
        text = page.read_text("utf-8")
        requested = filled(text, parts)
        if text != requested:
            different.append(name)
            if arguments != ["--check"]:
                page.write_text(requested, "utf-8")
    if arguments == ["--check"]:
        said = ", ".join(different)
        print(f"{said}: run scripts/docs/tables.py" if different else "every page agrees with the results")
        return int(bool(different))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
