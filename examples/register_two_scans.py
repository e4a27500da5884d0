"""
Register two scans
==================

Align two scans of one room that were taken from different poses. If no pose is certain enough, ``register`` returns
the reason. Needs the extra ``register``: ``pip install 'fullfield[register]'``.
"""

# %%
# Two synthetic scans have different points of the same surfaces; the second one is turned by 100° and moved by metres.
# For your own files call ``register("scan_02.ply", "scan_01.ply")``.
import numpy as np
import torch

from fullfield.io import PointCloud, write_image, write_point_cloud
from fullfield.registration import compute_alignment_errors, register
from fullfield.testing import sample_room_scan
from fullfield.viz import draw_alignment

target, source = sample_room_scan(5, scan_seed=0), sample_room_scan(5, scan_seed=1)
angle = np.deg2rad(100.0)
true = np.eye(4)
true[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
true[:3, 3] = (4.0, -2.0, 0.5)
source = (source - true[:3, 3]) @ true[:3, :3]  # the true pose maps it onto the target

# %%
# Find the pose. ``confidence`` is at least 0.5 if it is accepted.
found = register(source, target)
print(found)
difference = np.linalg.inv(true) @ found.transform
turn = np.rad2deg(np.arccos(np.clip((np.trace(difference[:3, :3]) - 1) / 2, -1, 1)))
print(f"error {turn:.2f}° and {100 * np.linalg.norm(difference[:3, 3]):.1f} cm")
assert turn < 2

# %%
# Draw both clouds before and after: the target in grey, the source coloured by its distance, blue to red.
for name, pose in (("before", np.eye(4)), ("after", found.transform)):
    moved = torch.from_numpy(source @ pose[:3, :3].T + pose[:3, 3])
    errors = torch.from_numpy(compute_alignment_errors(source, target, pose, max_distance=8 * found.voxel))
    view = draw_alignment(torch.from_numpy(target), moved, errors, max_error=2 * found.voxel, size=(360, 480))
    write_image(f"{name}.png", view)
write_point_cloud("aligned.ply", PointCloud(moved.numpy()))

# %%
# Two scans of different rooms have no common pose; the result has the reason.
refused = register(sample_room_scan(6), target)
print(refused.success, "-", refused.reason)
