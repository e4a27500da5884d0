"""
Flow at a frame rate
====================

Use one solver for one size on an NVIDIA GPU; frames and flow stay on the GPU, also as CuPy arrays.
"""

from importlib import import_module
from importlib.util import find_spec

import torch

from fullfield.ops.tvl1 import PersistentSolver, TVL1Config, explain_backends

HEIGHT, WIDTH, FRAMES = 1080, 1920, 100
config = TVL1Config.from_preset("fast")
reason = dict(explain_backends("cuda" if torch.cuda.is_available() else "cpu", config=config))["cuda"]


def show():
    # Memory is allocated, kernels are compiled and graphs are recorded once, here.
    solver = PersistentSolver((1, 3, HEIGHT, WIDTH), config, dtype=torch.uint8)

    # A panning camera: 3 px to the right and 2 px down per frame, as strided uint8 tensors on the GPU.
    coarse = torch.rand(1, 3, (HEIGHT + 2 * FRAMES) // 8 + 1, (WIDTH + 3 * FRAMES) // 8 + 1, device="cuda")
    place = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic").clamp(0, 1)
    place = (255 * place).round().to(torch.uint8)
    video = [place[:, :, 2 * n : 2 * n + HEIGHT, 3 * n : 3 * n + WIDTH] for n in range(FRAMES)]
    flow = torch.empty(1, 2, HEIGHT, WIDTH, device="cuda")
    target = flow
    if find_spec("cupy") is not None:  # or any other library with DLPack
        cupy = import_module("cupy")
        video, target = [cupy.from_dlpack(frame) for frame in video], cupy.from_dlpack(flow)

    for frame in video:
        solver.step(frame, out=target)  # flow from the previous frame, None for the first; does not wait for the GPU

    found = solver.latency()  # waits for the device
    print(f"{found.frames} flows: {1e3 * found.median:.2f} ms median, {1e3 * found.p99:.2f} ms p99 on the device")
    error = (flow[0] - torch.tensor([-3.0, -2.0], device="cuda").view(2, 1, 1)).norm(dim=0).mean()
    print(f"error of the last one: {float(error):.3f} px")
    assert error < 0.2


if reason is None:
    show()
else:
    print(f"this example cannot run here: the cuda backend {reason}")
