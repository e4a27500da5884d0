"""What NVRTC and its assembler say of kernels: compiled for it, or stored for this very source and compiler.

Compiling all that the tests ask for takes three minutes of a processor, and the answer depends on nothing but the
source, the options, the architecture and the compiler. ``assembled.json`` holds it by their hash, so whatever of
these changes is compiled. After a change of kernels

    python tests/kernels/assembled.py

stores what is asked for now, compiling what is new; what is not stored only takes its time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import kept

from fullfield._kernels import nvrtc
from fullfield._kernels.nvrtc import KernelSource

STORED = Path(__file__).with_suffix(".json")
# Where a run of all that asks notes what it was told.
NOTES = "FULLFIELD_TESTS_NOTE_ASSEMBLED"


class Said(NamedTuple):
    kernels: dict[str, tuple[int, int]]
    """Registers and spilled bytes of every kernel."""
    waits: bool
    """The assembler waits for every wgmma, as it cannot tell registers apart."""


def understood(log: str) -> Said:
    """
    Raises:
        ValueError: if the log tells an error or a kernel without its resources.
    """
    found: dict[str, tuple[int, int]] = {}
    name, spilled = "", 0
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name = entry[1]
        elif spill := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(spill[1]) + int(spill[2])
        elif used := re.search(r"Used (\d+) registers", line):
            found[name] = (int(used[1]), spilled)
    if "error" in log or len(found) != log.count("Compiling entry function"):
        raise ValueError(log)
    return Said(found, "wgmma" in log)


def _made_from(source: KernelSource, arch: str) -> tuple[object, ...]:
    compiler = nvrtc.load_nvrtc()
    file = Path(compiler.library._name)
    size = file.stat().st_size if file.is_absolute() else 0
    return compiler.version, size, nvrtc.OPTIONS, source, arch


def compiled(source: KernelSource, arch: str) -> Said:
    """Not with ``--Ofast-compile``: in NVRTC 13.0 what is compiled afterwards then spills too."""
    return understood(
        nvrtc.load_nvrtc().compile(KernelSource(source.text, (*source.options, "--ptxas-options=-v")), arch)[1]
    )


@functools.cache
def _stored() -> dict[str, list[object]]:
    found: dict[str, list[object]] = json.loads(STORED.read_text("utf-8"))
    return found


def _read(line: object) -> Said:
    kernels, waits = line  # type: ignore[misc]
    return Said({name: (registers, spilled) for name, (registers, spilled) in kernels.items()}, waits)


def said_of(source: KernelSource, arch: str) -> Said:
    """What the compiler and the assembler say of every kernel."""
    made_from = _made_from(source, arch)
    key = hashlib.sha256(repr(made_from).encode()).hexdigest()[:20]
    if key in _stored():
        said = _read(_stored()[key])
    else:
        place = kept.kept(made_from, lambda place: place.write_text(json.dumps(compiled(source, arch)), "utf-8"))
        said = _read(json.loads(place.read_text("utf-8")))
    if notes := os.environ.get(NOTES):
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, said]) + "\n")
    return said


def main() -> int:
    """Run the tests that ask, store what they were told."""
    asking = Path(__file__).with_name("test_resources.py")
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-q", str(asking)]
        if code := subprocess.run(command, env={**os.environ, NOTES: str(notes)}, check=False).returncode:
            return code
        told = dict(json.loads(line) for line in notes.read_text("utf-8").splitlines())
    store(told)
    return 0


def store(told: dict[str, object]) -> None:
    lines = [f"{json.dumps(key)}: {json.dumps(said)}" for key, said in sorted(told.items())]
    part = STORED.with_name(f"{STORED.name}.part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    part.replace(STORED)


if __name__ == "__main__":
    sys.exit(main())
