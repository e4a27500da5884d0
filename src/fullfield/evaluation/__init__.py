"""Predictions of a whole data set: stored once, scored as often as wanted.

>>> from fullfield.datasets import open_dataset
>>> from fullfield.evaluation import evaluate
>>> pairs = open_dataset("sintel-final", "/data/sintel")  # doctest: +SKIP
>>> result = evaluate(estimator, pairs, "runs/sintel-final")  # doctest: +SKIP
>>> result["scores"]["epe"], result["runtime"]["median_s"]  # doctest: +SKIP
"""

from fullfield.evaluation.evaluation import evaluate, score
from fullfield.evaluation.leaderboards import write_submission
from fullfield.evaluation.predict import Setting, predict
from fullfield.evaluation.run import Run
from fullfield.evaluation.scale import AtScale, read_scale

__all__ = ["AtScale", "Run", "Setting", "evaluate", "predict", "read_scale", "score", "write_submission"]
