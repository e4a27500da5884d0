"""Constants and sizes that the CPU backend and its kernels share; they are part of the compile cache's key."""

LANES = 16
TILE = (2, 8)  # rows, columns of the 16 source pixels that are worked on together
LARGEST_RADIUS = 8
# A bounding box of more windows than this is computed pixel by pixel: see benchmarks/notes/correlation_cuda.md.
LARGEST_BOX = 3.5


def compute_max_box_cells(window_side: int) -> int:
    """Return the largest bounding box of windows, in cells, that is computed as one product."""
    return int(LARGEST_BOX * window_side * window_side)
