"""Mean errors of the included network in each precision on a GPU, on the shared pairs with true flow, stored.

python scripts/score_precisions.py          writes benchmarks/results/precisions_h200.json; needs FULLFIELD_DATA
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from score_methods import RESULT, pairs

import fullfield
from fullfield.io import atomic_path, read_flow
from fullfield.metrics import epe

FORMS = {
    "float32": ("exact", False),
    "TF32": ("exact", True),
    "fast": ("fast", True),
    "bfloat16": ("bfloat16", True),
}
"""Precision of the estimator, and whether PyTorch may multiply in TF32."""


def main() -> int:
    """Estimate, score, store."""
    rows = []
    for name, (first, second, truth) in pairs().items():
        known, flows = read_flow(truth), {}
        for form, (precision, tf32) in FORMS.items():
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
            found = fullfield.estimate(first, second, "fullfield-s", device="cuda", precision=precision)
            flows[form] = found.flow
        row = {form: epe(flow, known.flow, known.valid) for form, flow in flows.items()}
        distance = float((flows["fast"] - flows["TF32"]).norm(dim=0).mean())
        rows.append({"pair": name, "errors": row, "fast from TF32": distance})
        print(name, *(f"{form} {error:.4f} px" for form, error in row.items()), flush=True)
    environment = {
        "gpu": torch.cuda.get_device_name(),
        "versions": {"fullfield": fullfield.__version__, "torch": torch.__version__},
        "commit": os.environ.get("FULLFIELD_COMMIT"),
        "date": time.strftime("%Y-%m-%d"),
    }
    with atomic_path(RESULT.with_name("precisions_h200.json")) as part:
        part.write_text(json.dumps({"rows": rows, "environment": environment}, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
