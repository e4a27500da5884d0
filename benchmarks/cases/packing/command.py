"""``python -m benchmarks packing``: flow in OpenEXR, packed in every way without loss."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, Case, Cases, Note, Result, Session
from fullfield._check import InputError
from fullfield.cli import paths

if TYPE_CHECKING:
    import numpy as np

PACKINGS = ("none", "rle", "zips:1", "zip:1", "zip:2", "zip:4", "piz")
_TYPES = {"float": "float32", "half": "float16"}
_CHANNELS = ("forward.u", "forward.v")

DESCRIPTION = """\
Write flow as OpenEXR, full floats and half floats, packed in every way without loss, and read it again. Told are the
bytes and the seconds of the CPU, all threads together, so that other work on the machine matters little.
"""
EPILOG = """\
examples:
  python -m benchmarks packing --flows tvl1.npy network.npy -o results.json
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flows", nargs="+", metavar="FILE", help="estimated flow, of any format")
    parser.add_argument("--folder", metavar="DIR", help="where files are written for a while [a temporary folder]")


def _check(args: argparse.Namespace) -> Sequence[str | None]:
    if not args.flows:
        raise InputError("--flows: expected files of flow, got none")
    for path in args.flows:
        paths.check_input_file(path, "--flows")
    if args.folder is not None:
        paths.check_folder_writable_and_remove_temporaries(Path(args.folder), "--folder")
    return list(args.flows)


def _open(args: argparse.Namespace, note: Note) -> Session:
    return Session(_cases(args, note))


def _cases(args: argparse.Namespace, note: Note) -> Cases:
    for path in args.flows:
        for kind in _TYPES:
            label = f"{Path(path).stem}, {kind}"
            yield Case(label, partial(_case, path, kind, args.repeats, args.folder, note))


def cpu_clock(call: Callable[[], Any]) -> float:
    """Seconds of the CPU that a call takes in all threads of the process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _case(path: str, kind: str, repeats: int, folder: str | None, note: Note) -> Result:
    import numpy as np

    from benchmarks.harness import Candidate, interleaved
    from fullfield.io import read_flow

    flow = read_flow(path).flow.numpy()
    pixels = np.ascontiguousarray(np.moveaxis(flow, 0, -1).astype(_TYPES[kind]))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        candidates = []
        for packing in PACKINGS:
            file = Path(place) / f"{packing.replace(':', '-')}.exr"
            reading = partial(_unpacked, file, kind)
            candidates += [
                Candidate(f"{packing}, writing", partial(_packed, file, pixels, packing), lambda _: None),
                Candidate(f"{packing}, reading", reading, partial(_wrong, pixels)),
            ]
        times = interleaved(candidates, repeats, note, cpu_clock)
        rows = [
            {
                "name": packing,
                "ours": True,
                "status": "ok",
                "bytes": (Path(place) / f"{packing.replace(':', '-')}.exr").stat().st_size,
                "writing": times[2 * index].in_full(),
                "reading": times[2 * index + 1].in_full(),
            }
            for index, packing in enumerate(PACKINGS)
        ]
    return {"flow": Path(path).stem, "type": kind, "size": list(pixels.shape[:2]), "rows": rows}


def _packed(file: Path, pixels: np.ndarray[Any, Any], packing: str) -> None:
    from fullfield.io.oiio import Header, write_and_verify_picture

    write_and_verify_picture(file, "openexr", pixels, _CHANNELS, Header({"compression": packing}))


def _unpacked(file: Path, kind: str) -> np.ndarray[Any, Any]:
    import OpenImageIO as oiio

    source: Any = oiio.ImageInput.open(str(file))
    pixels: np.ndarray[Any, Any] = source.read_image(kind)
    source.close()
    return pixels


def _wrong(pixels: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> str | None:
    return None if found.tobytes() == pixels.tobytes() else "what is read is not what was written"


def _report(results: Result) -> list[str]:
    lines = []
    for case in results["cases"]:
        lines.append(case["label"])
        for row in case["rows"]:
            writing, reading = (1e3 * row[part]["min"] for part in ("writing", "reading"))
            told = f"{row['bytes'] / 1e6:.2f} MB, writing {writing:.1f} ms, reading {reading:.1f} ms of the CPU"
            lines.append(f"  {row['name']:<8}{told}")
    return lines


PACKING = Bench(
    "packing",
    "vectors in OpenEXR: size against time",
    DESCRIPTION,
    EPILOG,
    _add_options,
    _check,
    _open,
    _report,
    repeats=6,
)
