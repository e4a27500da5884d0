"""Convert the weights of a training run into the file that fullfield ships: float16 safetensors.

python scripts/release/package_weights.py runs/x/weights.safetensors src/fullfield/models/fullfield_s.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import load_file, save


def main(source: str, target: str) -> None:
    """Convert ``source`` into ``target``; integer tensors keep their type."""
    held = {key: value.half() if value.is_floating_point() else value for key, value in load_file(source).items()}
    Path(target).write_bytes(save({key: value.contiguous() for key, value in held.items()}, {"licence": "Apache-2.0"}))
    print(f"{target}: {Path(target).stat().st_size:,} bytes, {len(held)} tensors")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
