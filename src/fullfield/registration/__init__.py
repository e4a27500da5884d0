"""Rigid registration of point clouds: descriptors, mutual matches, RANSAC, refinement, and a verdict on the pose."""

from fullfield.io.pose import read_pose, rigid
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.learned_network import DescriptorConfig
from fullfield.registration.register import Registration, alignment_errors, register
from fullfield.registration.resolution import choose_voxel

__all__ = [
    "DescriptorConfig",
    "LearnedDescriptor",
    "Registration",
    "alignment_errors",
    "choose_voxel",
    "read_pose",
    "register",
    "rigid",
]
