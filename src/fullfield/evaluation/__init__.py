"""Predictions of a whole data set: stored once, scored any number of times.

>>> from fullfield.datasets import open_dataset
>>> from fullfield.evaluation import evaluate
>>> pairs = open_dataset("sintel-final", "/data/sintel")  # doctest: +SKIP
>>> result = evaluate(estimator, pairs, "runs/sintel-final")  # doctest: +SKIP
>>> result["scores"]["epe"], result["runtime"]["median_s"]  # doctest: +SKIP
"""

from fullfield.evaluation.predict import EvaluationSettings, evaluate, predict, score, write_submission
from fullfield.evaluation.scans import Registrar, evaluate_scans, score_scans

__all__ = [
    "EvaluationSettings",
    "Registrar",
    "evaluate",
    "evaluate_scans",
    "predict",
    "score",
    "score_scans",
    "write_submission",
]
