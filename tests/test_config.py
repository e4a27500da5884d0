"""Fields of every configuration."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re

import pytest

import fullfield
from fullfield import InputError
from fullfield._config import Config


def configurations() -> list[type[Config]]:
    """Return every subclass of Config that has fields."""
    for module in pkgutil.walk_packages(fullfield.__path__, "fullfield."):
        if "config" in module.name or module.name.endswith(("augmentation", "learned_network")):
            importlib.import_module(module.name)
    kinds, todo = [], [Config]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        kinds += [kind] if dataclasses.fields(kind) else []
    return sorted(kinds, key=lambda kind: kind.__name__)


def test_configurations_include_every_config() -> None:
    assert len(configurations()) >= 13


@pytest.mark.parametrize("kind", configurations(), ids=lambda kind: kind.__name__)
def test_config_names_unknown_field_and_nearest(kind: type[Config]) -> None:
    field = dataclasses.fields(kind)[0].name
    wrong = f"{field}x"
    message = rf"^{kind.__name__}: expected one of {field}.*, got '{wrong}'; did you mean {field}\?$"
    for call in (kind, kind().replace):
        with pytest.raises(InputError, match=message):
            call(**{wrong: 1})
    with pytest.raises(InputError, match=rf"^{kind.__name__}: expected one of [^;]*, got 'ghosts'$"):
        kind(ghosts=1)
    with pytest.raises(TypeError, match=re.escape("positional arguments")):
        kind(*range(99))


@pytest.mark.parametrize("kind", configurations(), ids=lambda kind: kind.__name__)
def test_config_signature_copy_and_pickle(kind: type[Config]) -> None:
    made = kind()
    assert list(inspect.signature(kind).parameters) == [field.name for field in dataclasses.fields(kind)]
    assert made == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == kind(**vars(made)) == made.replace()
