"""Sentences with measured numbers and short tables, which ``scripts/docs/tables.py`` writes from the stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean
from typing import Any

from benchmarks.markdown import table_text
from benchmarks.stored import describe_commit, describe_run, stored_result

MARK_POINTS = "<!-- points beside others: begin -->\n"
MARK_PATCHED = "<!-- patched at 4K: begin -->\n"
MARK_POSES = "<!-- poses of both descriptors: begin -->\n"
MARK_TRAINING = "<!-- trainings of fullfield-s: begin -->\n"
MARK_SCHEDULES = "<!-- what the schedules show: begin -->\n"
MARK_HALF = "<!-- what half precision gains: begin -->\n"
MARK_CPU = "<!-- times on the CPU: begin -->\n"
MARK_DEFAULT = "<!-- times of the default method: begin -->\n"


def _span(ratios: Iterable[float]) -> str:
    found = list(ratios)
    low, high = f"{min(found):.1f}", f"{max(found):.1f}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def points() -> str:
    """How many times as long the others take, by part and precision, and where ours is not ahead."""
    stored = stored_result("points_h200.json")

    def times(way: str, other: str = "", **wanted: Any) -> str:
        """Of one contender, or of the best."""
        found = []
        for case in stored["cases"]:
            if all(case.get(key) == value for key, value in wanted.items()):
                ours, *others = (row for row in case["rows"] if row["status"] == "ok")
                best = min(row[way]["median_s"] for row in others if row["name"].startswith(other))
                found.append(best / ours[way]["median_s"])
        return _span(found)

    def authors(dtype: str, points: int, channels: list[int]) -> str:
        wanted = {"part": "layer", "dtype": dtype, "points": points, "channels": channels}
        ways = (times(way, "pointelligence", **wanted) for way in ("forward", "training"))
        return " / ".join(way.removesuffix(" times") for way in ways)

    layers = [case for case in stored["cases"] if case["part"] == "layer"]
    native, thinned = sorted({case["points"] for case in layers}, reverse=True)
    rows = [["PointCNN++'s own code takes, forward / with gradients", "native density", "2 cm grid"]]
    for channels in ([64, 64], [64, 128]):
        for dtype in ("float16", "bfloat16"):
            cells = (f"{authors(dtype, points, channels)} times as long" for points in (native, thinned))
            rows.append([f"{dtype}, {channels[0]}→{channels[1]}", *cells])
    peer = stored_result("points_peer_h200.json")
    wide = [case for case in peer["cases"] if case["part"] == "layer" and case["channels"] == [128, 128]]
    wide = sorted((case for case in wide if case["dtype"] == "float16"), key=lambda case: -int(case["points"]))
    shown = []
    for case in wide:
        ours, other = (next(row for row in case["rows"] if row["name"].startswith(n)) for n in ("cuda", "pointel"))
        ratios = (other[way]["median_s"] / ours[way]["median_s"] for way in ("forward", "training"))
        shown.append(" / ".join(f"{ratio:.1f}" for ratio in ratios) + " times as long")
    rows.append(["float16, 128→128", *shown])
    verdicts = stored["verdicts"][:-1]
    behind = [verdict for verdict in verdicts if "NOT ahead" in verdict]
    said = [f"`{one.partition(': ')[0]}`, {one.split('NOT ahead in ')[1].partition(';')[0]}" for one in behind]
    listed = f" The exception: {'; '.join(said)}." if said else ""
    ahead = f"{len(verdicts) - len(behind)} of {len(verdicts)} cases"
    return (
        f"{table_text(rows)}\nOn native points the fastest of pointelligence, the listing and gather–GEMM–scatter "
        f"takes {times('forward', part='sizes')} as long in the forward and\n"
        f"{times('training', part='sizes')} with gradients (bfloat16, 64→64, 0.1 to 10 million points). On voxels the "
        f"faster of spconv and ocnn takes {times('forward', part='voxels')} and\n"
        f"{times('training', part='voxels')} (float16). In {ahead} ours takes less time and memory than these, or at "
        f"most 2 % more memory.{listed}\n{describe_run(stored, 'points').rstrip()}\n"
        f"128→128: {describe_commit(peer)}.\n"
    )


def _tvl1(name: str) -> dict[str, Any]:
    """Return one case of what was measured of TV-L1 on the GPU."""
    return next(case for case in stored_result("tvl1_h200.json")["cases"] if case["case"] == name)


def schedules() -> str:
    """What the times of the schedules show, compared with the paper's."""
    from benchmarks.cases.tvl1.published import TABLE1

    rows = {(row["name"], row["size"][0]): row for row in _tvl1("schedules")["rows"]}
    copied = _tvl1("ceilings")["bytes_per_s"]
    gains = {
        side: rows["global float16", side]["median_s"] / rows["shared_pipeline float16", side]["median_s"]
        for side in (2048, 8192)
    }
    paper = TABLE1["global", "float16"].ns_per_pixel / TABLE1["shared_pipeline", "float16"].ns_per_pixel
    plain, panels = (rows[f"{name} float32", 2048] for name in ("global", "global_pipeline"))
    asked = [row["bytes_read"] + row["bytes_written"] for row in (plain, panels)]
    depths = [row for row in _tvl1("depths")["rows"] if row["name"] == "global_pipeline float32"]
    best = min(depths, key=lambda row: float(row["ms_per_iteration"]))
    half = rows["global float16", 2048]["gbytes_per_s"]
    return (
        f"In float16 `shared_pipeline` is {gains[2048]:.2f} times as fast as `global` at 2048², in the paper "
        f"{paper:.2f} times. There `global` asks for\n"
        f"{half / 1e3:.2f} TB/s, more than the {copied / 1e12:.2f} TB/s of a copy: caches serve part of it. "
        f"At 8192², with 16 times the data, the ratio is {gains[8192]:.2f}.\n"
        "The rest of the difference from the paper is not explained.\n\n"
        "`global_pipeline` is the slowest here at 2048²; in the paper it is faster than `global`. In float32 ours asks "
        f"for {asked[1]:.0f} bytes a pixel, `global` for {asked[0]:.0f}\n"
        f"(the paper's: {8 * TABLE1['global_pipeline', 'float32'].accesses} both), and at a lower rate: "
        f"{panels['gbytes_per_s'] / 1e3:.2f} and {plain['gbytes_per_s'] / 1e3:.2f} TB/s. "
        f"Its best depth is {best['depth']}. The kernel was not profiled, so the lower rate is not explained.\n"
    )


def half_precision() -> str:
    """What float16 gains in TV-L1: with arithmetic in half precision, and in the solver."""
    from benchmarks.cases.tvl1.published import TABLE3
    from benchmarks.cases.tvl1.solver import at_equal_time

    case = _tvl1("quality")
    told = []
    for name in dict.fromkeys(row["set"] for row in case["rows"]):
        first = at_equal_time(case, name, "global")[0]
        less = 100 * (1 - first["epe float16"] / first["epe float32"])
        told.append(
            f"{name.capitalize()}: {first['iterations float16']:.0f} iterations fit into the time of "
            f"{first['iterations float32']:.0f}, and the mean end-point error is {less:.0f} % smaller"
        )
    own: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in case["rows"]:
        if row["schedule"] == "auto":
            own.setdefault((row["set"], row["iterations"]), {})[row["precision"]] = row
    pairs = [(both["float32"], both["float16"]) for both in own.values()]
    errors = [max(abs(a[key] - b[key]) for a, b in pairs) for key in ("epe", "aae")]
    faster = [a["seconds"] / b["seconds"] for a, b in pairs]
    sides: dict[float, dict[str, int]] = {}
    for row in _tvl1("real time")["rows"]:
        sides.setdefault(row["limit_s"], {})[row["precision"]] = row["side"]
    here = [side["float16"] / side["float32"] for side in sides.values()]
    paper = [TABLE3["float16"][limit][0] / TABLE3["float32"][limit][0] for limit in TABLE3["float32"]]
    return (
        f"{'. '.join(told)}.\n\n"
        "The solver itself (`auto`) has no such gain. Where a warp is one kernel it computes in float32 in either "
        "precision; float16 only stores less. After equally\n"
        f"many iterations the errors of all sets differ by at most {errors[0]:.1e} px and {errors[1]:.1e}°, and with "
        f"{pairs[0][0]['batch']} pairs at a time float16 is {min(faster):.2f} to {max(faster):.2f} times as fast.\n\n"
        f"The largest square frame in 5 to 40 ms (the paper's table 3) has {min(here):.2f} to {max(here):.2f} times "
        f"the side in float16 here, {min(paper):.2f} to {max(paper):.2f} times\n"
        "in the paper: half precision does not make real-time frames larger on this GPU.\n"
    )


def patched() -> str:
    """Return the table of ptlflow's models at 4096×1716, original and patched."""
    rows = [["model", "original", "patched"]]
    stored = stored_result("patched_h200_4k.json")
    for case in stored["cases"]:
        found = {row["name"]: row for row in case["rows"]}
        both = (found["as it is"], found["patched"])
        cells = (f"{row['median_s']:.2f} s, {row['peak_bytes'] / 2**30:.1f} GiB" for row in both)
        rows.append([f"`{case['model']}`", *cells])
    return f"{table_text(rows)}\nOne H200, {describe_commit(stored)}.\n"


def poses() -> str:
    """Medians of the errors of all poses that were found."""
    unseen = stored_result("descriptors_cpu.json")["unseen"]
    fpfh, learned = (f"{unseen[name]['rre']:.2f}°, {unseen[name]['rte']:.3f} m" for name in ("FPFH", "learned"))
    return f"Medians of all poses found: FPFH {fpfh}; learned {learned}.\n"


def on_cpu() -> str:
    """Return times of fullfield-s and RAFT on the CPU, by form."""
    stored = stored_result("models_cpu.json")
    rows = [["network", "updates", *(row["name"] for row in stored["cases"][0]["rows"])]]
    for case in stored["cases"]:
        times = (f"{row['median_s']:.2f} s" for row in case["rows"])
        rows.append([f"`{case['method']}`", str(case["updates"]), *times])
    about = stored["environment"]
    where = f"{about['cores']} cores, {about['cpu']}, PyTorch {about['versions']['torch']}, {describe_commit(stored)}."
    return f"{table_text(rows)}\n{where}\n"


def default() -> str:
    """Return the processor seconds of `auto` on the CPU."""
    stored = stored_result("auto_cpu.json")
    (height, width), about = stored["size"], stored["environment"]
    seconds = {name: mean(values) for name, values in stored["seconds"].items()}
    return (
        f"For a Sintel pair of {width}×{height} on one CPU thread, `auto` takes {seconds['auto']:.2g} s "
        f"in bfloat16 and {seconds['auto, exact']:.2g} s in float32\n"
        f"(`--precision exact`), and `--method tvl1` {seconds['tvl1']:.2g} s. {about['cpu']}, processor time, "
        f"{describe_commit(stored)}.\n"
    )


def training() -> str:
    """Return the training runs of fullfield-s: pairs, sizes, seeds and time."""
    rows, total, again = [["run", "GPUs", "frames", "seed", "pairs", "seconds of training", "commit"]], 0, []
    for number, run in enumerate(stored_result("fullfield_s_training.json")["runs"], 1):
        shown = [run["gpus"] * piece["pairs_a_gpu"] * piece["steps"] for piece in run["pieces"]]
        for i, (piece, pairs) in enumerate(zip(run["pieces"], shown, strict=True)):
            first = ["", ""] if i else [str(number), str(run["gpus"])]
            last = ["", ""] if i else [f"{run['history'][-1]['seconds']:.0f}", run["commit"]]
            seed = "not kept" if piece["seed"] is None else str(piece["seed"])
            rows.append([*first, piece["size"].replace("x", "×"), seed, f"{pairs:,}", *last])
        total += sum(shown)
        if "different_pairs" in run:
            again.append(f"In run {number}, {run['different_pairs']:,} of {sum(shown):,} pairs are distinct; ")
    return f"{table_text(rows)}\nThe total is {total:,} pairs. {''.join(again)}in the other runs all are.\n"


PAGES: dict[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "docs/start.md": ((MARK_DEFAULT, default),),
    "src/fullfield/ops/point_conv/README.md": ((MARK_POINTS, points),),
    "benchmarks/notes/tvl1_romera.md": ((MARK_SCHEDULES, schedules), (MARK_HALF, half_precision)),
    "benchmarks/notes/patched.md": ((MARK_PATCHED, patched),),
    "benchmarks/notes/descriptor.md": ((MARK_POSES, poses),),
    "benchmarks/notes/fullfield_s.md": ((MARK_TRAINING, training), (MARK_CPU, on_cpu)),
}
"""As in ``tables.py``: page, then the mark and the words of each part."""
