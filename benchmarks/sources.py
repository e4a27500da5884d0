"""Which files of the package decide a result: kernels, what launches them, and the networks that were measured."""

from __future__ import annotations

from typing import Any

_KERNELS, _LOOKUP, _TVL1, _FUSED, _MODELS, _TRAINING = (
    f"src/fullfield/{name}/"
    for name in ("_kernels", "ops/correlation", "ops/tvl1", "ops/_fused", "models", "training/flow")
)


def _name_headers(*names: str) -> tuple[str, ...]:
    return tuple(f"{_KERNELS}{name}.cuh" for name in names)


_LOOKUP_CODE = (
    f"{_LOOKUP}cuda/*.cu*",
    f"{_LOOKUP}cuda/*.py",
    *_name_headers("barriers", "copies", "halves", "products", "warps"),
)
_PLAIN = (f"{_MODELS}framing.py", f"{_MODELS}network.py", "src/fullfield/nn/correlation.py")
"""What every network runs."""
_PREPARED = f"{_MODELS}prepared/*.py"
_RAFT = (f"{_MODELS}raft/*.py",)
_SEA_RAFT = (f"{_MODELS}raft/[!p]*.py", f"{_MODELS}sea_raft/*.py")  # some of its layers are those of RAFT's module
_PASSES = (
    *(f"{_FUSED}{name}" for name in ("common.cuh", "convex.cu", "cuda.py", "passes.cu")),
    *_name_headers("convex_cells", "values"),
    "src/fullfield/nn/upsampling.py",
)
_DEPTHWISE = f"{_FUSED}depthwise.cu"
_NETWORK = (*_LOOKUP_CODE, *_PASSES, *_PLAIN, _PREPARED)
_SOLVER = (
    f"{_TVL1}cuda/*.cu*",
    f"{_TVL1}cuda/*.py",
    *_name_headers("barriers", "copies", "halves", "values", "warps"),
)
_POINTS = (
    *(
        f"src/fullfield/ops/{name}"
        for name in (
            "neighbors/*.cu*",
            "neighbors/cuda/*.py",
            "point_conv/*.cu*",
            "point_conv/cuda/*.py",
            "point_norm/*.cu*",
            "point_norm/cuda.py",
        )
    ),
    *_name_headers("barriers", "batches", "copies", "halves", "products", "sort_rows", "values", "warps"),
)
_SHOT = tuple(
    f"src/fullfield/{folder}{name}.py"
    for folder, names in {
        "": "_read_ahead",
        "_ledger/": "records versions",
        "estimators/": "_devices _frames _solver_pool _still bars estimation network protocol refined",
        "io/": "channels files image oiio orientation scanlines transfer vectors windows",
        "io/flow_formats/": "exr",
        "models/": "cascade framing network",
        "ops/tvl1/": "config frames guided guided_cuda",
        "sequences/": "changes engine job names outputs plates results run settings writing",
    }.items()
    for name in names.split()
)
"""Modules that a shot runs besides those of the networks and of TV-L1: reading, estimation, writing, records."""
_CASCADE = f"{_MODELS}cascade.py"
KERNELS: dict[str, tuple[str, ...]] = {
    "correlation": _LOOKUP_CODE,
    "front-door": (*_NETWORK, _DEPTHWISE, *_SEA_RAFT, _CASCADE, *_SOLVER, "src/fullfield/estimators/*.py"),
    "models": _NETWORK,
    "patched": (*_LOOKUP_CODE, "src/fullfield/integrations/*.py"),
    "points": _POINTS,
    "refine": (
        *(f"{_TVL1}cuda/{name}" for name in ("guided*.cu*", "median*.cu*", "sampling.cuh")),
        *(f"{_TVL1}{name}.py" for name in ("guided_cuda", "config")),
        *_name_headers("copies", "halves", "values"),
    ),
    "rendered": (*_NETWORK, _DEPTHWISE, *_RAFT, *_SEA_RAFT, _CASCADE, *_SOLVER),
    "sequence": (*_NETWORK, _DEPTHWISE, *_RAFT, *_SEA_RAFT, *_SOLVER, *_SHOT),
    "training": (
        *_LOOKUP_CODE,
        *_PASSES,
        f"{_FUSED}convex_gradients.cu",
        *_PLAIN,
        f"{_TRAINING}*.py",
    ),
    "tvl1": _SOLVER,
    "windows": (
        "src/fullfield/ops/spatial_correlation/cuda/*",
        "src/fullfield/ops/matching/*",
        *_name_headers("copies", "halves", "products", "values", "warps"),
    ),
}
"""Files whose code a benchmark measures on a GPU, by its name: kernels, and what launches them."""
CPU_KERNELS: dict[str, tuple[str, ...]] = {
    "front-door": (
        *(f"{_LOOKUP}_cpu_*.py", f"{_TVL1}_*_kernels.py", f"{_FUSED}reference.py"),
        *(*_PLAIN, _PREPARED, *_SEA_RAFT, _CASCADE),
    ),
    "models": (f"{_LOOKUP}_cpu_*.py", f"{_FUSED}reference.py", "src/fullfield/nn/upsampling.py", *_PLAIN, _PREPARED),
    "packing": ("src/fullfield/io/flow_formats/exr.py",),
    "tvl1": (f"{_TVL1}_cpu_kernels.py", f"{_TVL1}cpu.py"),
}
"""As :data:`KERNELS`, on a CPU."""


def list_sources(results: dict[str, Any], *, on_gpu: bool) -> list[str]:
    """Return the files that decide the results of a benchmark: those of its name, and of the networks of its cases."""
    bench = results.get("bench", "")
    sources = [*(KERNELS if on_gpu else CPU_KERNELS).get(bench, ())]
    if sources and bench in ("models", "training"):
        for network in sorted({case["label"].split()[0] for case in results["cases"]}):
            sources += _list_network_sources(network, on_gpu=on_gpu, is_trained=bench == "training")
        if any(row["name"].endswith(", cascaded") for case in results["cases"] for row in case["rows"]):
            sources.append(_CASCADE)
    return [*dict.fromkeys(sources)]


def _list_network_sources(network: str, *, on_gpu: bool, is_trained: bool) -> tuple[str, ...]:
    from fullfield.models.weights import NETWORKS

    is_sea_raft = ".sea_raft." in NETWORKS[network].network
    sources: tuple[str, ...] = _SEA_RAFT if is_sea_raft else _RAFT
    if is_trained:
        sources = tuple(source.replace("/*.py", "/[!p]*.py") for source in sources)  # without prepared.py
    if is_sea_raft and on_gpu:
        sources = (*sources, _DEPTHWISE, *([f"{_TRAINING}convex_loss/*.cu"] if is_trained else []))
    return sources
