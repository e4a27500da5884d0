"""Convert the weights of a training run into the file that fullfield ships: float16 safetensors.

python scripts/release/package_weights.py runs/x/weights.safetensors src/fullfield/models/fullfield_m.safetensors

Several sources are parts of one state dict.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from safetensors.torch import load_file, save


def main(sources: list[str], target: str) -> None:
    """Convert ``sources`` into ``target``; integer tensors keep their type."""
    state = {key: value for source in sources for key, value in load_file(source).items()}
    weights = {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
    content = save({key: weights[key].contiguous() for key in sorted(weights)}, {"licence": "Apache-2.0"})
    Path(target).write_bytes(content)
    digits = hashlib.sha256(content).hexdigest()[:8]
    print(f"{target}: {len(content):,} bytes, {len(weights)} tensors, SHA-256 {digits}…")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:-1], sys.argv[-1])
