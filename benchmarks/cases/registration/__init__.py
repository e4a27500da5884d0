"""Registration of random pairs of clouds, with and without a determined pose."""
