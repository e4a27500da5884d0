"""``fullfield demo`` and ``fullfield doctor``."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fullfield.estimators.estimation
import fullfield.io
import fullfield.ops.tvl1
from fullfield._install import build_install_command
from fullfield.cli import doctor
from fullfield.cli.demo import FILES
from fullfield.io import read_flow, read_frame
from fullfield.ops import _launching


def test_demo_writes_printed_files(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("demo", "--size", "96x64", "--preset", "fast", "--json")
    assert ran.code == 0
    assert ran.json["scores"]["epe"] < 1
    assert ran.json["files"] == list(FILES)
    assert {path.name for path in (tmp_path / "fullfield-demo").iterdir()} == set(FILES)
    assert read_frame("fullfield-demo/frame1.png").shape == (3, 64, 96)
    score = cli("score", "fullfield-demo/flow.flo", "fullfield-demo/truth.flo", "--json")
    assert score.json["epe"] == pytest.approx(ran.json["scores"]["epe"])


def test_demo_can_be_repeated_and_prints_the_score(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    runs = [cli("demo", "-o", folder, "--size", "64x48", "--preset", "fast") for _ in range(2)]
    assert all(ran.code == 0 for ran in runs)
    assert "end-point error" in runs[0].out
    first = read_flow(folder / "truth.flo").flow
    assert cli("demo", "-o", folder, "--size", "64x48", "--preset", "fast", "--seed", "3").code == 0
    assert (read_flow(folder / "truth.flo").flow != first).any()


def test_demo_refuses_to_replace_existing_frames(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "frame1.png").write_text("precious")
    assert "holds frame1.png" in refused("demo", "-o", tmp_path / "mine")
    assert (tmp_path / "mine" / "frame1.png").read_text() == "precious"
    assert "frame1.png is a file" in refused("demo", "-o", tmp_path / "mine" / "frame1.png")


@pytest.mark.parametrize("cause", ["backend", "estimate", "write"])
def test_demo_can_be_repeated_after_failure(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "mine"
    small = ("demo", "-o", folder, "--size", "64x48", "--preset", "fast")
    with monkeypatch.context() as patch:
        if cause == "estimate":
            patch.setattr(fullfield.estimators.estimation, "estimate_tensors", interrupt)
        elif cause == "write":
            patch.setattr(fullfield.io, "write_image", interrupt)
        ran = cli(*small, *(("--backend", "foo") if cause == "backend" else ()))
    assert ran.code == (2 if cause == "backend" else 130)
    assert not folder.exists()
    assert cli(*small).code == 0
    assert {path.name for path in folder.iterdir()} == set(FILES)


def test_demo_flow_matches_its_frames(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert cli("demo", "-o", folder, "--size", "64x48", "--preset", "fast").code == 0
    again = ("flow", folder / "frame1.png", folder / "frame2.png", "-o", "again.flo", "--preset", "fast")
    assert cli(*again).code == 0
    assert Path("again.flo").read_bytes() == (folder / "flow.flo").read_bytes()


# Most of a call's time goes into these two, which only a few tests look at.
MAIN_JOB, COLOURS = (
    functools.cache(doctor._measure_trial_time_and_epe),
    functools.cache(doctor._find_ocio_config_and_count_color_spaces),
)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main job and colour management are tried once in this process."""
    monkeypatch.setattr(doctor, "_measure_trial_time_and_epe", MAIN_JOB)
    monkeypatch.setattr(doctor, "_find_ocio_config_and_count_color_spaces", COLOURS)


def test_doctor_json_reports_backends_and_versions(cli: Any) -> None:
    ran = cli("doctor", "--json")
    report = ran.json
    assert ran.code == 0
    assert report["main_job"]["works"] is True
    assert report["operators"]["tvl1"]["backend"] in dict(fullfield.ops.tvl1.explain_backends())
    assert report["operators"]["refinement"]["backend"] in ("cpu", "reference")
    assert "cuda" in report["operators"]["refinement"]["others"]
    assert set(report["packages"].values()) == {None}
    assert report["versions"]["fullfield"] == fullfield.__version__
    assert "folder" in report["kernel_cache"]


@pytest.mark.usefixtures("quickly")
def test_doctor_names_purpose_of_each_package(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uses = {
        "av": "video files and streams",
        "cv2": "cameras",
        "small_gicp": "`register`",
        "scipy": "`register`",
        "laspy": "LAS clouds",
        "lazrs": "LAZ clouds",
    }
    for name in uses:
        monkeypatch.setitem(sys.modules, name, None)
    out = cli("doctor").out
    for name, use in uses.items():
        assert f"package       {name}, for {use}" in out
    assert uses.keys() <= cli("doctor", "--json").json["packages"].keys()


@pytest.mark.usefixtures("quickly")
def test_doctor_lists_purpose_of_every_extra(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    table = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    declared = set(re.findall(r"^(\w+) = \[", table, re.MULTILINE))
    monkeypatch.setitem(sys.modules, "small_gicp", None)
    found = cli("doctor", "--json").json["extras"]
    assert found.keys() == declared
    assert "small_gicp" in found["register"]["missing"]
    assert "pytest" not in found["dev"]["missing"]
    out = cli("doctor").out
    assert "extra         register: missing small_gicp" in out
    assert f"{build_install_command('register')}; for `register`, LAS and LAZ clouds" in out
    assert all(f"extra         {name}: " in out for name in declared)


@pytest.mark.parametrize("directory", ["checkout", "with space", "vanished"])
@pytest.mark.parametrize("how", ["index", "file", "checkout", "editable"])
def test_build_install_command_matches_installation_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, directory: str
) -> None:
    checkout = tmp_path / directory
    checkout.mkdir()
    if directory != "vanished":
        (checkout / "pyproject.toml").touch()
    told = {
        "index": None,
        "file": {"url": "file:///somewhere/fullfield-0.2.0-py3-none-any.whl", "archive_info": {}},
        "checkout": {"url": checkout.as_uri(), "dir_info": {}},
        "editable": {"url": checkout.as_uri(), "dir_info": {"editable": True}},
    }[how]
    stored = SimpleNamespace(read_text=lambda _: told and json.dumps(told))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: stored)
    monkeypatch.chdir(tmp_path)
    by_name = how in ("index", "file") or directory == "vanished"
    options = "-e " if how == "editable" else ""
    assert build_install_command("ray") == (
        "pip install 'fullfield[ray]'" if by_name else f"pip install {options}'{checkout}[ray]'"
    )
    monkeypatch.chdir(checkout)
    assert build_install_command("ray") == (
        "pip install 'fullfield[ray]'" if by_name else f"pip install {options}'.[ray]'"
    )


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("operator", ["correlation", "tvl1", "spatial_correlation", "matching"])
def test_doctor_lists_backend_of_each_operator(cli: Any, monkeypatch: pytest.MonkeyPatch, operator: str) -> None:
    own = import_module(f"fullfield.ops.{operator}").explain_backends()
    report = cli("doctor", "--json").json["operators"][operator]
    assert report["backend"] == next(name for name, why in own if why is None)

    def options(device: str = "cpu") -> list[tuple[str, str | None]]:
        kernel = {"cuda:0": None, "cuda:1": "needs a newer GPU"}.get(device, "runs on NVIDIA GPUs")
        return [("cuda", kernel), ("reference", None)]

    monkeypatch.setattr(f"fullfield.ops.{operator}.explain_backends", options)
    monkeypatch.setattr("fullfield.models.prepared.explain_no_half_precision", lambda _: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = cli("doctor").out
    assert f"{operator:<13} backend reference\n              cuda: runs on NVIDIA GPUs\n" in out
    assert "correlation   on GPUs: PyTorch finds no GPU" in out
    assert "main job      works" in out
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    told = (
        f"{operator:<13} on cuda:0: backend cuda\n"
        "              reference: can run; cuda comes first\n"
        f"{operator:<13} on cuda:1: backend reference\n"
        "              cuda: needs a newer GPU\n"
    )
    assert told in cli("doctor").out
    on_gpus = cli("doctor", "--json").json[f"{operator}_on_gpus"]
    assert [on_gpus[name]["backend"] for name in ("cuda:0", "cuda:1")] == ["cuda", "reference"]


@pytest.mark.usefixtures("quickly")
def test_doctor_lists_gpu_backends_of_point_operators(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("doctor", "--json").json["operators"]["neighbors"]["backend"] == "cpu"
    monkeypatch.setattr("fullfield.cli.doctor._list_cuda_and_mps_devices", lambda: ["cuda:0"])
    monkeypatch.setattr("fullfield.ops.correlation.explain_backends", lambda _: [("cuda", None)])
    monkeypatch.setattr("fullfield.models.prepared.explain_no_half_precision", lambda _: None)
    monkeypatch.setattr("fullfield.ops.neighbors.explain_backends", lambda *_: {"cuda": None, "cpu": "is for CPUs"})
    monkeypatch.setattr("fullfield.ops.point_conv.explain_backends", lambda *_: [("cuda", "too old"), ("cpu", None)])
    out = cli("doctor").out
    assert "neighbors     on cuda:0: backend cuda\n              cpu: is for CPUs\n" in out
    assert "point_conv    on cuda:0: backend cpu\n              cuda: too old\n" in out


@pytest.mark.usefixtures("quickly")
def test_doctor_reports_prepared_networks(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullfield.ops.correlation.explain_backends", lambda *_: [("reference", None)])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli("doctor", "--json").json["fast_networks"] == {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (7 + index, 0))
    monkeypatch.setattr("torch.backends.cudnn.is_available", lambda: True)
    monkeypatch.setattr(
        _launching, "_explain_unsupported_gpu", _launching._explain_unsupported_gpu.__wrapped__
    )  # keeps no answer of such a machine
    monkeypatch.setattr("fullfield._kernels.nvrtc.explain_missing_nvrtc", lambda: None)
    out = cli("doctor").out
    assert "fast networks on cuda:0: needs compute capability 7.5, got 7.0" in out
    assert "fast networks on cuda:1: half precision, fused kernels" in out
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr("fullfield.models.prepared.choose_cpu_dtype", lambda dtype=dtype: dtype)
        name = str(dtype).removeprefix("torch.")
        assert f"fast networks on the CPU: {name}" in cli("doctor").out
        assert cli("doctor", "--json").json["fast_networks_on_cpu"] == name
    monkeypatch.setattr("torch.backends.cudnn.is_available", lambda: False)
    assert cli("doctor", "--json").json["fast_networks"]["cuda:1"] == "cuDNN is missing"
    monkeypatch.setattr("fullfield._kernels.nvrtc.explain_missing_nvrtc", lambda: "NVRTC was not found")
    assert cli("doctor", "--json").json["fast_networks"]["cuda:1"] == "NVRTC was not found"


def test_doctor_exits_with_2_when_estimate_fails(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("illegal\ninstruction")

    monkeypatch.setattr(fullfield.estimators.estimation, "estimate", broken)
    monkeypatch.setattr("fullfield.ops.tvl1.explain_backends", broken)
    monkeypatch.setattr("fullfield.cli.doctor._find_tvl1_kernel_cache_and_check_warm", broken)
    monkeypatch.setattr("fullfield.cli.doctor._collect_platform_cpu_and_threads", broken)
    monkeypatch.setattr("fullfield.cli.doctor._find_ocio_config_and_count_color_spaces", broken)
    ran = cli("doctor")
    assert ran.code == 2
    assert "main job      fails: RuntimeError: illegal instruction" in ran.out
    ran = cli("doctor", "--json")
    assert ran.code == 2
    assert ran.json["main_job"] == {"works": False, "problem": "RuntimeError: illegal instruction"}


def test_doctor_reports_broken_ptlflow(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ptlflow").mkdir()
    said = "print('noise')\nraise RuntimeError('operator nms does not exist')"
    (tmp_path / "ptlflow" / "__init__.py").write_text(said)
    (tmp_path / "ptlflow-9.9.dist-info").mkdir()
    (tmp_path / "ptlflow-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: ptlflow\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ptlflow"]:
        monkeypatch.delitem(sys.modules, name)
    ran = cli("doctor", "--json")
    problem = "operator nms does not exist (it needs torchvision of this PyTorch's release)"
    assert ran.json["ptlflow"] == {"version": "9.9", "problem": problem}
    assert f"ptlflow       9.9, cannot be imported: {problem}" in cli("doctor").out
