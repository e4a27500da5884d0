"""Tables of the operators' own pages, made of the stored results by ``scripts/docs/tables.py``."""

from __future__ import annotations

from typing import Any

from benchmarks.like_for_like import EASY, environments
from benchmarks.markdown import table_text
from benchmarks.stored import RESULTS, stored_result

MARK_LOOKUP_PEERS = "<!-- table of the lookup's peers: begin -->\n"
MARK_LOOKUP_FORMS = "<!-- table of the lookup's other forms: begin -->\n"
MARK_LAYERS = "<!-- table of layers on points: begin -->\n"
MARK_LISTING = "<!-- table of the listing in Triton: begin -->\n"
MARK_VOXELS = "<!-- table of layers on voxels: begin -->\n"
MARK_NEIGHBORS = "<!-- table of neighbour search: begin -->\n"
MARK_PORT = "<!-- voxels beside the port of spconv: begin -->\n"
MARK_LAYER_FORMATS = "<!-- table of formats on points: begin -->\n"
SINGLE_LOOKUPS = "like_lookups_float32.json"


def _cases(name: str) -> list[dict[str, Any]]:
    return list(stored_result(name)["cases"])


def _with_conditions(rows: list[list[str]], *names: str) -> str:
    """Return a table, and below it machine, versions, commits and dates of the results that it shows."""
    return f"{table_text(rows)}\n{environments([stored_result(name) for name in names])}.\n"


def _row(case: dict[str, Any], begin: str) -> dict[str, Any]:
    result: dict[str, Any] = next(row for row in case["rows"] if row["name"].startswith(begin))
    return result


def _milliseconds(row: dict[str, Any], way: str) -> str:
    value = 1e3 * row[way]["median_s"]
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def lookup_peers() -> str:
    """Return milliseconds of a pair's lookups and of fused-local-corr's and ptlflow's, by precision."""
    rows = [["", "`cuda`, bfloat16", "`cuda`, float32", "peer, float32"]]
    files = ("correlation_h200_fused.json", "like_lookups.json", "correlation_h200_train.json")
    peers = (
        ("fused-local-corr", "fused-local-corr", ("eager",)),
        ("ptlflow volume", "ptlflow 0.4.2 `CorrBlock`", ("graph", "eager")),
        ("RAFT's volume", "RAFT's volume", ("graph",)),
    )
    singles = _cases(SINGLE_LOOKUPS)
    for name, (peer, called, ways) in zip(files, peers, strict=True):
        for case in _cases(name):
            if case["scene"] != EASY or not any(row["name"] == peer and row["status"] == "ok" for row in case["rows"]):
                continue
            height, width = case["size"]
            batch = f"{case['batch']} × " if case["batch"] > 1 else ""
            both = " and backward" if case["pass"] == "forward+backward" else ""
            same = ("batch", "size", "updates", "pass")
            single = next((each for each in singles if all(each[key] == case[key] for key in same)), None)
            for way in ways:
                title = f"{called}, {batch}{width}×{height}, {case['updates']} lookups{both}"
                how = "eager" if way == "eager" else "graph replay"
                own, theirs = (_milliseconds(_row(case, each), way) for each in ("cuda", peer))
                in_float32 = _milliseconds(_row(single, "cuda"), way) if single else ""
                ours = ["", own] if case["dtype"] == "float32" else [own, in_float32]
                rows.append([f"{title}, {how}", *ours, theirs])
    return _with_conditions(rows, *files, SINGLE_LOOKUPS)


def lookup_forms() -> str:
    """Milliseconds of a pair's lookups with other positions, formats and passes."""
    rows = [["", "graph replay", "eager"]]
    files = (
        "correlation_h200_random.json",
        "like_localcorr_half.json",
        SINGLE_LOOKUPS,
        "correlation_h200_backward.json",
        "correlation_h200_train.json",
    )
    for name in files:
        for case in _cases(name):
            height, width = case["size"]
            batch = f"{case['batch']} × " if case["batch"] > 1 else ""
            scene = {"random": "uniformly random positions", "flow_medium_512x224": "fast scene"}
            words = [f"{case['dtype']} to {case['out_dtype']}", scene.get(case["scene"], "calm scene")]
            words.append('products at "highest"' if case["dtype"] == "float32" else "")
            words.append("with backward" if case["pass"] == "forward+backward" else "")
            title = f"{batch}{width}×{height}, {case['updates']} lookups, {', '.join(filter(None, words))}"
            rows.append([title, *(_milliseconds(_row(case, "cuda"), way) for way in ("graph", "eager"))])
    return _with_conditions(rows, *files)


def _layer(row: dict[str, Any], kept: bool = True) -> str:
    if row["status"] != "ok":
        return str(row["status"])
    times = " / ".join(_milliseconds(row, way) for way in ("forward", "training"))
    beside = f", kept {row['kept_bytes'] / 1e6:.0f}" if kept else ""
    return f"{times}, {row['training_peak_bytes'] / 1e6:.0f} MB{beside}"


def layers() -> str:
    """One layer on real scans: forward / with gradients in milliseconds, memory, what is kept beside."""
    names = ("cuda", "pointelligence", "the supplement's listing", "gather-GEMM-scatter")
    heads = ["", "`cuda`", "pointelligence v1.5.0", "the supplement's listing, reimplemented"]
    rows = [[*heads, "gather–GEMM–scatter in PyTorch"]]
    requested = (("bfloat16", [64, 64]), ("float16", [64, 64]), ("bfloat16", [64, 128]))
    for scans, called in (("indoor_dense,", "three indoor scans"), ("indoor_dense, 2 cm", "the same on a 2 cm grid")):
        for kind, channels in requested:
            case = next(
                case
                for case in _cases("points_h200.json")
                if case["part"] == "layer"
                and case["label"].startswith(scans)
                and (case["dtype"], case["channels"], case["kernel"]) == (kind, channels, [3, 3, 3])
            )
            title = f"{kind}, {channels[0]}→{channels[1]}"
            if (kind, channels) == requested[0]:
                title = f"{called}, {case['points']:,} points, {case['triplets'] / 1e6:.3g} M triplets, {title}"
            rows.append([title, *(_layer(_row(case, name), channels == [64, 64]) for name in names)])
    return _with_conditions(rows, "points_h200.json")


def triton_listing() -> str:
    """Return one layer in float32 against the supplement's kernels in CUDA and in Triton: milliseconds, memory."""
    if not (RESULTS / "like_points.json").exists():
        return "No run is stored yet.\n"
    stored = stored_result("like_points.json")
    gpu = stored["environment"]["gpu"].removeprefix("NVIDIA ").split()[0]
    names = ("cuda", "the supplement's listing", "the listing in Triton", "gather-GEMM-scatter")
    rows = [[f"{gpu}, float32", "`cuda`", "the listing in CUDA", "the listing in Triton", "gather–GEMM–scatter"]]
    for case in stored["cases"]:
        if case["part"] == "layer":
            layer = f"{case['points']:,} points, {case['triplets'] / 1e6:.3g} M triplets, "
            title = layer + "→".join(map(str, case["channels"]))
            rows.append([title, *(_layer(_row(case, name), kept=False) for name in names)])
    return _with_conditions(rows, "like_points.json")


def voxels() -> str:
    """One layer on voxels, beside libraries of sparse convolution."""
    rows = [["voxels, one point each, float16, 64→64", "`cuda`", "spconv 2.3.8", "ocnn 2.3.3"]]
    cases = [case for case in _cases("points_h200.json") if case["part"] == "voxels"]
    for case in cases:
        if case["size"] in (100_000, 1_000_000, 10_000_000):
            size = f"{case['size'] / 1e6:g} million, {case['series'].removeprefix('voxels ')}"
            rows.append([size, *(_layer(_row(case, name)) for name in ("cuda", "spconv", "ocnn"))])
    return _with_conditions(rows, "points_h200.json")


def voxels_port() -> str:
    """Return one layer on voxels beside the port of spconv to Triton."""
    if not (RESULTS / "points_voxels_h200.json").is_file():
        return "Not measured yet.\n"
    rows = [["voxels, one point each, float16, 64→64", "`cuda`", "spconv-triton 1.0.0"]]
    for case in _cases("points_voxels_h200.json"):
        size = f"{case['size'] / 1e6:g} million, {case['series'].removeprefix('voxels ')}"
        rows.append([size, *(_layer(_row(case, name)) for name in ("cuda", "port spconv_triton"))])
    return _with_conditions(rows, "points_voxels_h200.json")


def layer_formats() -> str:
    """The CUDA backend's layer on the three scans, in the formats that are stored."""
    rows = [
        ["whole operator", "forward", "forward and backward", "64 → 128", "and backward", "beyond arguments, training"]
    ]
    for kind in ("bfloat16", "float16"):
        result = [
            _row(case, "cuda")
            for channels in ([64, 64], [64, 128])
            for case in _cases("points_ours_h200.json")
            if case["part"] == "layer"
            and case["label"].startswith("indoor_dense, 64")
            and (case["dtype"], case["channels"], case["kernel"]) == (kind, channels, [3, 3, 3])
        ]
        times = [f"{1e3 * row[way]['median_s']:.3f}" for row in result for way in ("forward", "training")]
        memory = " / ".join(f"{row['training_peak_bytes'] / 1e6:.0f}" for row in result)
        rows.append([kind, *times, f"{memory} MB"])
    return _with_conditions(rows, "points_ours_h200.json")


def neighbors() -> str:
    """Milliseconds and memory of searches, and of what is built of them."""
    cases = [case for case in _cases("points_ours_h200.json") if case["part"] == "build"]
    titles = [f"{case['points']:,} points, {case['triplets'] / 1e6:.3g} M pairs" for case in cases]
    rows = [["one H200", *titles]]
    for row in cases[0]["rows"]:
        result = [_row(case, row["name"]) for case in cases]
        times = (f"{_milliseconds(one, 'build')} ms, {one['build_peak_bytes'] / 1e6:.0f} MB" for one in result)
        rows.append([row["name"].replace("the same, strided", "the same, centres thinned"), *times])
    return _with_conditions(rows, "points_ours_h200.json")


PAGES = {
    "benchmarks/notes/points_layers.md": ((MARK_PORT, voxels_port),),
    "src/fullfield/ops/neighbors/README.md": ((MARK_NEIGHBORS, neighbors),),
    "src/fullfield/ops/correlation/README.md": ((MARK_LOOKUP_PEERS, lookup_peers),),
    "src/fullfield/ops/correlation/cuda/README.md": ((MARK_LOOKUP_FORMS, lookup_forms),),
    "src/fullfield/ops/point_conv/README.md": (
        (MARK_LAYERS, layers),
        (MARK_LISTING, triton_listing),
        (MARK_VOXELS, voxels),
    ),
    "src/fullfield/ops/point_conv/cuda/README.md": ((MARK_LAYER_FORMATS, layer_formats),),
}
"""As in ``tables.py``: page, then the mark and the table of each part."""
