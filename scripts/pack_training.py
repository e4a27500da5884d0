"""Pack a training run into few small files, to carry it to another machine, or unpack it there.

python scripts/pack_training.py pack runs/mine packed
python scripts/pack_training.py unpack packed runs/mine
"""

from __future__ import annotations

import argparse

from fullfield.training.packing import pack_run, unpack_run


def main() -> None:
    """Pack or unpack a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=("pack", "unpack"))
    parser.add_argument("source", help="folder of the run, or of its packed form")
    parser.add_argument("target", help="new or empty folder")
    args = parser.parse_args()
    if args.verb == "pack":
        for path in pack_run(args.source, args.target):
            print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    else:
        print(unpack_run(args.source, args.target))


if __name__ == "__main__":
    main()
