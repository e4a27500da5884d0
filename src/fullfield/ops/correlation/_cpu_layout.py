"""Numbers that the CPU backend and its kernels share; what is compiled is kept by this file's contents, too."""

LANES = 16
TILE = (2, 8)  # rows, columns of the 16 source pixels that are worked on together
LARGEST_RADIUS = 8
# A union of more than so many windows is computed pixel by pixel: see benchmarks/notes/correlation_cuda.md.
LARGEST_UNION = 3.5
