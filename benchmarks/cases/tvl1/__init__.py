"""TV-L1: on the CPU beside OpenCV and scikit-image, on a GPU by schedule, precision and size."""
