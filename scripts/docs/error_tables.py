"""Tables of errors, made of the stored results by ``scripts/docs/tables.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from statistics import geometric_mean, mean, median
from typing import Any

from benchmarks.markdown import table_text
from benchmarks.stored import RESULTS, describe_commit, describe_faults, stored_result

MARK_START = "<!-- errors of fullfield-s: begin -->\n"
MARK_CARD = "<!-- errors by method: begin -->\n"
MARK_OFFICIAL = "<!-- errors of the official weights: begin -->\n"
MARK_REFINED = "<!-- errors of refined networks: begin -->\n"
MARK_CONFIDENCE = "<!-- table of the confidence: begin -->\n"
MARK_REMAINING = "<!-- errors of what remains: begin -->\n"
MARK_OCCLUSION = "<!-- table of the occlusion: begin -->\n"
MARK_RENDERED = "<!-- errors of rendered scenes: begin -->\n"
MARK_SHOTS = "<!-- table of rendered scenes: begin -->\n"
MARK_POSES = "<!-- errors of poses: begin -->\n"
MARK_PLAIN = "<!-- table of RANSAC alone: begin -->\n"
MARK_DESCRIBING = "<!-- time to describe: begin -->\n"
CALLED = {
    "sintel clean alley_1": "Sintel alley_1, clean",
    "sintel final alley_1": "Sintel alley_1, final",
    **{f"sintel {name}": f"Sintel {name}, clean" for name in ("ambush_2", "market_5", "sequence1_3", "sequence_2")},
}
SIX = "mean of the six"
CHAIRS = "mean of the three"


def _errors() -> dict[str, dict[str, float]]:
    """Return errors by method and pair, with the mean of Middlebury's six pairs after them."""
    found: dict[str, dict[str, float]] = {}
    for method, errors in stored_result("errors_cpu.json")["errors"].items():
        six = {name.removeprefix("middlebury "): value for name, value in errors.items() if "middlebury" in name}
        rest = {name: value for name, value in errors.items() if "middlebury" not in name}
        found[method] = {**six, SIX: mean(six.values()), **rest}
    return found


def _describe(methods: Sequence[str]) -> str:
    """Return the line below a table of errors: the commits and days on which its methods ran."""
    stored = stored_result("errors_cpu.json")
    days: dict[str, list[str]] = {}
    for made in (stored["made"][method] for method in methods):
        commits = days.setdefault(made["date"], [])
        if "commit" in made and made["commit"][:7] not in commits:
            commits.append(made["commit"][:7])
    runs = (f"commit {', '.join(commits)}, {day}" if commits else day for day, commits in sorted(days.items()))
    precisions = "`auto` (both presets) in bfloat16, others in float32" if "auto" in methods else "float32"
    return f"On the CPU, {precisions}, {'; '.join(runs)}{describe_faults(stored)}.\n"


def _by_pair(methods: list[str], digits: str, pairs: int | None = None) -> str:
    errors = _errors()
    rows = [["pair", *methods]]
    for name in [name for name in errors[methods[0]] if all(name in errors[method] for method in methods)][:pairs]:
        called = CALLED.get(name, name.replace("flyingchairs", "FlyingChairs"))
        rows.append([called, *(format(errors[method][name], digits) for method in methods)])
    return f"{table_text(rows)}\n{_describe(methods)}"


def _by_method(*methods: str) -> str:
    """Return a row of errors for each method."""
    errors = _errors()
    methods = tuple(method for method in methods if method in errors)
    for by_pair in errors.values():
        chairs = [value for name, value in by_pair.items() if "flyingchairs" in name]
        by_pair[CHAIRS] = mean(chairs) if chairs else nan
    sintel = [name for name in CALLED if all(name in errors[method] for method in methods)]
    heads = ["mean end-point error, px", "six Middlebury pairs", *(name.removeprefix("sintel ") for name in sintel)]
    rows = [[*heads, "three of FlyingChairs"]]
    for method in methods:
        called, _, preset = method.partition(", ")
        called = f"`{called}`" + (f", `--preset {preset}`" if preset else "")
        rows.append([called, *(f"{errors[method][name]:#.3g}" for name in (SIX, *sintel, CHAIRS))])
    return f"{table_text(rows)}\n{_describe(methods)}"


def start() -> str:
    """Return the table of the methods that need no download."""
    return _by_method("auto", "auto, accurate", "fullfield-s", "tvl1")


def small_card() -> str:
    """Return the errors of fullfield-s."""
    return _by_method("fullfield-s", "raft-small")


def medium_card() -> str:
    """Return the errors of fullfield-m."""
    return _by_method("fullfield-m", "raft-small", "raft-things")


def official() -> str:
    """Return the errors of the official weights by pair."""
    return _by_pair(["raft-things", "raft-small", "raft-sintel"], ".4f")


def refined() -> str:
    """Return the errors of RAFT, refined and in three passes, by pair."""
    forms = ("", ", refined", ", three passes")
    return _by_pair([f"{name}{form}" for name in ("raft-sintel", "raft-small") for form in forms], ".3f")


def confidence() -> str:
    """How large the error is at each confidence, of pairs that did not fit the constants."""
    stored = stored_result("confidence_cpu.json")
    rows = [["confidence", "share of pixels", "mean confidence", "under 1 px", "median error, px", "mean error, px"]]
    for part in stored["own"]["parts"]:
        low, high = part["between"]
        shares = (f"{part[name]:.3f}" for name in ("share", "confidence", "right"))
        rows.append([f"{low:g} to {high:g}", *shares, *(f"{part[name]:.2f}" for name in ("median", "mean"))])
    heads = {"calibration error": "gap", "Brier score": "brier", "area under the ROC curve": "area"}
    values = [[f"{stored[kind][name]:.3f}" for kind in ("own", "without")] for name in heads.values()]
    rest = [["", "with the network's own uncertainty", "without"]]
    rest += [[head, *both] for head, both in zip(heads, values, strict=True)]
    kinds = ("own", "without", "distance")
    areas = [
        ["area under the sparsification curve", "with its own uncertainty", "without", "forward-backward distance"]
    ]
    for pair in stored["own"]["sparsification"]:
        areas.append([CALLED.get(pair, pair.split()[-1]), *(f"{stored[k]['sparsification'][pair]:.3f}" for k in kinds)])
    means = [sum(values := list(stored[k]["sparsification"].values())) / len(values) for k in kinds]
    areas.append(["mean", *(f"{mean:.3f}" for mean in means)])
    return f"{table_text(rows)}\n{table_text(rest)}\n{table_text(areas)}"


def remaining() -> str:
    """Return three passes on synthetic pairs against the network: geometric mean of the ratios, and the worst one."""
    results = stored_result("made_pairs_cpu.json")
    stored = results["pairs"]
    rows = [["synthetic pairs", "of the change", *stored]]
    for group in ("seed 911", "seed 4242"):
        for kept, called in (("everything", "everything"), ("remaining", "what remains")):
            cells = []
            for by_group in stored.values():
                ratios = [pair[kept] / pair["network"] for pair in by_group[group].values()]
                cells.append(f"{100 * geometric_mean(ratios) - 100:+.1f} %, {100 * max(ratios) - 100:+.1f} %")
            rows.append([f"{group}, {len(ratios)} pairs", called, *cells])
    return f"{table_text(rows)}\nOn the CPU, {describe_commit(results)}.\n"


def occlusion() -> str:
    """Average precision and F1, in brackets of the plain check."""
    results = stored_result("made_pairs_cpu.json")
    stored = results["pairs"]
    rows = [["pairs", *stored]]
    for group in ("alley_1", "seed 911", "seed 4242"):
        cells = []
        for by_group in stored.values():
            pairs = [pair for pair in by_group[group].values() if "occlusion" in pair]
            ours, plain = ([mean(pair[kind][n] for pair in pairs) for n in (0, 1)] for kind in ("occlusion", "plain"))
            cells.append(f"{ours[0]:.2f}, {ours[1]:.2f} ({plain[0]:.2f}, {plain[1]:.2f})")
        rows.append([group.replace("seed", "synthetic, seed"), *cells])
    return f"{table_text(rows)}\n{describe_commit(results).capitalize()}.\n"


def poses() -> str:
    """Of the shared pairs of clouds as they are, FPFH: medians of three starting poses."""
    rows = [["pair", "matches", "inliers %", "RRE", "RTE", "RMSE", "seconds"]]
    stored = stored_result("descriptors_cpu.json")
    for pair, by_change in stored["rows"].items():
        runs = by_change["as it is"]["FPFH"]
        middle = {name: median(run[name] for run in runs) for name in runs[0]}
        lengths = (f"{middle[name]:.3f} m" for name in ("rte", "rmse"))
        cells = [pair, f"{middle['matches']:.0f}", f"{100 * middle['ir']:.0f}", f"{middle['rre']:.2f}°", *lengths]
        rows.append([*cells, f"{middle['seconds']:.1f}"])
    about = f"{stored['environment']['cpu']}, {describe_commit(stored)}"
    return f"{table_text(rows)}\n{about}.\n"


def plain_ransac() -> str:
    """Return the table of both descriptors with RANSAC alone, on the shared pairs as they are and over all changes."""
    stored = stored_result("descriptors_plain_cpu.json")
    rows = [["pair", "found: FPFH, learned", "inlier ratio %", "FMR %", "RMSE"]]
    parts = {pair: by_change["as it is"] for pair, by_change in stored["rows"].items()}
    changed = [by_name for by_change in stored["rows"].values() for by_name in by_change.values()]
    names = ("FPFH", "learned")
    total = {name: [run for by_name in changed for run in by_name[name]] for name in names}
    for pair, by_name in [*parts.items(), ("**all changes**", total)]:
        runs = [by_name[name] for name in names]
        found = (f"{sum(run['found'] for run in each)} of {len(each)}" for each in runs)
        ratios = (f"{100 * mean(run['ir'] for run in each):.1f}" for each in runs)
        recalls = (f"{100 * mean(run['ir'] > 0.05 for run in each):.0f}" for each in runs)
        errors = (f"{median(run['rmse'] for run in each if run['found']):.3f} m" for each in runs)
        rows.append([pair, *(", ".join(part) for part in (found, ratios, recalls, errors))])
    return f"{table_text(rows)}\n{describe_commit(stored).capitalize()}.\n"


def describing() -> str:
    """Return the time that describing three dense scans takes on the CPU."""
    on_cpu = stored_result("descriptors_dense_cpu.json")
    dense = on_cpu["dense"]

    def shown_times(row: dict[str, Any]) -> tuple[str, str]:
        elapsed, busy = row["seconds"], row["cpu_seconds"]
        if isinstance(elapsed, float):
            return f"{elapsed:.1f} s", f"{busy:.1f} s of processor time, least of 3"
        return (
            f"{median(elapsed):.1f} s",
            f"{min(elapsed):.1f} to {max(elapsed):.1f}; {median(busy):.1f} s of processor time",
        )

    times = {name: shown_times(row) for name, row in dense.items()}
    shown = " and ".join(f"{seconds} ({name}; {details})" for name, (seconds, details) in times.items())
    described, threads = f"{dense['learned']['described']:,}", dense["learned"]["threads"]
    about = describe_commit(on_cpu)
    return f"On {threads} CPU cores {described} points at 2 cm take {shown}, thinning included; {about}.\n"


SCALES = ("1/8", "1/4", "1/2", "1")


def _rendered() -> list[dict[str, Any]]:
    """Return the stored runs on rendered scenes, smallest frames first."""
    found = [stored_result(path.name) for path in sorted(RESULTS.glob("rendered_*.json"))]
    return sorted(found, key=lambda stored: int(stored["size"].partition("x")[0]))


def rendered_shots() -> str:
    """Return the rendered shots: seeds, settings and motion."""
    rows = [["shot", "frames", "pairs", "seed", "`--thin`", "`--speed`", "motion: median, 99 %", "occluded"]]
    for stored in _rendered():
        for name, shot in stored["recipe"].items():
            settings, pairs = shot["settings"], shot["pairs"].values()
            motion = ", ".join(f"{mean(pair['motion_px'][q] for pair in pairs):.0f} px" for q in ("p50", "p99"))
            hidden = f"{100 * mean(pair['occluded'] for pair in pairs):.1f} %"
            numbers = (str(settings[key]) for key in ("seed", "thin", "speed"))
            rows.append([name, stored["size"].replace("x", "×"), str(len(pairs)), *numbers, motion, hidden])
    return table_text(rows) if len(rows) > 1 else "No run is stored yet.\n"


def rendered() -> str:
    """Return error by scale and cascade on rendered scenes, and where full resolution has the smallest error."""
    parts = []
    for stored in _rendered():
        runs: dict[str, dict[str, Any]] = {}
        for run in stored["runs"]:
            runs.setdefault(run["method"], {})[run["scale"]] = run
        size = stored["size"].replace("x", "×")
        rows = [[f"{stored['pairs']} pairs, {size}", *SCALES, "large motion, best scale", "time at full size"]]
        is_timed = "gpu" in stored["environment"]  # two shared CPU cores give no times
        best_mean, best_share = _Winners(), _Winners()
        for method, by_scale in runs.items():
            scores = {scale: run["scores"] for scale, run in by_scale.items()}
            cells = [f"{scores[s]['epe']:#.3g} px, {scores[s]['px1']:.1f} %" if s in scores else "" for s in SCALES]
            large = {scale: value["lm_epe"] for scale, value in scores.items() if value["lm_epe"] is not None}
            best = min(large, key=large.__getitem__, default=None)
            seconds = f"{by_scale['1']['runtime']['median_s']:#.3g} s" if "1" in by_scale and is_timed else ""
            found = "" if best is None else f"{large[best]:#.3g}".rstrip(".") + f" px at {best}"
            rows.append([method, *cells, found, seconds])
            if set(SCALES) <= set(scores):
                best_mean.add(method, {scale: scores[scale]["epe"] for scale in SCALES})
                best_share.add(method, {scale: scores[scale]["px1"] for scale in SCALES})
        told = f"\nOf methods measured at all four scales, smallest mean error at {size}: {best_mean}.\n"
        told += f"Smallest share above one pixel: {best_share}.\n{describe_commit(stored).capitalize()}.\n"
        parts.append(table_text(rows) + told)
    return "\n".join([*parts, _by_shot()]) if parts else "No run is stored yet.\n"


class _Winners:
    """Methods by whether their smallest score is that of full size or of a smaller scale."""

    def __init__(self) -> None:
        self._full: list[str] = []
        self._smaller: list[str] = []

    def add(self, method: str, by_scale: dict[str, float]) -> None:
        least = min(by_scale, key=by_scale.__getitem__)
        (self._full if least == "1" else self._smaller).append(method if least == "1" else f"{method} at {least}")

    def __str__(self) -> str:
        told = [f"at full size for {', '.join(self._full)}"] if self._full else []
        return "; ".join([*told, *([f"at a smaller scale for {', '.join(self._smaller)}"] if self._smaller else [])])


def _mean_error(run: dict[str, Any], shot: str) -> float:
    return float(mean(score["epe"] for pair, score in run["by_pair"].items() if pair.startswith(f"{shot}/")))


def _by_shot() -> str:
    """Return the mean error of every shot at half the size and at full size."""
    cells: dict[str, dict[str, str]] = {}
    for stored in _rendered():
        runs = {(run["method"], run["scale"]): run for run in stored["runs"]}
        for method in dict.fromkeys(method for method, scale in runs if scale == "1" and (method, "1/2") in runs):
            for shot in stored["recipe"]:
                errors = [_mean_error(runs[method, scale], shot) for scale in ("1/2", "1")]
                cells.setdefault(method, {})[shot] = " → ".join(f"{error:#.3g}" for error in errors) + " px"
    shots = [shot for stored in _rendered() for shot in stored["recipe"]]
    rows = [[method, *(found.get(shot, "") for shot in shots)] for method, found in cells.items()]
    return "Mean error by shot, at half the size → at full size:\n\n" + table_text([["method", *shots], *rows])


PAGES = {
    "docs/start.md": ((MARK_START, start),),
    "docs/fullfield-s.md": ((MARK_CARD, small_card),),
    "docs/fullfield-m.md": ((MARK_CARD, medium_card),),
    "benchmarks/notes/fullfield_s.md": ((MARK_CONFIDENCE, confidence), (MARK_OCCLUSION, occlusion)),
    "benchmarks/notes/rendered.md": ((MARK_SHOTS, rendered_shots), (MARK_RENDERED, rendered)),
    "benchmarks/notes/networks.md": ((MARK_OFFICIAL, official),),
    "docs/registration.md": ((MARK_POSES, poses),),
    "benchmarks/notes/descriptor.md": ((MARK_PLAIN, plain_ransac), (MARK_DESCRIBING, describing)),
    "src/fullfield/ops/tvl1/README.md": ((MARK_REFINED, refined), (MARK_REMAINING, remaining)),
}
"""As in ``tables.py``: page, then the mark and the table of each part."""
