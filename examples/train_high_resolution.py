"""
Train at high resolution
========================

The memory of a correlation volume grows with the square of the pixels, so networks are trained on small crops. With the
lookup in linear memory a step on a large crop fits. The four steps of a small network below show that training runs,
not that it learns. For a real training use the published size, large frames and a GPU.
"""

# %%
# Synthetic pairs with known flow are generated during the training; nothing is downloaded.
import torch

from fullfield.models import SEARAFT, SEARAFTConfig
from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.training.flow import FlowRun, FlowTraining, PairGenerator, train_flow
from fullfield.training.flow.pictures import create_procedural_picture_pack

SIZE = (64, 64)  # (1088, 1920) on a GPU
torch.manual_seed(0)
pairs = PairGenerator(SIZE, seed=1, pictures=create_procedural_picture_pack(8, 128, shape_count=16))

# %%
# Train with checkpoints and a schedule. ``fullfield flow --weights`` reads the resulting weights.
config = SEARAFTConfig.small(stem_channels=8, stage_channels=(8, 16, 16), channels=16, updates=2)
training = FlowTraining(steps=4, batch=1, learning_rate=1e-3)
trained = train_flow("runs/mine", SEARAFT(config).train(), pairs, training, run=FlowRun(checkpoint_every=2))
for line in trained.history:
    print(f"step {line.step}: {line.error:.2f} px")

# %%
# Both feature maps get gradients, and neither forward nor backward stores the matrix of all pairs. A lookup keeps only
# tensors of the size of its inputs and outputs.
for height, width in ((32, 48), (64, 96)):
    fmap1, fmap2 = torch.randn(2, 1, 32, height, width).requires_grad_()
    coords = torch.stack(torch.meshgrid(torch.arange(float(width)), torch.arange(float(height)), indexing="xy"))[None]
    found = correlation_lookup(fmap1, correlation_pyramid(fmap2, levels=4), coords, radius=4)
    found.square().mean().backward()
    pairs_of_pixels = (height * width) ** 2
    print(f"{width}×{height}: {found.numel():,} values read of {pairs_of_pixels * 4 // 3:,} in a volume")
