"""Published protocols of point-cloud registration.

>>> from fullfield.datasets import open_scans
>>> from fullfield.evaluation import POINTCNNPP, evaluate_scans
>>> pairs = open_scans("3dmatch-test", "/data/3dmatch")  # doctest: +SKIP
>>> for method in POINTCNNPP.registrars():  # doctest: +SKIP
...     evaluate_scans(method, pairs, f"runs/{method.run_name}", criteria=POINTCNNPP.criteria(pairs))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fullfield.datasets import Criteria, KITTIOdometry, ScanDataset
from fullfield.evaluation.scans import Registrar


@dataclass(frozen=True)
class ScanProtocol:
    """Numbers of matches, RANSAC trials and limits by which a paper compares descriptors."""

    samples: tuple[int, ...]  # matches at most, one run for each
    trials: int  # triples that RANSAC draws
    indoor: Criteria
    lidar: Criteria  # for KITTI

    def criteria(self, dataset: ScanDataset) -> Criteria:
        """Return the limits for ``dataset``."""
        return self.lidar if isinstance(dataset, KITTIOdometry) else self.indoor

    def registrars(
        self,
        *,
        samples: Sequence[int] | None = None,
        voxel: float | None = None,
        seed: int = 0,
        iterations: int | None = None,
        weights: str | os.PathLike[str] | None = None,
    ) -> list[Registrar]:
        """Return RANSAC alone and the whole pipeline for each number of matches, to be compared in one table.

        Args:
            samples: numbers of matches; None for the protocol's.
            voxel: as for :class:`Registrar`.
            seed: as for :class:`Registrar`.
            iterations: RANSAC's trials; None for the protocol's.
            weights: as for :class:`Registrar`.
        """
        trials = self.trials if iterations is None else iterations
        return [
            Registrar(
                voxel=voxel, seed=seed, iterations=trials, samples=count, weights=weights, ransac_only=ransac_only
            )
            for count in samples or self.samples
            for ransac_only in (True, False)
        ]


POINTCNNPP = ScanProtocol(
    samples=(5000, 2500, 1000, 500, 250),
    trials=50_000,
    indoor=Criteria(max_rmse=0.2),
    lidar=Criteria(max_rre=1.0, max_rmse=0.2, inlier_distance=KITTIOdometry.criteria.inlier_distance),
)
"""Protocol of the supplement of PointCNN++ (arXiv 2511.23227, C.1): plain RANSAC on up to 5000 mutual matches.

3DMatch: RMSE below 0.2 m, matches within 0.1 m, inlier ratio above 5 %. KITTI: RRE below 1° and RMSE below 0.2 m; the
supplement counts no matches there, so the inlier distance stays the data set's.
"""

PROTOCOLS = {"pointcnnpp": POINTCNNPP}
"""Protocols by name."""
