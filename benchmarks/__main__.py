"""``python -m benchmarks``, from the root of a checkout."""

import sys

from benchmarks.runner import main

sys.exit(main())
