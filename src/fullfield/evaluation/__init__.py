"""Predictions of a whole data set: stored once, scored any number of times.

>>> from fullfield.datasets import open_dataset
>>> from fullfield.evaluation import evaluate
>>> pairs = open_dataset("sintel-final", "/data/sintel")  # doctest: +SKIP
>>> result = evaluate(estimator, pairs, "runs/sintel-final")  # doctest: +SKIP
>>> result["scores"]["epe"], result["runtime"]["median_s"]  # doctest: +SKIP
"""

from fullfield.estimators.cascaded import AtScale, read_scale
from fullfield.evaluation.predict import Setting, evaluate, noting_shortage, predict, score, write_submission
from fullfield.evaluation.run import Run, ScanRun
from fullfield.evaluation.scans import POINTCNNPP, PROTOCOLS, Registrar, ScanProtocol, evaluate_scans, score_scans

__all__ = [
    "POINTCNNPP",
    "PROTOCOLS",
    "AtScale",
    "Registrar",
    "Run",
    "ScanProtocol",
    "ScanRun",
    "Setting",
    "evaluate",
    "evaluate_scans",
    "noting_shortage",
    "predict",
    "read_scale",
    "score",
    "score_scans",
    "write_submission",
]
