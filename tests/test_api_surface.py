"""The public names, written out: a change here is a change of the interface and belongs in the changelog."""

from __future__ import annotations

import importlib
import inspect

import pytest

SURFACE = {
    "fullfield": ["Flow", "InputError", "__version__", "estimate"],
    "fullfield.estimators": ["METHODS", "Estimator", "Flow", "TVL1Estimator", "as_frame", "estimate"],
    "fullfield.io": [
        "EXR_COMPRESSIONS",
        "FLOW_SUFFIXES",
        "FLOW_WRITE_SUFFIXES",
        "FRAME_SUFFIXES",
        "FlowData",
        "FlowRangeError",
        "FrameWindow",
        "IMAGE_WRITE_SUFFIXES",
        "TRANSFERS",
        "atomic_path",
        "flow_window",
        "frame_window",
        "read_flow",
        "read_frame",
        "write_flow",
        "write_image",
        "write_st_map",
    ],
    "fullfield.metrics": [
        "AVERAGING",
        "FlowMetrics",
        "aae",
        "angular_error",
        "boundary_distance",
        "end_point_error",
        "epe",
        "fl_all",
        "four_values",
        "outliers",
        "true_motion",
        "wauc",
    ],
    "fullfield.nn": ["CorrelationPyramid"],
    "fullfield.ops.correlation": ["BACKENDS", "backends", "correlation_lookup", "correlation_pyramid"],
    "fullfield.testing": ["Scene", "textured_scene"],
    "fullfield.viz": [
        "color_wheel",
        "error_colors",
        "error_legend",
        "error_map",
        "flow_scale",
        "flow_to_image",
        "frame_to_image",
        "overlay",
        "sheet",
        "warp",
        "wheel_legend",
    ],
    "fullfield.ops.tvl1": ["BACKENDS", "PRESETS", "TVL1Config", "TVL1Solver", "backends", "tvl1"],
}


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
