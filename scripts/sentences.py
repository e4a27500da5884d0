"""Sentences with measured numbers and short tables, which ``scripts/tables.py`` writes from the stored results."""

from __future__ import annotations

from collections.abc import Iterable

from operator_tables import lines, read

BEGIN_POINTS = "<!-- points beside others: begin -->\n"
BEGIN_PATCHED = "<!-- patched at 4K: begin -->\n"
BEGIN_POSES = "<!-- poses of both descriptors: begin -->\n"
BEGIN_TRAINING = "<!-- trainings of fullfield-s: begin -->\n"
BEGIN_NETWORK = "<!-- times of fullfield-s: begin -->\n"
BEGIN_FORMS = "<!-- times by form: begin -->\n"
BEGIN_CPU = "<!-- times on the CPU: begin -->\n"


def _span(ratios: Iterable[float]) -> str:
    found = list(ratios)
    low, high = f"{min(found):.1f}", f"{max(found):.1f}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def points() -> str:
    """How many times as long the best other library takes, by part, and where ours is not ahead."""
    stored = read("points_h200.json")

    def times(part: str, way: str) -> str:
        found = []
        for case in stored["cases"]:
            if case["part"] == part:
                rows = [row[way]["median_s"] for row in case["rows"] if row["status"] == "ok"]
                found.append(min(rows[1:]) / rows[0])
        return _span(found)

    verdicts = stored["verdicts"][:-1]
    behind = [verdict for verdict in verdicts if "NOT ahead" in verdict]
    said = [f"`{one.partition(': ')[0]}`, {one.split('NOT ahead in ')[1].partition(';')[0]}" for one in behind]
    listed = f" The exception: {'; '.join(said)}." if said else ""
    ahead = f"{len(verdicts) - len(behind)} of {len(verdicts)} cases"
    return (
        f"The best other library takes {times('sizes', 'forward')} as long in the forward and "
        f"{times('sizes', 'training')} with gradients,\n"
        f"on voxels {times('voxels', 'forward')} and {times('voxels', 'training')}. "
        f"Ours is ahead of all others, or level, in time and in memory in\n{ahead}.{listed}\n"
    )


def patched() -> str:
    """Return the table of ptlflow's models at 4096×1716, original and patched."""
    rows = [["model", "original", "patched"]]
    about = []
    for name in ("patched_h200_4k.json", "patched_h200_4k_ccmr_dpflow.json"):
        stored = read(name)
        for case in stored["cases"]:
            found = {row["name"]: row for row in case["rows"]}
            both = (found["as it is"], found["patched"])
            cells = (f"{row['median_s']:.2f} s, {row['peak_bytes'] / 2**30:.1f} GiB" for row in both)
            rows.append([f"`{case['model']}`", *cells])
        about.append(f"[{stored['environment']['date']}](../benchmarks/results/{name})")
    return f"{lines(rows)}\nOne H200, {', '.join(about)}.\n"


def poses() -> str:
    """Medians of the errors of all poses that were found."""
    unseen = read("descriptors_cpu.json")["unseen"]
    fpfh, learned = (f"{unseen[name]['rre']:.2f}°, {unseen[name]['rte']:.3f} m" for name in ("FPFH", "learned"))
    return f"Medians of all poses found: FPFH {fpfh}; learned {learned}, harder pairs among them.\n"


def network() -> str:
    """Return times and memory of fullfield-s by size of the frames."""
    cases = read("fullfield_s_h200.json")["network"]
    rows = [["frames", "time", "memory"]]
    for name in ("1024x436", "1920x1080", "8192x3432", "8192x3432 cascaded"):
        case = cases[name]
        rows.append([name.replace("x", "×"), f"{case['median_ms']:.1f} ms", f"{case['memory_gib']:.2f} GiB"])
    return lines(rows)


def forms() -> str:
    """Return the times of fullfield-s as an estimator: exact, fast, and at twice the size."""
    stored = read("fullfield_s_forms_h200.json")
    columns = ("exact", "accurate", "fast", "accurate, fast")
    found: dict[str, dict[str, str]] = {}
    for case in stored["cases"]:
        if case["ways"] == 1:
            height, width = case["size"]
            found.setdefault(f"{width}×{height}", {})[case["form"]] = f"{case['median_ms']:.3g} ms"
    rows = [["frames", *columns]]
    rows += [[size, *(times[name] for name in columns)] for size, times in found.items() if set(columns) <= set(times)]
    about = f"{stored['gpu']}, PyTorch {stored['torch']}, commit {stored['commit']}, {stored['date']}."
    return f"{lines(rows)}\n{about}\n"


def on_cpu() -> str:
    """Return the times of fullfield-s and RAFT on the CPU, exact and fast."""
    stored = read("models_cpu.json")
    rows = [["network", "updates", "exact", "fast"]]
    for case in stored["cases"]:
        found = {row["name"]: f"{row['median_s']:.2f} s" for row in case["rows"]}
        rows.append([f"`{case['method']}`", str(case["updates"]), found["exact"], found["fast"]])
    about = stored["environment"]
    where = f"{about['cores']} cores, {about['cpu']}, PyTorch {about['versions']['torch']}, {about['date']}."
    return f"{lines(rows)}\n{where}\n"


def training() -> str:
    """Return the training runs of fullfield-s: pairs, sizes, seeds and time."""
    rows, total, again = [["run", "GPUs", "frames", "seed", "pairs", "seconds of training", "commit"]], 0, []
    for number, run in enumerate(read("fullfield_s_training.json")["runs"], 1):
        shown = [run["gpus"] * piece["pairs_a_gpu"] * piece["steps"] for piece in run["pieces"]]
        for i, (piece, pairs) in enumerate(zip(run["pieces"], shown, strict=True)):
            first = ["", ""] if i else [str(number), str(run["gpus"])]
            last = ["", ""] if i else [f"{run['history'][-1]['seconds']:.0f}", run["commit"]]
            seed = "not kept" if piece["seed"] is None else str(piece["seed"])
            rows.append([*first, piece["size"].replace("x", "×"), seed, f"{pairs:,}", *last])
        total += sum(shown)
        if "different_pairs" in run:
            again.append(f"In run {number}, {run['different_pairs']:,} of {sum(shown):,} pairs are distinct; ")
    return f"{lines(rows)}\nThe total is {total:,} pairs. {''.join(again)}in the other runs all are.\n"


PAGES = {
    "docs/models.md": ((BEGIN_FORMS, forms),),
    "src/fullfield/ops/point_conv/README.md": ((BEGIN_POINTS, points),),
    "docs/integrations.md": ((BEGIN_PATCHED, patched),),
    "docs/registration.md": ((BEGIN_POSES, poses),),
    "docs/fullfield-s.md": ((BEGIN_TRAINING, training), (BEGIN_NETWORK, network), (BEGIN_CPU, on_cpu)),
}
"""As in ``tables.py``: page, then the mark and the words of each part."""
