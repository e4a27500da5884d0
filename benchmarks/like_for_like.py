"""Tables that set each of our results next to the peer's in the same precision, made of the stored results."""

from __future__ import annotations

from statistics import mean, pstdev
from typing import Any

from benchmarks.markdown import table_text
from benchmarks.network_forms import (
    EXTENSION,
    HALF,
    NAMES,
    OTHERS,
    OURS,
    RENDERED,
    SINGLE,
    TITLES,
    Measured,
    describe_rendered_cases,
)
from benchmarks.paper import published
from benchmarks.stored import RESULTS, describe_commit, describe_faults, stored_result

MARK_CALLS = "<!-- public calls: begin -->\n"
MARK_SHORT = "<!-- compared: begin -->\n"
MARK_LIKE = "<!-- networks in equal precision: begin -->\n"
MARK_SWEEPS = "<!-- table 10 of Briedis et al.: begin -->\n"
MARK_GPUS = "<!-- table 10 of Briedis et al., other GPUs: begin -->\n"
MARK_CORRELATION = "<!-- table of the correlation lookup: begin -->\n"
SIZES = ([56, 128], [112, 256], [224, 512], [448, 1024], [896, 2048])
EASY, FAST = "flow_easy_512x224", "flow_medium_512x224"


def load_stored_results(*names: str) -> list[dict[str, Any]]:
    """Return those of the results that exist, in this order."""
    return [stored_result(name) for name in names if (RESULTS / name).exists()]


def get_gpu_name(results: dict[str, Any]) -> str:
    """Return the GPU's short name, such as H200."""
    return str(results["environment"]["gpu"]).removeprefix("NVIDIA ").split()[0]


BOTH = tuple(f"like_{network}_{size}.json" for network in ("raft", "sea_raft") for size in ("hd", "8k"))
"""Runs of one network at one size with both sides in both precisions."""
OLDER = "models_h200.json"
LARGE = [3432, 8192]


def load_cases(*names: str) -> list[Measured]:
    """Return (case, results) of these files, as far as they exist."""
    return [(drop_meaningless_errors(case), run) for run in load_stored_results(*names) for case in run["cases"]]


def drop_meaningless_errors(case: dict[str, Any]) -> dict[str, Any]:
    """Return the case; where its weights are random, without the errors of its flow from the true one."""
    if case.get("weights") != "random":
        return case
    rows = [{key: value for key, value in row.items() if key != "epe_px"} for row in case["rows"]]
    return {key: value for key, value in case.items() if key != "diverged"} | {"rows": rows}


def environments(runs: list[dict[str, Any]]) -> str:
    """Return GPU, version, commits and dates of these runs, each once."""
    machines: dict[str, dict[tuple[str, str], list[str]]] = {}
    for results in runs:
        about = results["environment"]
        states = machines.setdefault(f"{about['gpu']}, PyTorch {about['versions']['torch']}", {})
        faults = states.setdefault((about["commit"][:7], about["date"]), [])
        if (fault := describe_faults(results)) not in faults:
            faults.append(fault)
    return "; ".join(f"{machine}: {_describe_commits(states)}" for machine, states in machines.items())


def _describe_commits(faults_by_state: dict[tuple[str, str], list[str]]) -> str:
    """Return commits with their date and faults, those of one day and fault together."""
    days: dict[str, list[str]] = {}
    for (commit, date), faults in faults_by_state.items():
        # One commit may have results of several sources, of which some have changed since.
        named = [fault.strip(" ()") for fault in faults if fault]
        common = faults[0] if len(faults) == 1 else f" (in part {'; '.join(named)})"
        days.setdefault(date + common, []).append(commit)
    return "; ".join(f"commit {', '.join(commits)}, {day}" for day, commits in days.items())


def format_error(row: dict[str, Any]) -> str:
    """Return the mean error of a row's flow, empty where it is not known."""
    return f"{row['epe_px']:.3g} px off" if "epe_px" in row else ""


def format_cost(row: dict[str, Any], with_error: bool = True) -> str:
    """Return seconds and peak memory of a row, and its error, or why it has none."""
    if row["status"] != "ok":
        return describe_status(row)
    seconds, memory = row["median_s"], row["peak_bytes"] / 2**30
    error = f", {text}" if with_error and (text := format_error(row)) else ""
    date = f" ({row['date']})" if "date" in row else ""
    return (f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s") + f", {memory:.1f} GiB{error}{date}"


def describe_status(row: dict[str, Any]) -> str:
    """Return the status of a row without times; of a volume whose size was only computed, that it does not fit."""
    is_computed = row["status"] == "out of memory" and row.get("reason", "").startswith("the volume ")
    return "does not fit" if is_computed else str(row["status"])


def is_compiled(row: dict[str, Any]) -> bool:
    """Return whether a row's network went through ``torch.compile``."""
    return "compiled" in row["name"]


def select_best_forms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without each form that took longer than another of its library and saved no memory.

    Compiled forms are compared with compiled ones, eager ones with eager ones. Less than 0.1 GiB counts as none.
    """

    def is_beaten(row: dict[str, Any]) -> bool:
        if "median_s" not in row:
            return False
        library = row["name"].split(",")[0]
        others = (
            other
            for other in rows
            if "median_s" in other and other["name"].startswith(library) and is_compiled(other) == is_compiled(row)
        )
        allowed = row["peak_bytes"] + 2**30 / 10
        return any(other["median_s"] < row["median_s"] and other["peak_bytes"] < allowed for other in others)

    return [row for row in rows if not is_beaten(row)]


def select_rows(case: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of these names, in their order."""
    rows = {row["name"]: row for row in case["rows"]}
    return [rows[name] for name in names if name in rows]


def select_cascaded_rows(case: dict[str, Any], *precisions: str) -> list[dict[str, Any]]:
    """Return our cascaded rows of these precisions whose error is at most half of the motion."""
    rows = select_rows(case, tuple(f"{name}, cascaded" for precision in precisions for name in OURS[precision]))
    return [row for row in rows if "epe_px" in row and row["epe_px"] <= case["true_flow_px"] / 2]


def build_network_row(
    case: dict[str, Any], results: dict[str, Any], precision: str, fastest_peer_only: bool = False
) -> list[str] | None:
    """Return one line of the tables; None where a side was not measured in this precision, or the flow is wrong."""
    ours, others = select_rows(case, OURS[precision]), select_rows(case, OTHERS[precision])
    if fastest_peer_only:
        peers = [row for row in others if "median_s" in row and row["name"].startswith("ptlflow")]
        others = sorted(peers, key=lambda row: row["median_s"])[:1]
    else:
        others = select_best_forms(others)
    has_diverged = "diverged" in case  # then the flow of a cascade may be right, and errors stand beside the times
    if has_diverged:
        ours = select_cascaded_rows(case, precision)
    if not ours or not others:
        return None
    height, width = case["size"]
    title = (
        f"{TITLES[case['method']]}, {case['updates']} updates, {width}×{height}, {precision}, {get_gpu_name(results)}"
    )
    if "pair" in results:
        title += ", rendered pair"
    if has_diverged:
        title += "; ours in a cascade"
    errors = {format_error(row) for row in (ours[0], *others) if row["status"] == "ok"}
    has_equal_error = len(errors) == 1 and errors != {""}
    if has_equal_error:
        title += f"; each {errors.pop()}"
    costs = [f"{NAMES.get(row['name'], row['name'])} {format_cost(row, not has_equal_error)}" for row in others]
    return [title, format_cost(ours[0], not has_equal_error), "; ".join(costs)]


def list_slower_halves(case: dict[str, Any]) -> list[str]:
    """Return the names of the peers whose form in half precision takes longer than their form in float32."""
    times = {row["name"]: row["median_s"] for row in case["rows"] if "median_s" in row}
    displayed = [row["name"] for row in select_best_forms(select_rows(case, OTHERS[HALF]))]
    pairs = [(name, name.removesuffix(", half")) for name in displayed if name in times]
    return [NAMES[name] for name, single in pairs if "ptlflow" in name and times[name] > times.get(single, times[name])]


def add_older_peers(case: dict[str, Any], older: list[Measured]) -> dict[str, Any]:
    """Return the case with the rows of ``EXTENSION`` of an older run of its network, which get that run's date."""
    result = [
        row | {"date": run["environment"]["date"]}
        for each, run in older
        if (each["method"], each["size"]) == (case["method"], case["size"])
        for row in select_rows(each, EXTENSION)
    ]
    return {**case, "rows": case["rows"] + [row for row in result if not select_rows(case, (row["name"],))]}


def networks_table() -> str:
    """Return whole networks in equal precision, float32 first."""
    result = load_cases(*BOTH)
    older = [each for each in load_cases(OLDER) if each[0]["size"] == LARGE]
    newer = {case["method"] for case, _ in result if case["size"] == LARGE}
    with_extension = {case["method"] for case, _ in result if case["size"] == LARGE and select_rows(case, EXTENSION)}
    result = [(add_older_peers(case, older), run) for case, run in result]
    result += [each for each in older if each[0]["method"] not in newer]
    rendered = load_cases(*RENDERED)
    result += rendered
    lines: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for precision in (SINGLE, HALF):
        for case, results in result:
            row = build_network_row(case, results, precision)
            if row:
                lines.setdefault(row[0], (row, results))
    rows = [["one pair of frames on the GPU", "fullfield", "others"], *(row for row, _ in lines.values())]
    used = [results for _, results in lines.values()]
    used += [run for case, run in older if case["method"] in newer - with_extension]
    compiled = [
        row["first_call_s"] for case, _ in result for row in case["rows"] if is_compiled(row) and "median_s" in row
    ]
    rounded = sorted({run["weights"] for _, run in result if "weights" in run and "pair" not in run})
    notes = [
        "Time of one call and peak memory; a pair of Sintel, enlarged, unless marked. RAFT has its Sintel weights, "
        "which saw that pair; SEA-RAFT random ones.",
        *(f"RAFT's weights: {each}." for each in rounded),
        "float32: convolutions of both sides use TF32, PyTorch's default; our lookup's products have 22 bits.",
        "Prepared and compiled forms replay CUDA graphs, others are eager.",
    ]
    if compiled:
        notes.append(f"`torch.compile`: its first call takes {min(compiled):.0f} to {max(compiled):.0f} s.")
    displayed = [
        row
        for case, run in result
        if "diverged" not in case and "pair" not in run
        for row in case["rows"]
        if not row["name"].endswith("cascaded")
    ]
    distances = [row[key] for row in displayed for key in ("from_module_px", "from_exact_px") if key in row]
    if distances:
        notes.append(f"Flows differ from our module's by {max(distances):.3f} px in the mean at most.")
    for case, _ in result:
        if slow := list_slower_halves(case) if "diverged" not in case else []:
            notes.append(f"{TITLES[case['method']]}, {' and '.join(slow)}: in float32 it takes less time.")
        if "diverged" in case:
            notes.append(
                f"RAFT at 8192×3432 diverges without a cascade, whatever the lookup: {case['diverged']}."
                if select_cascaded_rows(case, *OURS)
                else f"RAFT at 8192×3432 with the pair of Sintel is not shown, because it diverges: {case['diverged']}."
            )
    notes += describe_rendered_cases(rendered)
    return f"{table_text(rows)}\n" + "\n".join([*notes, f"{environments(used)}; `python -m benchmarks models`."]) + "\n"


# ---- the lookup


def load_lookup_cases() -> list[Measured]:
    """Return (case, results) of the lookup's benchmark; the first that has a contender counts."""
    ours = ("like_lookups", "like_lookups_float32", "like_lookups_1024", "like_blocks")
    names = (*ours, "like_lookups_small", "like_localcorr", "like_localcorr_half")
    older = ("sizes", "alt")
    sweeps = ("like_updates.json", "like_channels.json", "like_updates_alt.json", "like_channels_alt.json")
    return load_cases(
        *(f"{name}.json" for name in names), *(f"correlation_h200_{name}.json" for name in older), *sweeps
    )


def format_time_and_memory(row: dict[str, Any], eager: bool = False) -> str:
    """Return milliseconds, by graph replay where there is one, and peak memory; else the status and the reason."""
    if row["status"] != "ok":
        has_reason = row["status"] not in ("check failed", "out of memory")
        return f"{row['status']}: {row['reason']}" if has_reason else describe_status(row)
    replayed = isinstance(row.get("graph"), dict) and not eager
    timing, mark = (row["graph"], "") if replayed else (row["eager"], " eager")
    memory = row["peak_with_inputs_bytes"] / 1e6
    value = 1e3 * timing["median_s"]
    return (f"{value:.3g}" if value < 1000 else f"{value:.0f}") + f" ms{mark}, {memory:.0f} MB"


def lookup_row(
    size: list[int],
    name: str,
    scene: str,
    dtype: str | None = None,
    *,
    updates: int = 32,
    channels: int = 256,
    file: str | None = None,
) -> Measured | None:
    """Return the first row of a contender, in ``file`` if given, and its results; None where it was not measured."""
    for case, results in load_lookup_cases():
        if file not in (None, results["file"]):
            continue
        if (case["size"], case["scene"], case["updates"], case["channels"]) == (size, scene, updates, channels):
            if dtype is not None and case["dtype"] != dtype:
                continue
            if dtype == SINGLE and case["precision"] != "highest" and name == "cuda":
                continue
            for row in case["rows"]:
                if row["name"] == name:
                    return row, results
    return None


def find_usual_gpu_name(measured: list[Measured | None]) -> str:
    """Return the GPU on which most of the cells of a table were measured."""
    cards = [get_gpu_name(each[1]) for each in measured if each is not None]
    return max(sorted(set(cards)), key=cards.count)


def name_gpu_if_unusual(results: dict[str, Any], usual: str) -> str:
    """Return the mark of a cell that was not measured on the ``usual`` GPU."""
    return "" if get_gpu_name(results) == usual else f", {get_gpu_name(results)}"


VOLUMES = ("RAFT's volume", "ptlflow volume")
KERNEL = "Briedis et al., reimplemented"
COMPILED, TRITON = "localcorr, compiled", "localcorr, Triton"


def lookup_table() -> str:
    """Return milliseconds and memory of a pair's 32 lookups by size and contender."""
    kernel = any(row["name"] == KERNEL for case, _ in load_lookup_cases() for row in case["rows"])
    columns: list[tuple[str, tuple[str, ...], str, str | None]] = [
        ("fullfield, bfloat16, calm scene", ("cuda",), EASY, "bfloat16"),
        ("fast scene", ("cuda",), FAST, "bfloat16"),
    ]
    if kernel:
        columns.append((f"{KERNEL}, bfloat16, calm", (KERNEL,), EASY, "bfloat16"))
        columns.append(("fast", (KERNEL,), FAST, "bfloat16"))
    columns += [
        ("fullfield, float32, calm", ("cuda",), EASY, SINGLE),
        ("RAFT's volume, float32", VOLUMES, EASY, None),
        ("alt_cuda_corr, float32", ("alt_cuda_corr",), EASY, None),
    ]
    if any(row["name"] == COMPILED for case, _ in load_lookup_cases() for row in case["rows"]):
        columns += [
            (f"{COMPILED}, float32", (COMPILED,), EASY, SINGLE),
            (f"{TRITON}, float32", (TRITON,), EASY, SINGLE),
            ("fullfield, float16, calm", ("cuda",), EASY, "float16"),
            (f"{COMPILED}, float16", (COMPILED,), EASY, "float16"),
            (f"{TRITON}, float16", (TRITON,), EASY, "float16"),
        ]
    rows = [["feature map", *(title for title, *_ in columns)]]
    measured = {
        size[1]: [
            next((row for name in names if (row := lookup_row(size, name, scene, dtype))), None)
            for _, names, scene, dtype in columns
        ]
        for size in SIZES
    }
    used = [each[1] for line in measured.values() for each in line if each]
    usual = find_usual_gpu_name([each for line in measured.values() for each in line])
    for size in SIZES:
        cells = [
            "" if each is None else format_time_and_memory(each[0]) + name_gpu_if_unusual(each[1], usual)
            for each in measured[size[1]]
        ]
        if any(cells):
            rows.append([f"{size[1]}×{size[0]}", *cells])
    notes = [
        "A pair's 32 lookups at recorded RAFT positions, 256 channels, 4 levels, radius 4, pooling and layout in,",
        f"float32 output; {usual} and graph replay unless marked; peak memory with inputs. RAFT's volume: one batched "
        "product in float32 of features",
        "rounded to bfloat16, pooled, sampled bilinearly. Our float32 multiplies pairs of float16 (22 bits): precision "
        "`highest`. localcorr ran",
        "through its own modules, in float16 also with positions and output in float16, as ours beside it.",
        f"{environments(used)}; `python -m benchmarks correlation`.",
    ]
    return f"{table_text(rows)}\n" + "\n".join(notes) + "\n"


def describe_blocks(usual: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the times of the paper's block-sparse product in plain PyTorch, and their results, if they are stored."""
    result = [row for scene in (EASY, FAST) if (row := lookup_row([56, 128], "blocks", scene))]
    if not result:
        return [], []
    times = "; ".join(
        f"{scene} {format_time_and_memory(row)}{name_gpu_if_unusual(results, usual)}"
        for scene, (row, results) in zip(("calm", "fast"), result, strict=False)
    )
    sentence = f"The paper's block-sparse product in plain PyTorch (`--backends blocks`), 128×56: {times}."
    return [sentence], [results for _, results in result]


# ---- tables of Briedis et al.

SWEPT = {"width": "feature map", "updates": "lookups at 512×224", "channels": "channels at 512×224"}


def find_swept_case(variable: str, value: int, name: str, scene: str) -> Measured | None:
    """Return the first row of a contender at this value of the variable, and its results."""
    requested: dict[str, Any] = {"width": 512, "updates": 32, "channels": 256, variable: value}
    width = requested.pop("width")
    dtype = "bfloat16" if name == "cuda" else None
    return lookup_row([width * 7 // 16, width], name, scene, dtype, **requested)


def format_published_cost(cell: dict[str, int] | str) -> str:
    """Return milliseconds with their deviation, and memory, of a published cell."""
    return cell if isinstance(cell, str) else f"{cell['runtime_ms']} ± {cell['std_ms']} ms, {cell['memory_mb']} MB"


def sweeps_table() -> str:
    """Return the rows of the paper's table 10 for its GH200, and what was measured here, eager on both sides."""
    # The volume's time does not depend on the scene, so either will do; that of the extension hardly.
    here = {"RAFT's volume": (FAST, EASY), "alt_cuda_corr": (FAST, EASY), KERNEL: (FAST,), "cuda": (FAST,)}
    titles = ("RAFT's volume, float32", "alt_cuda_corr, float32", f"{KERNEL}, bfloat16", "fullfield, bfloat16")
    paper = ("RAFT's volume", "alt_cuda_corr", "the paper's kernel, bfloat16")
    rows = [["", *(f"{title}, published" for title in paper), *titles]]
    used: list[dict[str, Any]] = []
    slower: list[float] = []
    times = {(line["variable"], line["value"]): line["ours"]["runtime_ms"] for line in published.rows("10")}
    published_rise = times["channels", 512] / times["channels", 128]
    swept = [each for n in (128, 512) if (each := find_swept_case("channels", n, "cuda", FAST))]
    rise = [row["eager"]["median_s"] for row, _ in swept]
    lines = [(line["variable"], line["value"]) for line in published.rows("10")]
    usual = find_usual_gpu_name(
        [find_swept_case(*line, name, scenes[0]) for line in lines for name, scenes in here.items()]
    )
    for line in published.rows("10"):
        variable, value = line["variable"], line["value"]
        cells = []
        for name, scenes in here.items():
            result = next((each for scene in scenes if (each := find_swept_case(variable, value, name, scene))), None)
            if result is None:
                cells.append("")
                continue
            row, results = result
            if name == "RAFT's volume" and (variable != "width" or value == 512):
                slower.append(1e3 * row["eager"]["median_s"] / line["default"]["runtime_ms"])
            calm = find_swept_case(variable, value, name, EASY)
            mark = ", calm" if result == calm else ""
            if calm and not mark and name in (KERNEL, "cuda"):
                mark = f" (calm {1e3 * calm[0]['eager']['median_s']:.3g} ms{name_gpu_if_unusual(calm[1], usual)})"
            cells.append(
                format_time_and_memory(row, eager=True).replace(" eager", "")
                + name_gpu_if_unusual(results, usual)
                + mark
            )
            used.append(results)
        label = f"{SWEPT[variable]}, {value}" + (" wide" if variable == "width" else "")
        rows.append([label, *(format_published_cost(line[key]) for key in ("default", "on_demand", "ours")), *cells])
    blocks, blocks_results = describe_blocks(usual)
    used += blocks_results
    notes = [
        f"Published: {published.source()}, table 10, NVIDIA GH200, mean and deviation over the pairs of Sintel.",
        f"Here: eager calls on one {usual} and positions of one fast pair unless marked. RAFT's volume multiplies "
        "features that were rounded to bfloat16,",
        "in float32 without TF32; of float32 features it failed the lookup's check. At 512×224 it takes "
        f"{min(slower):.1f} to {max(slower):.1f} times the published time. From 128",
        f"to 512 channels our time rises {rise[1] / rise[0]:.1f} times, to {1e3 * rise[1]:.3g} ms "
        f"({get_gpu_name(swept[1][1])}), the published kernel's {published_rise:.1f} times, to "
        f"{times['channels', 512]} ms (GH200): above 256 our kernel",
        "loads source features again for every chunk ([counts](correlation_cuda.md#more-than-256-channels)).",
        *blocks,
        f"An empty cell was not measured. {environments(used)}; `python -m benchmarks correlation`.",
    ]
    return f"{table_text(rows)}\n" + "\n".join(notes) + "\n"


def gpus_table() -> str:
    """Return the times of table 10 on the paper's other GPUs, and those measured here over the recorded scenes."""
    forms, kernels = ("default", "on_demand", "ours"), ("cuda", KERNEL)
    lines = published.rows("10, other GPUs")
    gpus = list(dict.fromkeys(line["gpu"] for line in lines))
    widths = list(dict.fromkeys(line["value"] for line in lines))
    measured = {
        (width, name): [each for scene in (EASY, FAST) if (each := find_swept_case("width", width, name, scene))]
        for width in widths
        for name in kernels
    }
    everything = [each for cell in measured.values() for each in cell]
    usual = find_usual_gpu_name([*everything])
    heads = [f"{gpu}, published" for gpu in gpus]
    rows = [["feature map, ms", *heads, f"fullfield, {usual}", f"{KERNEL}, {usual}"]]
    for width in widths:
        of_width = {line["gpu"]: line for line in lines if line["value"] == width}
        cells = [" / ".join(format_published_time(of_width[gpu][form]) for form in forms) for gpu in gpus]
        for name in kernels:
            times = [1e3 * row["eager"]["median_s"] for row, _ in measured[width, name]]
            marks = {name_gpu_if_unusual(results, usual) for _, results in measured[width, name]}
            digits = 2 if mean(times) < 10 else 1
            cells.append(f"{mean(times):.{digits}f} ± {pstdev(times):.{digits}f}{''.join(sorted(marks))}")
        rows.append([f"{width} wide", *cells])
    return (
        f"{table_text(rows)}\nPublished: {published.source()}, table 10: RAFT's volume / alt_cuda_corr / the paper's "
        "kernel in bfloat16, mean and\ndeviation over the pairs of Sintel. Memory is the GH200's to 1 MB. Here: eager "
        f"calls, bfloat16, mean and deviation over {len(measured[widths[0], 'cuda'])} recorded scenes, calm\n"
        f"and fast. Ours was not run on those GPUs. {environments([run for _, run in everything])}.\n"
    )


def format_published_time(cell: dict[str, int] | str) -> str:
    """Return milliseconds with their deviation of a published cell."""
    return cell if isinstance(cell, str) else f"{cell['runtime_ms']} ± {cell['std_ms']}"


# ---- README


def find_case(cases: list[dict[str, Any]], **properties: Any) -> dict[str, Any]:
    """Return the first case with these properties."""
    return next(each for each in cases if all(each.get(key) == value for key, value in properties.items()))


def find_row_by_prefix(case: dict[str, Any], begin: str) -> dict[str, Any]:
    """Return the first row whose name begins with ``begin``."""
    return next(row for row in case["rows"] if row["name"].startswith(begin))


def short_table() -> str:
    """Return rows of a network, the lookup and TV-L1: ours and the best other library, in equal precision."""
    ((case, run),) = load_cases(*BOTH[:1])
    single, half = (build_network_row(case, run, precision, fastest_peer_only=True) for precision in (SINGLE, HALF))
    rows = [["job", "fullfield", "others"]]
    if single:
        rows.append([single[0], f"{single[1]}, eager", single[2]])
    if half:
        is_same_case = single is not None and half[0] == single[0].replace(SINGLE, HALF)
        title = f"the same, {HALF}" if is_same_case else half[0]
        rows.append([title, f"{half[1]}, `PreparedFlow`", half[2]])
    size = [224, 512]
    ours = lookup_row(size, "cuda", EASY, SINGLE)
    peers = [(name, lookup_row(size, name, EASY, SINGLE)) for name in ("alt_cuda_corr", COMPILED, TRITON)]
    measured = [(name, each) for name, each in peers if each is not None]
    if ours is None or not measured:
        raise ValueError("the results lack the lookup at 512×224")
    name, theirs = min(measured, key=lambda peer: float(peer[1][0]["eager"]["median_s"]))
    ours = lookup_row(size, "cuda", EASY, SINGLE, file=theirs[1]["file"]) or ours  # of the peer's run if it has it
    where = ", ".join(sorted({get_gpu_name(ours[1]), get_gpu_name(theirs[1])}))
    title = f"RAFT's 32 correlation lookups alone, 512×224 feature maps, float32, {where}"
    rows.append(
        [
            title,
            format_time_and_memory(ours[0], eager=True),
            f"{name.replace(', Triton', ' (Triton)')} {format_time_and_memory(theirs[0], eager=True)}",
        ]
    )
    tvl1_results = stored_result("tvl1_cpu.json")
    defaults = find_case(tvl1_results["cases"], case="own defaults")
    solvers = {"OpenCV": "opencv defaults", "scikit-image": "scikit-image defaults"}
    name, peer = min(
        ((title, find_row_by_prefix(defaults, row)) for title, row in solvers.items()),
        key=lambda each: float(each[1]["epe"]),
    )
    tvl1, other = (
        f"{row['median_s']:.3g} s, {row['epe']:.3f} px off"
        for row in (find_row_by_prefix(defaults, "fullfield default"), peer)
    )
    cpu = tvl1_results["environment"]["cpu"]
    title = f"TV-L1, own defaults (ours tuned on this Sintel pair, 1024×436), 2 cores, {cpu}"
    rows.append([title, tvl1, f"{name} {other}"])
    where = environments([run, ours[1], theirs[1]])
    weights = "RAFT's weights saw its pair (Sintel, enlarged)."
    note = f"{weights} float32: TF32 in convolutions, 22 bits in our lookup's products."
    return f"{table_text(rows)}\n{note} {where}. TV-L1: {describe_commit(tvl1_results)}.\n"


def public_calls() -> str:
    """Return the times of the public calls on a GPU, compared with the network alone, and the errors of `auto`."""
    runs = load_stored_results("front_door_h200.json")
    calls: dict[str, Measured] = {}
    for run in runs:
        for case in run["cases"]:
            if case["rows"] and all("median_s" in row for row in case["rows"]):
                calls.setdefault(case["label"], (case, run))
    rows = [["job", "milliseconds by step"]]
    for label, (case, run) in calls.items():
        steps = (f"{row['name']} {1e3 * row['median_s']:.3g}" for row in case["rows"])
        rows.append([f"{label.replace('x', '×')}, {get_gpu_name(run)}", "; ".join(steps)])
    pairs = next(case["errors"] for run in runs for case in run["cases"] if "errors" in case)
    ratios = {name: result["auto"] / result["auto, exact"] for name, result in pairs.items()}
    low, high = min(ratios.values()), max(ratios.values())
    return (
        f"{table_text(rows)}\n"
        f"On {len(ratios)} shared pairs the error of `auto` by default is {low:.3f} to {high:.3f} times "
        "its error in float32.\n"
        f"{environments([run for _, run in calls.values()])}.\n"
    )


PAGES = {
    "README.md": ((MARK_SHORT, short_table),),
    "docs/measured.md": ((MARK_LIKE, networks_table),),
    "benchmarks/notes/more_tables.md": ((MARK_CALLS, public_calls), (MARK_CORRELATION, lookup_table)),
    "benchmarks/notes/lookup_paper.md": ((MARK_SWEEPS, sweeps_table), (MARK_GPUS, gpus_table)),
}
"""Page, then the mark and the words of each part, as in ``tables.py``."""
