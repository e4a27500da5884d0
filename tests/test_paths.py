"""Every public function that takes a path names the argument where it gets something else."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fullfield import Flow, InputError
from fullfield.sequences import RetimeSettings
from test_api_surface import SURFACE

pytestmark = pytest.mark.unit

FRAME = torch.zeros(3, 16, 16)
FLOW = torch.zeros(2, 16, 16)
# Values of other required arguments, by function or for all functions; the rest gets None.
ARGUMENTS: dict[str, Any] = {
    "LearnedDescriptor.save:self": SimpleNamespace(encode_as_safetensors=lambda: b""),
    "frame1": FRAME,
    "frame2": FRAME,
    "frames": [FRAME, FRAME],
    "frames1": [FRAME],
    "frames2": [FRAME],
    "image": FRAME,
    "flow": FLOW,
    "layers": {"forward": FLOW},
    "load_weights:name_or_model": "raft",
    "open_dataset:name": "sintel-clean",
    "open_scans:name": "pairs",
    "output": "out.%04d.exr",
    "plates": "plate.%04d.png",
    "reference": 1,
    "register:source": torch.zeros(4, 3),
    "register_by_ransac:source": torch.zeros(4, 3),
    "retime_shot:settings": RetimeSettings(2),
    "self": Flow(FLOW, torch.ones(16, 16, dtype=torch.bool)),
    "source": "plate.%04d.png",
    "target": torch.zeros(4, 3),
}
# Names of arguments in messages, where another function reads the file.
NAMES = {
    "LearnedDescriptor.load:path": "weights",
    "load_weights:source": "weights",
    "register:descriptor": "weights",
    "register_by_ransac:descriptor": "weights",
}


def list_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the name of every public function, class and method, and the function."""
    for module, names in SURFACE.items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if inspect.isclass(value) and not issubclass(value, BaseException):
                methods = ((key, getattr(value, key)) for key in vars(value) if not key.startswith("_"))
                yield from ((f"{name}.{key}", method) for key, method in methods if inspect.isroutine(method))
                yield name, value
            if inspect.isfunction(value):
                yield name, value


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Call a function; a generator starts its work with its first item."""
    result = function(**arguments)
    if inspect.isgenerator(result):
        next(result)


PATHS = {
    f"{label}:{parameter.name}": (function, parameter)
    for label, function in list_functions()
    for parameter in inspect.signature(function).parameters.values()
    if "PathLike" in str(parameter.annotation)
}


@pytest.mark.parametrize("value", [None, 5, b"a.png"])
@pytest.mark.parametrize("case", PATHS)
def test_path_of_another_type_is_refused_by_name(case: str, value: object) -> None:
    function, tested = PATHS[case]
    label = case.partition(":")[0]
    if value is None and tested.default is None:
        pytest.skip("None is the default")
    arguments = {
        p.name: ARGUMENTS.get(f"{label}:{p.name}", ARGUMENTS.get(p.name))
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    name = NAMES.get(case, tested.name)
    with pytest.raises(InputError, match=rf"^{name}: expected .*, got {type(value).__name__}"):
        call(function, {**arguments, tested.name: value})
