"""The public names, written out: a change here is a change of the interface and belongs in the changelog."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import fullfield

SURFACE = {
    "fullfield": ["Flow", "InputError", "__version__", "estimate", "estimate_batch", "estimate_sequence", "patch"],
    "fullfield.datasets": [
        "CHARGE_SHOTS",
        "Charge8K",
        "Criteria",
        "DATASETS",
        "FlowDataset",
        "FlowSample",
        "FlyingChairs",
        "FlyingThings3D",
        "HD1K",
        "KITTI2012",
        "KITTI2015",
        "KITTIOdometry",
        "KubricNK",
        "Middlebury",
        "Pairs",
        "Record",
        "Rendered",
        "SCANS",
        "ScanDataset",
        "ScanPairs",
        "ScanRecord",
        "ScanSample",
        "Sintel",
        "Spring",
        "SyntheticPairs",
        "ThreeDMatch",
        "Truth",
        "open_dataset",
        "open_scans",
    ],
    "fullfield.estimators": [
        "CascadedEstimator",
        "Estimator",
        "Flow",
        "METHODS",
        "NetworkConfig",
        "NetworkEstimator",
        "PtlflowConfig",
        "PtlflowEstimator",
        "RAFTEstimatorConfig",
        "RefinedEstimator",
        "TVL1Estimator",
        "as_frame",
        "estimate",
        "estimate_batch",
    ],
    "fullfield.evaluation": [
        "POINTCNNPP",
        "PROTOCOLS",
        "AtScale",
        "Registrar",
        "Run",
        "ScanProtocol",
        "ScanRun",
        "Setting",
        "evaluate",
        "evaluate_scans",
        "noting_shortage",
        "predict",
        "read_scale",
        "score",
        "score_scans",
        "write_submission",
    ],
    "fullfield.integrations": ["Handle", "Replacement", "patch"],
    "fullfield.io": [
        "EXR_COMPRESSIONS",
        "FLOW_SUFFIXES",
        "FLOW_WRITE_SUFFIXES",
        "FRAME_SUFFIXES",
        "FlowData",
        "FlowRangeError",
        "FrameWindow",
        "IMAGE_WRITE_SUFFIXES",
        "POINT_SUFFIXES",
        "POINT_WRITE_SUFFIXES",
        "PointCloud",
        "TRANSFERS",
        "VIDEO_WRITE_SUFFIXES",
        "VideoFrame",
        "VideoSource",
        "VideoWriter",
        "as_point_cloud",
        "atomic_path",
        "flow_window",
        "frame_window",
        "open_video",
        "read_flow",
        "read_frame",
        "read_metadata",
        "read_point_cloud",
        "read_vectors",
        "transformed",
        "write_flow",
        "write_image",
        "write_point_cloud",
        "write_st_map",
        "write_vectors",
    ],
    "fullfield.metrics": [
        "AVERAGING",
        "FlowMetrics",
        "aae",
        "angular_error",
        "boundary_distance",
        "end_point_error",
        "epe",
        "feature_matching_recall",
        "fl_all",
        "four_values",
        "inlier_ratio",
        "outliers",
        "registration_recall",
        "registration_rmse",
        "relative_rotation_error",
        "relative_translation_error",
        "rmse_by_information",
        "rmse_by_moment",
        "second_moment",
        "true_motion",
        "wauc",
    ],
    "fullfield.models": [
        "Cascade",
        "PreparedFlow",
        "PreparedSizes",
        "RAFT",
        "RAFTConfig",
        "SEARAFT",
        "SEARAFTConfig",
        "WEIGHTS",
        "WeightsEntry",
        "fetch_weights",
        "load_weights",
    ],
    "fullfield.models.raft": ["RAFT", "RAFTConfig"],
    "fullfield.models.sea_raft": ["SEARAFT", "SEARAFTConfig", "expected_log_scale"],
    "fullfield.models.pointcnnpp": [
        "PointPyramid",
        "PointResNet",
        "PointResNetConfig",
        "PointUNet",
        "PointUNetConfig",
    ],
    "fullfield.nn": [
        "CloudPool",
        "CorrelationPyramid",
        "DroidCorrBlock",
        "FlowPropagation",
        "MMFlowCorrLookup",
        "MMFlowCorrelationPyramid",
        "PointConv",
        "PointNorm",
        "PointPool",
        "RAFTCorrBlock",
        "SEARAFTCorrBlock",
        "SpatialCorrelationSampler",
        "StereoCorrBlock",
        "TorchvisionCorrBlock",
        "convex_upsample",
        "local_correlation_with_flow",
    ],
    "fullfield.ops.correlation": ["BACKENDS", "backends", "correlation_lookup", "correlation_pyramid"],
    "fullfield.ops.matching": [
        "BACKENDS",
        "backends",
        "global_attention",
        "global_matching",
        "local_attention",
        "local_matching",
    ],
    "fullfield.ops.spatial_correlation": ["BACKENDS", "backends", "spatial_correlation"],
    "fullfield.ops.point_conv": [
        "BACKENDS",
        "PointGeometry",
        "Triplets",
        "backends",
        "kernel_radius",
        "knn_geometry",
        "point_conv",
        "point_pool",
        "radius_geometry",
        "triplet_geometry",
        "voxel_geometry",
    ],
    "fullfield.ops.neighbors": [
        "BACKENDS",
        "Downsampled",
        "Neighbors",
        "backends",
        "grid_downsample",
        "knn_search",
        "radius_search",
        "spatial_order",
    ],
    "fullfield.registration": [
        "AcceptedRegistration",
        "Alignment",
        "DescriptorConfig",
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
    ],
    "fullfield.sequences": [
        "FrameFlows",
        "Outcome",
        "Output",
        "Plate",
        "Plates",
        "Problem",
        "Setting",
        "Work",
        "estimate_sequence",
        "format_frames",
        "open_plates",
        "parse_frames",
        "run_on_devices",
    ],
    "fullfield.testing": ["Scene", "room_scan", "textured_scene"],
    "fullfield.training": [
        "DescriptorTraining",
        "Pair",
        "Trained",
        "contrastive_loss",
        "cut_pair",
        "matching_ratio",
        "synthetic_scene",
        "train_descriptor",
    ],
    "fullfield.training.flow": [
        "Augmentation",
        "Augmented",
        "AveragedWeights",
        "DatasetPairs",
        "FlowBatch",
        "FlowRun",
        "FlowTraining",
        "FlowValidation",
        "Mixture",
        "PairGenerator",
        "PairSource",
        "SceneStyle",
        "Stepper",
        "TrainedFlow",
        "augment",
        "collate_flow",
        "counted_pixels",
        "cut_window",
        "laplace_mixture_loss",
        "mean_error",
        "plot_history",
        "sequence_loss",
        "train_flow",
    ],
    "fullfield.viz": [
        "FlowColors",
        "Shown",
        "alignment_legend",
        "alignment_view",
        "color_wheel",
        "error_colors",
        "error_legend",
        "error_map",
        "flow_scale",
        "flow_to_image",
        "frame_to_image",
        "overlay",
        "sheet",
        "view_page",
        "warp",
        "wheel_legend",
    ],
    "fullfield.ops.tvl1": [
        "BACKENDS",
        "FlowRefiner",
        "Latency",
        "PRESETS",
        "PersistentSolver",
        "RefinementConfig",
        "TVL1Config",
        "TVL1Solver",
        "backends",
        "refine_flow",
        "refinement_backends",
        "tvl1",
    ],
}

ROOT = Path(fullfield.__file__).parents[1]
LAZY = [m for m in SURFACE if "= lazy(" in (ROOT / m.replace(".", "/") / "__init__.py").read_text("utf-8")]


@pytest.mark.parametrize("module", SURFACE)
def test_public_names(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(SURFACE[module])


@pytest.mark.parametrize("module", SURFACE)
def test_public_names_resolve_and_are_documented(module: str) -> None:
    home = importlib.import_module(module)
    assert home.__doc__
    for name in home.__all__:
        value = getattr(home, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"
            assert name in dir(home)


@pytest.mark.parametrize("module", LAZY)
def test_type_checkers_see_what_is_loaded_on_first_use(module: str) -> None:
    """The imports for type checkers name what the package gives, from where it takes it."""
    home = importlib.import_module(module)
    block = next(n for n in ast.parse(inspect.getsource(home)).body if isinstance(n, ast.If))
    seen = {alias.asname: node.module for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert sorted({*seen, *(["__version__"] if module == "fullfield" else [])}) == home.__all__
    for name, source in seen.items():
        assert getattr(importlib.import_module(source), name) is getattr(home, name)


def test_unknown_names_are_attribute_errors() -> None:
    for module in SURFACE:
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = importlib.import_module(module).no_such_name


def test_functions_take_few_arguments() -> None:
    for module in SURFACE:
        home = importlib.import_module(module)
        for name in home.__all__:
            value = getattr(home, name)
            if inspect.isfunction(value):
                assert len(inspect.signature(value).parameters) <= 8, f"{module}.{name}"
