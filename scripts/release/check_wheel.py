"""Check that a wheel holds all files that fullfield reads at run time, and no others.

python scripts/release/check_wheel.py dist/fullfield-*.whl
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
NOT_READ = (".md", ".pyc")
"""Suffixes of files that no code reads; every other file of the package has to be in the wheel."""
MAX_BYTES = 30_000_000


def problems(wheel: Path) -> list[str]:
    """Return one line for each missing or unexpected file, and for a size beyond the limit."""
    with zipfile.ZipFile(wheel) as opened:
        inside = set(opened.namelist())
    expected = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "fullfield").rglob("*")
        if path.is_file() and not path.name.endswith(NOT_READ)
    }
    lines = [f"{name}: is missing" for name in sorted(expected - inside)]
    tops = {name.split("/")[0] for name in inside}
    strange = sorted(top for top in tops if top != "fullfield" and not top.endswith(".dist-info"))
    lines += [f"{top}: does not belong into the wheel" for top in strange]
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        lines.append(f"{size / 1e6:.1f} MB, expected at most {MAX_BYTES / 1e6:.0f} MB")
    return lines


def main(arguments: list[str]) -> int:
    """Print the problems of a wheel and return 1 if there are any."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = Path(arguments[0])
    lines = problems(wheel)
    for problem in lines:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
