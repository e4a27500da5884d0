"""Every public function under each default dtype, inference mode and autocast; ``python -O`` and ``-W error``."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from test_api_surface import SURFACE

_HERE = Path(__file__).parent
_CASES = _HERE / "modes_cases.py"
# They compute nothing in PyTorch (records, data sets, readers, writers, registries, jobs of files) or train a network.
_WITHOUT_CASE = {
    "AcceptedRegistration", "Augmentation", "explain_backends", "DescriptorTraining", "Estimator", "evaluate_scans",
    "fetch_weights", "FlowRun", "FlowTraining", "FollowJob", "format_frames", "Handle", "InputError", "open_plates",
    "Outcome", "Output", "parse_frames", "patch", "PointGeometry", "read_pose",
    "RefusedRegistration", "Registrar", "Registration", "release_memory", "retime_shot", "SceneStyle", "score",
    "score_scans", "SetupError", "ShotJob", "warp_shot", "write_reference_flow", "write_shot_flow",
    "write_shot_flow_on_devices", "write_submission",
}  # fmt: skip
_PACKAGES_WITHOUT_CASE = ("fullfield.datasets", "fullfield.io")
_ON_GPU = {"PreparedFlow", "PersistentSolver"}


CaseErrors = dict[str, dict[str, str | None]]
GetOrCompute = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def errors_by_mode(
    request: pytest.FixtureRequest, get_or_compute: GetOrCompute, run_script: Callable[..., str]
) -> CaseErrors:
    """Return the error of every case in every mode, or None. On a GPU, functions for the CPU refuse in one line."""
    import torch

    device: str = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")

    def compute_errors() -> CaseErrors:
        output = run_script("import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')", _CASES, device)
        errors: CaseErrors = json.loads(output.splitlines()[-1])
        return errors

    return get_or_compute(f"modes-{device}", compute_errors)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["plain", "bfloat16", "float64", "inference", "autocast"])
def test_public_functions_are_equal_in_every_mode(errors_by_mode: CaseErrors, mode: str) -> None:
    assert len(errors_by_mode[mode]) > 80
    assert {name: error for name, error in errors_by_mode[mode].items() if error} == {}


def test_public_functions_have_case(errors_by_mode: CaseErrors) -> None:
    named = {name.rpartition(".")[2] for name in errors_by_mode["plain"]}
    missing = [
        f"{module}.{name}"
        for module, names in SURFACE.items()
        for name in names
        if module not in _PACKAGES_WITHOUT_CASE
        and callable(value := getattr(import_module(module), name))
        and not (inspect.isclass(value) and name.endswith(("Config", "Settings")))
        and name not in named | _WITHOUT_CASE | _ON_GPU
    ]
    assert missing == []


# Under python -O all of PyTorch would be compiled anew: only our modules are, as -O compiles them.
_FIRST_FLOW = """
import dis
import sys
from importlib.machinery import SourceFileLoader

load_code = SourceFileLoader.get_code

def get_code(self, name):
    if name.partition(".")[0] != "fullfield":
        return load_code(self, name)
    return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True, optimize=1)

SourceFileLoader.get_code = get_code
import torch
from fullfield.cli.main import main
from fullfield.ops.correlation import correlation_lookup
from fullfield.ops.tvl1 import reference
functions = [value for value in vars(reference).values() if hasattr(value, "__code__")]
asserting = [f for f in functions if any(op.opname == "LOAD_ASSERTION_ERROR" for op in dis.get_instructions(f))]
assert functions and not asserting, asserting
sys.argv = ["fullfield", "flow", *sys.argv[1:3], "-o", sys.argv[3], "--quiet"]
code = main()
fmap = torch.ones(1, 8, 6, 7)
found = correlation_lookup(fmap, [fmap], torch.full((1, 2, 6, 7), 3.0), 1)
if abs(float(found[0, 4, 3, 3]) - 8**0.5) > 1e-5 or code:
    sys.exit(3)
"""


def test_estimate_and_lookup_work_without_assertions(tmp_path: Path) -> None:
    """One process also checks that nothing warns."""
    import torch

    from fullfield.io import write_image

    frame = torch.randint(0, 256, (3, 32, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    frames = [str(tmp_path / f"{name}.png") for name in "ab"]
    for path in frames:
        write_image(path, frame)
    command: list[Any] = [sys.executable, "-W", "error", "-c", _FIRST_FLOW, *frames, str(tmp_path / "flow.flo")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "flow.flo").stat().st_size > 32 * 40 * 8
