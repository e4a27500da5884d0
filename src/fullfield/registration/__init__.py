"""Rigid registration of point clouds: descriptors, mutual matches, RANSAC, refinement, and a verdict on the pose."""

from fullfield.io.pointcloud import read_pose, rigid
from fullfield.registration.alignment import Alignment, alignment, alignment_errors
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.learned_network import DescriptorConfig
from fullfield.registration.observability import FreeDirection
from fullfield.registration.register import register, register_by_ransac
from fullfield.registration.result import AcceptedRegistration, RefusedRegistration, Registration
from fullfield.registration.scan import choose_voxel

__all__ = [
    "AcceptedRegistration",
    "Alignment",
    "DescriptorConfig",
    "FreeDirection",
    "LearnedDescriptor",
    "RefusedRegistration",
    "Registration",
    "alignment",
    "alignment_errors",
    "choose_voxel",
    "read_pose",
    "register",
    "register_by_ransac",
    "rigid",
]
