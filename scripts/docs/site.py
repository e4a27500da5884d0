"""Build the documentation site: docs, the pages of operators, and the examples with what they print and draw.

python scripts/docs/site.py            into build/site; warnings are errors
python scripts/docs/site.py --quick    the examples are shown but not run
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
TAKEN = (
    "*.md",
    "CITATION.cff",
    "hatch_build.py",
    "docs/**/*",
    "src/**/*.md",
    "benchmarks/**/*.md",
    "scripts/**/*.md",
    "tools/*.md",
    "training_state/*.md",
    "examples/**/*",
    "recipe/*",
)
LINKED = (
    "benchmarks/results/*",
    "benchmarks/*.json",
    "benchmarks/cases/**/*.py",
    "scripts/**/*.py",
    "src/**/*.txt",
    ".github/workflows/*",
)
MADE = PAGES / "docs" / "gallery"  # by Sphinx, in the copy


def copy_pages() -> None:
    """Copy the pages and the files they link to, so that Sphinx and the examples write nothing into the checkout."""
    requested = {path for pattern in (*TAKEN, *LINKED) for path in ROOT.glob(pattern) if path.is_file()}
    requested = {path for path in requested if "__pycache__" not in path.parts}
    made = set(MADE.rglob("*"))
    for path in PAGES.rglob("*"):
        if path.is_file() and path not in made and ROOT / path.relative_to(PAGES) not in requested:
            path.unlink()
    for path in requested:
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != path.read_bytes():
            shutil.copy2(path, target)


def main(arguments: list[str]) -> int:
    """Build the site and return the exit code."""
    if arguments not in ([], ["--quick"]):
        print(__doc__, file=sys.stderr)
        return 2
    copy_pages()
    start = SITE / "index.html"
    if not start.exists():  # the last build was interrupted, or warned: Sphinx would not warn of the same page again
        shutil.rmtree(SITE, ignore_errors=True)
    start.unlink(missing_ok=True)
    quick = ["-D", "plot_gallery=0"] if arguments else []
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(PAGES / "docs")]
    done = subprocess.run([*command, *quick, str(PAGES), str(SITE)], cwd=PAGES, check=False)
    if done.returncode == 0 and not start.exists():
        print("Sphinx ended before the end: does an example leave by sys.exit?", file=sys.stderr)
        return 1
    if done.returncode:
        start.unlink(missing_ok=True)
    else:
        print(f"{start.relative_to(ROOT)}: written")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
