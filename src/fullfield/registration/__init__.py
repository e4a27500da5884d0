"""Rigid registration of point clouds: descriptors, mutual matches, RANSAC, refinement, and a verdict on the pose."""

from fullfield.io.pointcloud import read_pose
from fullfield.registration.alignment import alignment, alignment_errors
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.register import register, register_by_ransac
from fullfield.registration.result import AcceptedRegistration, RefusedRegistration, Registration

__all__ = [
    "AcceptedRegistration",
    "LearnedDescriptor",
    "RefusedRegistration",
    "Registration",
    "alignment",
    "alignment_errors",
    "read_pose",
    "register",
    "register_by_ransac",
]
