"""
Patch your model
================

RAFT's correlation volume stores the products of all pairs of pixels. ``fullfield.patch`` replaces it by the lookup in
linear memory, with the same weights and the same results.
"""

# %%
# This small network is in RAFT's style. Its ``CorrBlock`` computes the volume in ``__init__`` and reads it at the
# coordinates in every update. Yours may come from a checkout, from torchvision or from ptlflow.
import torch
from torch.nn import functional

import fullfield


class CorrBlock:
    def __init__(self, fmap1, fmap2, num_levels=4, radius=4):
        self.radius, (self.batch, channels, self.height, self.width) = radius, fmap1.shape
        volume = torch.einsum("bchw,bcyx->bhwyx", fmap1, fmap2) / channels**0.5
        self.levels = [volume.flatten(0, 2)[:, None]]
        for _ in range(num_levels - 1):
            self.levels.append(functional.avg_pool2d(self.levels[-1], 2))

    def __call__(self, coords):
        steps = torch.arange(-self.radius, self.radius + 1.0)
        window = torch.stack(
            torch.meshgrid(steps, steps, indexing="ij"), -1
        )  # the offset in x varies slowly, as in RAFT
        found = []
        for level, volume in enumerate(self.levels):
            at = coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2**level + window
            at = 2 * at / torch.tensor([volume.shape[3] - 1.0, volume.shape[2] - 1.0]) - 1
            taps = functional.grid_sample(volume, at, align_corners=True)
            found.append(taps.view(self.batch, self.height, self.width, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Conv2d(3, 32, 8, 8)
        self.update = torch.nn.Conv2d(4 * 81, 2, 3, padding=1)

    def forward(self, frame1, frame2):
        fmap1, fmap2 = self.encoder(frame1), self.encoder(frame2)
        corr = CorrBlock(fmap1, fmap2)
        y, x = torch.meshgrid(*(torch.arange(float(n)) for n in fmap1.shape[-2:]), indexing="ij")
        coords = start = torch.stack((x, y))[None].expand(len(fmap1), -1, -1, -1)
        for _ in range(3):
            coords = coords + self.update(corr(coords))
        return coords - start


# %%
# Patch it and compare. ``handle.replaced`` lists what was replaced; ``restore`` undoes it.
model, (frame1, frame2) = Network().eval(), torch.rand(2, 1, 3, 256, 320)
with torch.no_grad():
    before = model(frame1, frame2)
    handle = fullfield.patch(model)
    after = model(frame1, frame2)
print(handle.replaced)
print(f"largest difference: {float((after - before).abs().max()):.1e} px")
assert torch.allclose(after, before, atol=1e-4)

# %%
# Compare the memory. The volume has one value per pair of pixels of the 1/8 grids, and the pyramid adds a third. The
# lookup keeps only the features, which grow linearly with the pixels.
for height, width in ((256, 320), (1080, 1920), (4320, 7680)):
    pixels = (height // 8) * (width // 8)
    volume, features = 4 * pixels**2 * 4 / 3, 4 * 2 * 256 * pixels
    print(f"{width}×{height}: volume {volume / 2**30:9.2f} GiB, features {features / 2**30:.2f} GiB")
handle.restore()
