"""``fullfield doctor``: what works here, on what, and why the rest does not."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fullfield.cli import report

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
    "laspy": "LAS clouds",
}
_EXTRAS = {
    "video": (("av",), "video files and streams: `live`, shots that are videos, videos of the flow"),
    "register": (("small_gicp", "laspy"), "`register`, and LAS clouds"),
    "ray": (("ray",), "shots on a cluster: `flow --ray`"),
    "export": (("onnx", "onnxruntime", "onnxscript"), "networks as ONNX files: `export`"),
    "bench": (("cv2", "skimage", "matplotlib", "pynvml"), "cameras of `live`, plots, and what benchmarks compare with"),
    "cuda12": (("nvidia-cuda-nvrtc-cu12",), "the compiler of our GPU kernels, where PyTorch for CUDA 12 lacks it"),
    "cuda13": (("nvidia-cuda-nvrtc",), "the compiler of our GPU kernels, where PyTorch for CUDA 13 lacks it"),
    "docs": (("sphinx", "furo", "myst_parser", "sphinx_gallery", "sphinx_copybutton"), "the documentation site"),
    "dev": (("pytest", "hypothesis", "mypy", "ruff"), "tests and checks of fullfield itself"),
}
"""What each extra of the package brings: modules (for CUDA distributions), and what works with them."""
_OPERATORS = ("correlation", "spatial_correlation", "matching", "neighbors", "point_conv", "tvl1", "refinement")
_ELSEWHERE = {"refinement": ("tvl1", "refinement_backends")}
"""Operators that have no module of their own: where their backends are told."""
_ON_POINTS = ("neighbors", "point_conv")
_ON_FRAMES = ("spatial_correlation", "matching", "tvl1", "refinement")
"""Those whose backends on GPUs are told one after the other; correlation's come first."""

HELP = "say what works on this machine"
DESCRIPTION = (
    "Say which versions and devices are here, which backend each operator uses and why others do not "
    "run, and try the main job on a tiny scene. Exits with 2 when it fails."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of ``fullfield doctor``."""
    report.add_report_options(parser)


def run(args: argparse.Namespace) -> int:
    """Look at everything, whatever fails, then try the main job."""
    packages = {name: _attempt(partial(import_module, name))[1] for name in _PACKAGES}
    cache, cache_problem = _attempt(_kernel_cache)
    works, problem = _attempt(_main_job)
    findings = {
        "versions": report.versions(),
        "system": _attempt(_system)[0],
        "devices": _attempt(_devices)[0],
        "operators": {name: _attempt(partial(_backends, name))[0] for name in _OPERATORS},
        **{f"{name}_on_gpus": _attempt(partial(_on_gpus, name))[0] for name in ("correlation", *_ON_FRAMES)},
        "points_on_gpus": _attempt(_points_on_gpus)[0],
        "fast_networks": _attempt(_fast_networks)[0],
        "fast_networks_on_cpu": _attempt(_fast_networks_on_cpu)[0],
        "networks": _attempt(_networks)[0],
        "ptlflow": _attempt(_ptlflow)[0],
        "kernel_cache": {"problem": cache_problem} if cache is None else cache,
        "packages": packages,
        "extras": {
            name: {"missing": _missing(brings), "adds": adds, "command": install_command(name)}
            for name, (brings, adds) in _EXTRAS.items()
        },
        "colour_management": _attempt(_colour_management)[0],
        "main_job": {"works": problem is None, "problem": problem, **(works or {})},
    }
    if args.json:
        report.print_json(findings)
    else:
        _print(findings)
    return 0 if problem is None else 2


def _attempt(look: Callable[[], Any]) -> tuple[Any, str | None]:
    """What ``look`` finds, or why it could not: the report is for machines on which things are broken."""
    try:
        return look(), None
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def install_command(extra: str) -> str:
    """The command of pip: by the checkout that the package was installed from (``-e`` as it was), else by its name."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = json.loads(metadata.distribution("fullfield").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        told = {}
    checkout = Path(url2pathname(urlsplit(told["url"]).path)) if "dir_info" in told else None
    if checkout is None or not (checkout / "pyproject.toml").is_file():
        return f"pip install 'fullfield[{extra}]'"
    here = checkout.resolve() == Path.cwd().resolve()
    editable = "-e " if told["dir_info"].get("editable") else ""
    return f"pip install {editable}'{'.' if here else checkout}[{extra}]'"


def _missing(brings: tuple[str, ...]) -> list[str]:
    """Those modules or distributions that are not installed."""

    def absent(name: str) -> bool:
        return not list(metadata.distributions(name=name)) if "-" in name else find_spec(name) is None

    return [name for name in brings if absent(name)]


def _system() -> dict[str, object]:
    import torch

    return {
        "platform": platform.platform(),
        "executable": sys.executable,
        "processor": f"{platform.machine()} {report.processor_name()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
    }


def _devices() -> dict[str, str | None]:
    """Every kind of device: None where it can be used, else the reason it cannot."""
    import torch

    found: dict[str, str | None] = {"cpu": None}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found[f"cuda:{index} ({torch.cuda.get_device_name(index)})"] = None
    else:
        built = torch.version.cuda is not None
        found["cuda"] = "no NVIDIA GPU or driver was found" if built else "this PyTorch is built without CUDA"
    if sys.platform == "darwin":
        found["mps"] = None if torch.backends.mps.is_available() else "not available on this Mac"
    return found


def _backends(operator: str, *device: str) -> dict[str, Any]:
    """The backend chosen on the device, by default the CPU, and why each other one is not."""
    module, function = _ELSEWHERE.get(operator, (operator, "backends"))
    options = list(dict(getattr(import_module(f"fullfield.ops.{module}"), function)(*device)).items())
    chosen = next((name for name, reason in options if reason is None), None)
    reasons = {name: reason or f"can run; {chosen} comes first" for name, reason in options if name != chosen}
    return {"backend": chosen, "others": reasons}


def _gpus() -> list[str]:
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if sys.platform == "darwin" and torch.backends.mps.is_available():
        gpus.append("mps")
    return gpus


def _on_gpus(operator: str) -> dict[str, Any]:
    """What tensors on every GPU get of the operator."""
    return {gpu: _backends(operator, gpu) for gpu in _gpus()}


def _points_on_gpus() -> dict[str, Any]:
    """What tensors on every GPU get of the operators on points."""
    return {gpu: {operator: _backends(operator, gpu) for operator in _ON_POINTS} for gpu in _gpus()}


def _fast_networks() -> dict[str, str | None]:
    """For every GPU None where networks have their fast form, else the reason they have none."""
    import torch

    from fullfield.models.prepared import why_not

    return {gpu: why_not(torch.device(gpu)) for gpu in _gpus()}


def _fast_networks_on_cpu() -> str:
    """What networks compute in there in their fast form."""
    from fullfield.models.prepared import cpu_dtype

    return str(cpu_dtype()).removeprefix("torch.")


def _networks() -> dict[str, dict[str, str | None]]:
    """The weights each network takes by itself, and where they are."""
    from fullfield.models.weights import DEFAULTS, WEIGHTS, cached_weights

    found = {}
    for method, name in DEFAULTS.items():
        path = cached_weights(WEIGHTS[name])
        found[method] = {"weights": name, "path": None if path is None else str(path)}
    return found


def _ptlflow() -> dict[str, str | None] | None:
    """The version of ptlflow, whose models are methods too, and why it cannot be imported; None where it is absent."""
    try:
        version = metadata.version("ptlflow")
    except metadata.PackageNotFoundError:
        return None
    problem = _attempt(_import_ptlflow)[1]
    return {"version": version, "problem": problem and problem.rpartition("which cannot be imported: ")[2]}


def _import_ptlflow() -> None:
    from fullfield.estimators.ptlflow import import_ptlflow

    import_ptlflow()


def _kernel_cache() -> dict[str, object]:
    from fullfield.ops.tvl1.cpu import kernels

    folder, warm = kernels.cache()
    return {"folder": None if folder is None else str(folder), "warm": warm}


def _colour_management() -> dict[str, object]:
    import OpenImageIO as oiio

    from fullfield.io.names import OCIO_CONFIG

    config = os.environ.get("OCIO") or OCIO_CONFIG
    spaces = oiio.ColorConfig(config)
    complaint = spaces.geterror()
    return {"config": config, "problem": complaint or None, "colour_spaces": len(spaces.getColorSpaceNames())}


def _main_job() -> dict[str, object]:
    from fullfield.estimators import estimate
    from fullfield.metrics import epe
    from fullfield.testing import textured_scene

    scene = textured_scene(72, 96)
    start = time.perf_counter()
    flow = estimate(scene.frame1, scene.frame2, preset="fast")
    seconds = time.perf_counter() - start
    error = epe(flow.flow, scene.flow, scene.valid & ~scene.occluded)
    if not error < 1.0:
        raise ArithmeticError(f"the flow of a known scene is {error:.3g} px off")
    return {"seconds": round(seconds, 3), "epe": round(error, 4)}


def _print_backends(operator: str, where: str, found: dict[str, Any] | None) -> None:
    print(f"{operator:<13} {where}backend {found['backend'] if found else None}")
    for name, reason in (found["others"] if found else {}).items():
        print(f"{'':<14}{name}: {reason}")


def _on_ptlflow(found: dict[str, str | None] | None) -> str:
    if found is None:
        return "not installed; its models are methods too: pip install ptlflow"
    problem = found["problem"]
    return str(found["version"]) if problem is None else f"{found['version']}, cannot be imported: {problem}"


def _print(findings: dict[str, Any]) -> None:
    for topic in ("versions", "system"):
        facts = findings[topic] or {}
        print(f"{topic:<14}" + ", ".join(f"{name} {value or 'absent'}" for name, value in facts.items()))
    for device, reason in (findings["devices"] or {}).items():
        print(f"device        {device}: {reason or 'can be used'}")
    for package, problem in findings["packages"].items():
        if problem is not None:
            print(f"package       {package}, for {_PACKAGES[package]}: {problem}")
    for name, extra in findings["extras"].items():
        lacks = f"lacks {', '.join(extra['missing'])}: {extra['command']}; " if extra["missing"] else ""
        print(f"extra         {name}: {lacks or 'installed; '}for {extra['adds']}")
    for operator, found in findings["operators"].items():
        _print_backends(operator, "", found)
    if not findings["correlation_on_gpus"]:
        print("correlation   on GPUs: there is none that PyTorch can use")
    for operator in ("correlation", *_ON_FRAMES):
        for gpu, found in (findings[f"{operator}_on_gpus"] or {}).items():
            _print_backends(operator, f"on {gpu}: ", found)
    for gpu, operators in (findings["points_on_gpus"] or {}).items():
        for operator, found in operators.items():
            _print_backends(operator, f"on {gpu}: ", found)
    for gpu, reason in (findings["fast_networks"] or {}).items():
        print(f"{'fast networks':<14}on {gpu}: {'half precision, fused kernels' if reason is None else reason}")
    native = findings["fast_networks_on_cpu"] == "bfloat16"
    told = "bfloat16" if native else "float32, for want of AVX-512 BF16"
    print(f"{'fast networks':<14}on the CPU: {told}")
    for method, found in (findings["networks"] or {}).items():
        missing = f"weights {found['weights']} are not here: fullfield weights fetch {found['weights']}"
        print(f"{method:<14}{found['path'] or missing}")
    print(f"ptlflow       {_on_ptlflow(findings['ptlflow'])}")
    cache = findings["kernel_cache"]
    compiled = "are there" if cache.get("warm") else "are compiled at their first use"
    state = cache.get("problem") or f"{cache['folder']}; the kernels of tvl1 {compiled}"
    print(f"kernel cache  {state}")
    colour = findings["colour_management"]
    print(f"OpenColorIO   {colour['problem'] or colour['config'] if colour else 'needs OpenImageIO'}")
    job = findings["main_job"]
    if job["works"]:
        print(f"main job      works: a tiny scene in {job['seconds']:.2f} s, {job['epe']:.3f} px off")
    else:
        print(f"main job      fails: {job['problem']}")
