"""Everything CI checks, step by step: lint, format, types, examples, tests.

python scripts/check.py                  all steps; stops at the first that fails
python scripts/check.py tests -k tvl1    one step; what follows is passed on to it
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "tests": ["pytest"],
}
STEPS = ("lint", "format", "types", "examples", "tests")


def run(command: list[str], folder: Path = ROOT) -> int:
    print(f"$ {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, *command], cwd=folder, check=False).returncode


def examples() -> int:
    """Run every example as a user would, in a folder of its own."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        with tempfile.TemporaryDirectory() as folder:
            code = run([os.fspath(script)], Path(folder))
        if code:
            return code
    return 0


def main(arguments: list[str]) -> int:
    steps = arguments[:1] or list(STEPS)
    if steps[0] not in STEPS:
        print(f"expected one of {', '.join(STEPS)}, got {steps[0]!r}", file=sys.stderr)
        return 2
    for step in steps:
        start = time.perf_counter()
        code = examples() if step == "examples" else run(["-m", *TOOLS[step], *arguments[1:]])
        print(f"{step}: {'passed' if code == 0 else 'FAILED'} in {time.perf_counter() - start:.0f} s", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
