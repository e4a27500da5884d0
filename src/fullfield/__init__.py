"""Dense correspondence at full resolution.

Names are loaded on first use, so that ``import fullfield`` (and ``fullfield --help``) stays cheap.
"""

import os
import sys
from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

__version__ = "0.2.0"

if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    # GNU's OpenMP reads this when PyTorch is loaded. Its threads would spin for milliseconds after every operation,
    # which takes cores that are shared from whoever has work.
    os.environ["GOMP_SPINCOUNT"] = "1000"

if TYPE_CHECKING:
    from fullfield._check import InputError as InputError
    from fullfield._check import SetupError as SetupError
    from fullfield.estimators.estimation import estimate as estimate
    from fullfield.estimators.estimation import estimate_batch as estimate_batch
    from fullfield.estimators.flow import Flow as Flow
    from fullfield.integrations.patching import patch as patch
    from fullfield.sequences.estimation import estimate_sequence as estimate_sequence

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "_check": "InputError SetupError",
        "estimators.estimation": "estimate estimate_batch",
        "estimators.flow": "Flow",
        "integrations.patching": "patch",
        "sequences.estimation": "estimate_sequence",
    },
    "__version__",
)
