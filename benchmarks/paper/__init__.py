"""The tables and figures of Briedis et al. (CVPR 2026) from stored runs, published values beside ours."""
