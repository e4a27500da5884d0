"""Reads an EXR again and again while another process replaces it, and prints the reads that failed.

    python tests/io/stress_replaced_files.py                    20,000 reads
    python tests/io/stress_replaced_files.py --pause 0.001      the writer waits a millisecond between files

The writer alternates two pictures of different file sizes: it writes a temporary file and gives it the name. Each read
must return one of the two. Exit code 1 if one did not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import torch

from fullfield import InputError
from fullfield.io import read_frame, write_image


def replace_until_killed(path: Path, contents: list[bytes], pause_s: float) -> None:
    """Give the path one content after the other."""
    temporary = path.with_suffix(".tmp")
    for content in cycle(contents):
        temporary.write_bytes(content)
        temporary.replace(path)
        time.sleep(pause_s)


def count_failed_reads(path: Path, pictures: list[torch.Tensor], reads: int) -> Counter[str]:
    """Read the file; return the messages of the reads that returned none of the pictures, with their counts."""
    failures: Counter[str] = Counter()
    for _ in range(reads):
        try:
            frame = read_frame(path)
        except (InputError, OSError) as error:
            failures[f"{type(error).__name__}: {error}"] += 1
            continue
        if not any(torch.equal(frame, picture) for picture in pictures):
            failures["a frame that is neither of the two pictures"] += 1
    return failures


def main() -> int:
    """Run the writer and the reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=20000)
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="between two files, default 0")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frame.exr"
        contents, pictures = [], []
        for picture in (torch.full((3, 64, 96), 0.5), torch.rand(3, 64, 96)):
            write_image(path, picture)
            contents.append(path.read_bytes())
            pictures.append(read_frame(path))
        arguments = (path, contents, options.pause)
        writer = multiprocessing.get_context("spawn").Process(target=replace_until_killed, args=arguments)
        writer.start()
        try:
            failures = count_failed_reads(path, pictures, options.reads)
            has_stopped = not writer.is_alive()
        finally:
            writer.kill()
            writer.join()
    for message, count in failures.most_common():
        print(f"{count} of {options.reads} reads: {message}")  # noqa: T201
    if has_stopped:
        print("the writer stopped")  # noqa: T201
    if not failures and not has_stopped:
        print(f"{options.reads} reads, none failed")  # noqa: T201
    return int(bool(failures) or has_stopped)


if __name__ == "__main__":
    sys.exit(main())
