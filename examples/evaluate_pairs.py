"""
A data set with known flow
==========================

Estimate every pair, store the predictions and score them.
"""

import sys
from pathlib import Path

from fullfield.datasets import Rendered
from fullfield.estimators import TVL1Estimator
from fullfield.evaluation import evaluate
from fullfield.ops.tvl1 import TVL1Config

pairs = Rendered(Path(sys.argv[0]).parent / "scene")  # made by `python -m tools render own`
sample = pairs[0]
print(f"{pairs}; truth {tuple(sample.flow.shape)}, {float(sample.occluded.float().mean()):.1%} occluded")

for preset in ("fast", "default"):
    estimator = TVL1Estimator(TVL1Config.from_preset(preset))
    result = evaluate(estimator, pairs, Path("runs") / preset)  # a second run estimates nothing again
    scores, seconds = result["scores"], result["runtime"]["median_s"]
    print(f"{preset}: {scores['epe']:.3f} px, {scores['px1']:.1f} % above 1 px, {1000 * seconds:.0f} ms a pair")
