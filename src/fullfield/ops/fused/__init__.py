"""What networks do between their convolutions, each in one pass over memory: activations, norms, gates, up-sampling.

``reference`` says in PyTorch what every pass does; ``cuda`` does the same with kernels that NVRTC compiles on the
user's machine. Activations are [B, h, w, C], channels next to each other in memory, C a multiple of eight on the GPU.
"""
