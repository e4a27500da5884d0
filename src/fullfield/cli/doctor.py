"""List what works on this machine, and what to install for the rest.

List versions and devices, the backend of each operator and the reasons why others do not run, and estimate a tiny
scene. Exits with 2 if that fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from fullfield._install import build_install_command
from fullfield.cli import report
from fullfield.models.weights import DEFAULTS, WEIGHTS, find_local_weights

_PACKAGES = {
    "torch": "everything",
    "numpy": "everything",
    "numba": "the fast CPU kernels",
    "OpenImageIO": "frames, KITTI PNG, EXR",
    "h5py": ".flo5",
    "PIL": "JPEG and labels in pictures",
    "av": "video files and streams, `live` and videos of the flow",
    "cv2": "cameras, the window of --preview",
    "small_gicp": "`register`",
    "scipy": "`register`",
    "laspy": "LAS clouds",
    "lazrs": "LAZ clouds",
}
_EXTRAS = {
    "video": (("av",), "video files and streams: `live`, shots that are videos, videos of the flow"),
    "register": (("small_gicp", "scipy", "laspy", "lazrs"), "`register`, LAS and LAZ clouds"),
    "ray": (("ray",), "shots on a cluster: `shot --ray`"),
    "export": (("onnx", "onnxruntime", "onnxscript"), "networks as ONNX files: `export`"),
    "bench": (("cv2", "skimage", "matplotlib", "pynvml"), "cameras of `live`, plots, and what benchmarks compare with"),
    "cuda12": (("nvidia-cuda-nvrtc-cu12",), "the compiler of our GPU kernels, if PyTorch for CUDA 12 has none"),
    "cuda13": (("nvidia-cuda-nvrtc",), "the compiler of our GPU kernels, if PyTorch for CUDA 13 has none"),
    "docs": (("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx_copybutton"), "the documentation site"),
    "dev": (
        ("pytest", "pytest_timeout", "xdist", "hypothesis", "mypy", "ruff", "codespell_lib", "openjd"),
        "tests and checks of fullfield itself",
    ),
}
"""Extras of the package: their modules (for CUDA distributions), and what needs them."""
_OPERATORS = ("correlation", "spatial_correlation", "matching", "neighbors", "point_conv", "tvl1", "refinement")
_ELSEWHERE = {"refinement": ("tvl1.guided", "explain_refinement_backends")}
"""Operators without a module of their own: module and function that list their backends."""
_ON_POINTS = ("neighbors", "point_conv")
_ON_FRAMES = ("spatial_correlation", "matching", "tvl1", "refinement")
"""Operators whose backends on GPUs are listed after those of correlation."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fullfield doctor``."""
    report.add_report_options(parser)


def run_command(args: argparse.Namespace) -> int:
    """Collect all findings, even if some fail, and try the main job."""
    packages = {name: _call_and_return_result_and_error(partial(import_module, name))[1] for name in _PACKAGES}
    cache, cache_problem = _call_and_return_result_and_error(_find_tvl1_kernel_cache_and_check_warm)
    trial, problem = _call_and_return_result_and_error(_measure_trial_time_and_epe)
    if trial is not None and not trial["epe"] < 1.0:
        problem = f"ArithmeticError: the flow of a known scene is {trial['epe']:.3g} px off"
    findings = {
        "versions": report.collect_versions(),
        "system": _call_and_return_result_and_error(_collect_platform_cpu_and_threads)[0],
        "devices": _call_and_return_result_and_error(_explain_unavailable_per_device)[0],
        "operators": {
            name: _call_and_return_result_and_error(partial(_explain_backend_choice, name))[0] for name in _OPERATORS
        },
        **{
            f"{name}_on_gpus": _call_and_return_result_and_error(partial(_explain_backend_choice_per_gpu, name))[0]
            for name in ("correlation", *_ON_FRAMES)
        },
        "points_on_gpus": _call_and_return_result_and_error(_explain_point_backend_choice_per_gpu)[0],
        "fast_networks": _call_and_return_result_and_error(_explain_no_half_precision_per_gpu)[0],
        "fast_networks_on_cpu": _call_and_return_result_and_error(_name_fast_network_dtype_on_cpu)[0],
        "networks": _call_and_return_result_and_error(_find_default_weights_and_paths_per_method)[0],
        "ptlflow": _call_and_return_result_and_error(_find_ptlflow_version_and_import_problem)[0],
        "kernel_cache": {"problem": cache_problem} if cache is None else cache,
        "packages": packages,
        "extras": {
            name: {"missing": _list_missing_packages(brings), "adds": adds, "command": build_install_command(name)}
            for name, (brings, adds) in _EXTRAS.items()
        },
        "colour_management": _call_and_return_result_and_error(_find_ocio_config_and_count_color_spaces)[0],
        "main_job": {"works": problem is None, "problem": problem, **(trial or {})},
    }
    if args.json:
        report.print_json(findings)
    else:
        _print_diagnosis(findings)
    return 0 if problem is None else 2


def _call_and_return_result_and_error(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the result of ``function`` and None, or None and its error, because doctor runs on broken machines."""
    try:
        return function(), None
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _list_missing_packages(requirements: tuple[str, ...]) -> list[str]:
    """Return the modules or distributions that are not installed."""

    def is_absent(name: str) -> bool:
        return not list(metadata.distributions(name=name)) if "-" in name else find_spec(name) is None

    return [name for name in requirements if is_absent(name)]


def _collect_platform_cpu_and_threads() -> dict[str, object]:
    import torch

    return {
        "platform": platform.platform(),
        "executable": sys.executable,
        "processor": f"{platform.machine()} {report.get_processor_name()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
    }


def _explain_unavailable_per_device() -> dict[str, str | None]:
    """Return every kind of device with None, or the reason why it cannot be used."""
    import torch

    devices: dict[str, str | None] = {"cpu": None}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            devices[f"cuda:{index} ({torch.cuda.get_device_name(index)})"] = None
    else:
        built = torch.version.cuda is not None
        devices["cuda"] = "no NVIDIA GPU or driver was found" if built else "this PyTorch is built without CUDA"
    if sys.platform == "darwin":
        devices["mps"] = None if torch.backends.mps.is_available() else "not available on this Mac"
    return devices


def _explain_backend_choice(operator: str, device: str = "cpu") -> dict[str, Any]:
    """Return the chosen backend on a device, and why the others are not."""
    module, function = _ELSEWHERE.get(operator, (operator, "explain_backends"))
    options = list(dict(getattr(import_module(f"fullfield.ops.{module}"), function)(device)).items())
    selected = next((name for name, reason in options if reason is None), None)
    reasons = {name: reason or f"can run; {selected} comes first" for name, reason in options if name != selected}
    return {"backend": selected, "others": reasons}


def _list_cuda_and_mps_devices() -> list[str]:
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        gpus.append("mps")
    return gpus


def _explain_backend_choice_per_gpu(operator: str) -> dict[str, Any]:
    """Return the backends of the operator on every GPU."""
    return {gpu: _explain_backend_choice(operator, gpu) for gpu in _list_cuda_and_mps_devices()}


def _explain_point_backend_choice_per_gpu() -> dict[str, Any]:
    """Return the backends of the point operators on every GPU."""
    return {
        gpu: {operator: _explain_backend_choice(operator, gpu) for operator in _ON_POINTS}
        for gpu in _list_cuda_and_mps_devices()
    }


def _explain_no_half_precision_per_gpu() -> dict[str, str | None]:
    """Return for every GPU None, or the reason why networks have no fast form there."""
    import torch

    from fullfield.models.prepared import explain_no_half_precision

    return {gpu: explain_no_half_precision(torch.device(gpu)) for gpu in _list_cuda_and_mps_devices()}


def _name_fast_network_dtype_on_cpu() -> str:
    """Return the dtype of the networks' fast form on the CPU."""
    from fullfield.models.prepared import choose_cpu_dtype

    return str(choose_cpu_dtype()).removeprefix("torch.")


def _find_default_weights_and_paths_per_method() -> dict[str, dict[str, str | None]]:
    """Return the default weights of each network and their paths."""
    paths = {method: (name, find_local_weights(WEIGHTS[name])) for method, name in DEFAULTS.items()}
    return {method: {"weights": name, "path": str(path) if path else None} for method, (name, path) in paths.items()}


def _find_ptlflow_version_and_import_problem() -> dict[str, str | None] | None:
    """Return the version of ptlflow and why it cannot be imported; None if it is not installed."""
    try:
        version = metadata.version("ptlflow")
    except metadata.PackageNotFoundError:
        return None
    from fullfield.estimators.ptlflow import import_ptlflow

    problem = _call_and_return_result_and_error(import_ptlflow)[1]
    return {"version": version, "problem": problem and problem.rpartition("which cannot be imported: ")[2]}


def _find_tvl1_kernel_cache_and_check_warm() -> dict[str, object]:
    from fullfield.ops.tvl1.cpu import kernels

    folder, warm = kernels.find_cache_folder_and_check_warm()
    return {"folder": None if folder is None else str(folder), "warm": warm}


def _find_ocio_config_and_count_color_spaces() -> dict[str, object]:
    import OpenImageIO as oiio

    from fullfield.io.names import OCIO_CONFIG

    config = os.environ.get("OCIO") or OCIO_CONFIG
    spaces = oiio.ColorConfig(config)
    error = spaces.geterror()
    return {"config": config, "problem": error or None, "colour_spaces": len(spaces.getColorSpaceNames())}


def _measure_trial_time_and_epe() -> dict[str, object]:
    from fullfield.estimators.estimation import estimate
    from fullfield.metrics import epe
    from fullfield.testing import sample_textured_scene

    scene = sample_textured_scene(72, 96)
    start = time.perf_counter()
    flow = estimate(scene.frame1, scene.frame2, preset="fast")
    seconds = time.perf_counter() - start
    error = epe(flow.flow, scene.flow, scene.valid & ~scene.occluded)
    return {"seconds": round(seconds, 3), "epe": round(error, 4)}


def _print_backend_choice(operator: str, prefix: str, choice: dict[str, Any] | None) -> None:
    print(f"{operator:<13} {prefix}backend {choice['backend'] if choice else None}")
    for name, reason in (choice["others"] if choice else {}).items():
        print(f"{'':<14}{name}: {reason}")


def _format_ptlflow_version_or_problem(package: dict[str, str | None] | None) -> str:
    if package is None:
        return "not installed; its models are methods too: pip install ptlflow"
    problem = package["problem"]
    return str(package["version"]) if problem is None else f"{package['version']}, cannot be imported: {problem}"


def _print_diagnosis(diagnosis: dict[str, Any]) -> None:
    for topic in ("versions", "system"):
        properties = diagnosis[topic] or {}
        print(f"{topic:<14}" + ", ".join(f"{name} {value or 'absent'}" for name, value in properties.items()))
    for device, reason in (diagnosis["devices"] or {}).items():
        print(f"device        {device}: {reason or 'can be used'}")
    for package, problem in diagnosis["packages"].items():
        if problem is not None:
            print(f"package       {package}, for {_PACKAGES[package]}: {problem}")
    for name, extra in diagnosis["extras"].items():
        missing = f"missing {', '.join(extra['missing'])}: {extra['command']}; " if extra["missing"] else ""
        print(f"extra         {name}: {missing or 'installed; '}for {extra['adds']}")
    for operator, details in diagnosis["operators"].items():
        _print_backend_choice(operator, "", details)
    if not diagnosis["correlation_on_gpus"]:
        print("correlation   on GPUs: PyTorch finds no GPU")
    for operator in ("correlation", *_ON_FRAMES):
        for gpu, details in (diagnosis[f"{operator}_on_gpus"] or {}).items():
            _print_backend_choice(operator, f"on {gpu}: ", details)
    for gpu, operators in (diagnosis["points_on_gpus"] or {}).items():
        for operator, details in operators.items():
            _print_backend_choice(operator, f"on {gpu}: ", details)
    for gpu, reason in (diagnosis["fast_networks"] or {}).items():
        print(f"{'fast networks':<14}on {gpu}: {'half precision, fused kernels' if reason is None else reason}")
    native = diagnosis["fast_networks_on_cpu"] == "bfloat16"
    dtype = "bfloat16" if native else "float32, because AVX-512 BF16 is missing"
    print(f"{'fast networks':<14}on the CPU: {dtype} (auto and --preset fast; else float32)")
    for method, details in (diagnosis["networks"] or {}).items():
        missing = f"weights {details['weights']} are not on this machine: fullfield weights fetch {details['weights']}"
        print(f"{method:<14}{details['path'] or missing}")
    print(f"ptlflow       {_format_ptlflow_version_or_problem(diagnosis['ptlflow'])}")
    cache = diagnosis["kernel_cache"]
    compiled = "are compiled" if cache.get("warm") else "are compiled at first use"
    state = cache.get("problem") or f"{cache['folder']}; the kernels of tvl1 {compiled}"
    print(f"kernel cache  {state}")
    colour = diagnosis["colour_management"]
    print(f"OpenColorIO   {colour['problem'] or colour['config'] if colour else 'needs OpenImageIO'}")
    job = diagnosis["main_job"]
    if job["works"]:
        print(f"main job      works: a tiny scene in {job['seconds']:.2f} s, {job['epe']:.3f} px off")
    else:
        print(f"main job      fails: {job['problem']}")
