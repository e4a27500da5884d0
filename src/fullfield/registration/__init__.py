"""Rigid registration of point clouds: descriptors, mutual matches, RANSAC, refinement, and a verdict on the pose."""

from fullfield.io.pointcloud import read_pose
from fullfield.registration.alignment import compute_alignment_errors, measure_alignment
from fullfield.registration.learned import LearnedDescriptor
from fullfield.registration.register import register, register_by_ransac
from fullfield.registration.result import AcceptedRegistration, RefusedRegistration, Registration

__all__ = [
    "AcceptedRegistration",
    "LearnedDescriptor",
    "RefusedRegistration",
    "Registration",
    "compute_alignment_errors",
    "measure_alignment",
    "read_pose",
    "register",
    "register_by_ransac",
]
