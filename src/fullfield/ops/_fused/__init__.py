"""Steps of networks between convolutions, each in one pass over memory: activations, norms, gates, up-sampling.

``reference`` defines every pass in PyTorch; ``cuda`` has kernels that NVRTC compiles at run time. Activations are
[B, h, w, C], channels-last in memory, with C a multiple of eight on the GPU.
"""
