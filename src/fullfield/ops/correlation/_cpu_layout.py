"""Constants and sizes that the CPU backend and its kernels share; they are part of the compile cache's key."""

LANES = 16
TILE = (2, 8)  # rows, columns of the 16 source pixels that are worked on together
LARGEST_RADIUS = 8
# A union of more windows than this is computed pixel by pixel: see benchmarks/notes/correlation_cuda.md.
LARGEST_UNION = 3.5


def max_union_cells(window: int) -> int:
    """Return the largest union window, in cells, that is computed as one product."""
    return int(LARGEST_UNION * window * window)
