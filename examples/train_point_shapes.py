"""
Train a network on native points
================================

Train a small residual network to classify spheres, boxes and cylinders.
"""

import torch

from fullfield.models.pointcnnpp import PointResNet, PointResNetConfig

POINTS = 300


def shape(kind: int, seed: int) -> torch.Tensor:
    """Return points [POINTS, 3] on a randomly scaled and rotated surface."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(POINTS, 3, generator=generator)
    if kind == 0:  # sphere
        surface = direction / direction.norm(dim=1, keepdim=True)
    elif kind == 1:  # box
        surface = direction / direction.abs().amax(1, keepdim=True)
    else:  # cylinder without lids
        around = direction[:, :2] / direction[:, :2].norm(dim=1, keepdim=True)
        surface = torch.cat([around, 2 * torch.rand(POINTS, 1, generator=generator) - 1], 1)
    surface = surface * (0.8 + 0.4 * torch.rand(3, generator=generator))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator))
    return surface @ turn


def batch(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return points, offsets and kinds."""
    kinds = torch.arange(count) % 3
    clouds = [shape(int(kind), first + i) for i, kind in enumerate(kinds)]
    return torch.cat(clouds), torch.arange(count + 1) * POINTS, kinds


torch.manual_seed(0)
config = PointResNetConfig(
    classes=3, in_channels=1, grid=0.2, stem_kernel=3, blocks=(1, 1), channels=(16, 32), norm="batch"
)
model = PointResNet(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(30):
    points, offsets, kinds = batch(1000 * step, 18)
    pyramid = model.build_pyramid(points, offsets)  # the geometry is computed once per batch, for all layers
    loss = torch.nn.functional.cross_entropy(model(torch.ones(len(points), 1), pyramid), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.3f}")

points, offsets, kinds = batch(10**6, 60)  # unseen shapes
model.eval()
with torch.no_grad():
    logits = model(torch.ones(len(points), 1), model.build_pyramid(points, offsets, gradient=False))
right = (logits.argmax(1) == kinds).float().mean().item()
print(f"accuracy on unseen shapes: {100 * right:.0f} %")
assert right > 0.8
