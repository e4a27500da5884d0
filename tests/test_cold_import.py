"""Importing fullfield costs nothing, and asking the command line for help needs no PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

HEAVY = ["torch", "numpy", "numba", "llvmlite", "triton", "cv2", "OpenImageIO", "h5py", "PIL", "matplotlib", "scipy"]
# PyTorch's compiler: it takes as long to import as all the rest of PyTorch.
HEAVY += ["torch._dynamo"]


def find_heavy_modules(statement: str) -> dict[str, bool]:
    """Return which of HEAVY a new Python has imported after ``statement``."""
    script = f"{statement}\nimport sys, json\nprint('\\n' + json.dumps({{m: m in sys.modules for m in {HEAVY}}}))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    result: dict[str, bool] = json.loads(process.stdout.splitlines()[-1])
    return result


def test_import_fullfield_loads_no_heavy_package() -> None:
    assert not any(find_heavy_modules("import fullfield; dir(fullfield)").values())


@pytest.mark.parametrize(
    ("before", "policy", "expected"),
    [("", None, "1000"), ("import torch", None, None), ("", "active", None)],
)
def test_import_fullfield_limits_spinning_threads_unless_set(
    before: str, policy: str | None, expected: str | None
) -> None:
    script = f"{before}\nimport fullfield, os\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    unset = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment = unset if policy is None else {**unset, "OMP_WAIT_POLICY": policy}
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert process.stdout.strip() == str(expected)


def test_estimate_import_loads_no_optional_package() -> None:
    imported = find_heavy_modules(
        "import sys\n"
        "from fullfield import estimate\n"
        "assert 'numba' not in sys.modules\n"
        "import torch, fullfield.integrations.patching, fullfield.models.pointcnnpp, fullfield.training.flow.loop\n"
        "from fullfield.models import RAFT, RAFTConfig\n"
        "RAFT(RAFTConfig.small())(*torch.zeros(2, 1, 3, 128, 128), 1)"
    )
    assert imported["torch"]
    assert not any(imported[name] for name in HEAVY if name not in ("torch", "numpy", "numba", "llvmlite", "scipy"))


def test_import_fullfield_is_fast_and_keeps_torch_settings() -> None:
    script = """
import time, torch

def state():
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision(), torch.random.get_rng_state().sum().item())

before, start = state(), time.process_time()
import fullfield
print(time.process_time() - start)
import fullfield.estimators, fullfield.ops.tvl1.api, fullfield.metrics, fullfield.viz, fullfield.io
assert before == state(), (before, state())
assert not torch.cuda.is_initialized()
"""

    def seconds() -> float:
        return float(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)

    assert any(seconds() <= 0.1 for _ in range(3))


def test_main_help_is_fast_and_imports_no_torch(get_child_cpu_seconds: Callable[[], float]) -> None:
    statement = "from fullfield.cli.main import main"
    for arguments in (["--help"], ["flow", "--help"], ["--version"]):
        statement += f"\ntry:\n    main({arguments})\nexcept SystemExit:\n    pass"
    assert not any(find_heavy_modules(statement).values())

    def seconds() -> float:
        start = get_child_cpu_seconds()
        subprocess.run([sys.executable, "-m", "fullfield", "--help"], capture_output=True, check=True)
        return get_child_cpu_seconds() - start

    assert any(seconds() <= 0.5 for _ in range(3))
