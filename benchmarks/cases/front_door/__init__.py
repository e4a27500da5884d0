"""Public calls compared with the kernels under them."""
