"""Options of the estimation methods, made from the fields of their configurations.

A configuration is a frozen dataclass with a default for every field, ``metadata={"help": ..., "choices": ...}``, and
a mapping ``PRESETS`` beside it; importing its module must stay cheap.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError
from fullfield.cli import argtypes
from fullfield.cli.errors import naming

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fullfield.estimators import Flow

DEFAULT_PRESET = "default"


@dataclass(frozen=True)
class Method:
    """Where the configuration of one method lives."""

    title: str
    module: str
    config: str

    def load(self) -> Any:
        """The configuration's class."""
        return getattr(import_module(self.module), self.config)

    def presets(self) -> Mapping[str, Any]:
        """The configurations by name of preset."""
        presets: Mapping[str, Any] = import_module(self.module).PRESETS
        return presets


@dataclass(frozen=True)
class Chosen:
    """A method with its settings, checked."""

    method: str
    preset: str
    changes: dict[str, Any]
    config: Any
    backend: str | None
    device: str

    def parameters(self) -> dict[str, object]:
        """Every parameter by field, as it was used."""
        return dataclasses.asdict(self.config)

    def prepare(self) -> None:
        """Reach the device and load or compile what the method runs on, with a tiny pair."""
        import torch

        blank = torch.zeros(1, 16, 16, device=_check.device(self.device, "--device"))
        self.estimate(blank, blank)

    def estimate(self, frame1: Tensor, frame2: Tensor, **more: Any) -> Flow:
        """``fullfield.estimate`` with these settings. InputError when the flow is not finite."""
        from fullfield.estimators import estimate

        flow = estimate(
            frame1,
            frame2,
            self.method,
            preset=self.preset,
            backend=self.backend,
            device=self.device,
            **more,
            **self.changes,
        )
        lost = int((~flow.flow.isfinite()).any(0).sum())
        if lost:
            raise InputError(
                f"--method {self.method}: the flow is NaN or infinite at {lost} pixels; "
                "choose parameters nearer to a preset's"
            )
        return flow


METHODS = {"tvl1": Method("TV-L1", "fullfield.ops.tvl1.config", "TVL1Config")}
"""One entry per method of ``fullfield.estimators``, in its order; the first is the default."""

_DEST = "parameter "


@dataclass(frozen=True)
class Parameter:
    """One field of a configuration as an option."""

    field: str
    annotation: object
    help: str
    choices: tuple[object, ...] | None

    @property
    def option(self) -> str:
        return "--" + self.field.rstrip("_").replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return self.annotation is bool

    @property
    def metavar(self) -> str:
        if self.choices is not None:
            return "{" + ",".join(str(choice) for choice in self.choices) + "}"
        return _metavar(self.annotation)

    def read(self, text: str) -> object:
        """The value that ``text`` stands for; InputError names the option."""
        try:
            value = _read(self.annotation, text)
        except ValueError:
            raise InputError(f"{self.option}: expected {self.metavar}, got {text!r}") from None
        if self.choices is not None and value not in self.choices:
            raise InputError(f"{self.option}: expected one of {', '.join(map(str, self.choices))}, got {text!r}")
        return value


def parameters(method: str) -> dict[str, Parameter]:
    """The parameters of ``method`` by option."""
    config = METHODS[method].load()
    annotations = typing.get_type_hints(config)
    found = {}
    for field in dataclasses.fields(config):
        annotation = annotations[field.name]
        choices = field.metadata.get("choices")
        if choices is None and typing.get_origin(annotation) is typing.Literal:
            choices = typing.get_args(annotation)
        parameter = Parameter(
            field.name, annotation, str(field.metadata.get("help", "")), None if choices is None else tuple(choices)
        )
        found[parameter.option] = parameter
    return found


def add_method_options(parser: argparse.ArgumentParser) -> Any:
    """``--method`` and what every method understands; returns the group."""
    presets = dict.fromkeys(name for method in METHODS.values() for name in method.presets())
    group = parser.add_argument_group("estimation")
    group.add_argument("--method", choices=METHODS, default=next(iter(METHODS)), help="[%(default)s]")
    group.add_argument(
        "--preset", choices=presets, default=DEFAULT_PRESET, help="starting point of the parameters [%(default)s]"
    )
    group.add_argument("--backend", metavar="NAME", help="this backend or none; see fullfield doctor [the best here]")
    group.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda, cuda:1, ... [%(default)s]")
    group.add_argument("--threads", type=argtypes.threads, metavar="N", help="CPU threads [all]")
    return group


def use_threads(count: int | None) -> None:
    """Hold the process to ``count`` CPU threads."""
    if count is not None:
        import torch

        torch.set_num_threads(count)


def chosen(args: argparse.Namespace) -> Chosen:
    """The method and its settings; InputError names the option that does not fit."""
    presets = METHODS[args.method].presets()
    if args.preset not in presets:
        raise InputError(f"--preset: {args.method} has {', '.join(presets)}, got {args.preset!r}")
    changes = _changes(args, args.method)
    with naming(**words(args.method)):
        config = dataclasses.replace(presets[args.preset], **changes)
    return Chosen(args.method, args.preset, changes, config, args.backend, args.device)


def words(method: str) -> dict[str, str]:
    """Arguments of ``estimate`` in the user's words, for :func:`fullfield.cli.errors.naming`."""
    own = {parameter.field: option for option, parameter in parameters(method).items()}
    return {**own, "backend": "--backend", "device": "--device", "initial_flow": "--initial-flow"}


def add_parameter_options(parser: argparse.ArgumentParser) -> None:
    """One group of options per method. An option that two methods share stands in the group of the first."""
    defined: set[str] = set()
    for name, method in METHODS.items():
        group = parser.add_argument_group(f"parameters of {method.title} (--method {name})")
        for option, parameter in parameters(name).items():
            if option in defined:
                continue
            defined.add(option)
            text = f"{parameter.help}{_values(method, parameter.field)}".replace("%", "%%")
            if parameter.is_switch:
                group.add_argument(
                    option,
                    dest=_DEST + option,
                    action=argparse.BooleanOptionalAction,
                    default=argparse.SUPPRESS,
                    help=text,
                )
            else:
                group.add_argument(
                    option, dest=_DEST + option, default=argparse.SUPPRESS, metavar=parameter.metavar, help=text
                )


def _changes(args: argparse.Namespace, method: str) -> dict[str, Any]:
    """The parameters given on the command line, by field; an option of another method is refused."""
    own = parameters(method)
    chosen = {}
    for dest, value in vars(args).items():
        if not dest.startswith(_DEST):
            continue
        option = dest.removeprefix(_DEST)
        if option not in own:
            owner = next(name for name in METHODS if option in parameters(name))
            raise InputError(f"{option}: belongs to --method {owner}, not to {method}; leave it out")
        chosen[own[option].field] = value if isinstance(value, bool) else own[option].read(value)
    return chosen


def _values(method: Method, field: str) -> str:
    """What the presets set: one value, or one per preset where they differ."""
    values = {preset: _show(getattr(config, field)) for preset, config in method.presets().items()}
    if len(set(values.values())) == 1:
        return f" [{next(iter(values.values()))}]"
    return " [" + ", ".join(f"{preset} {value}" for preset, value in values.items()) + "]"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_show, value))
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _union(annotation: object) -> tuple[object, ...] | None:
    """The members of ``A | B`` or ``Optional[A]``."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return None


def _metavar(annotation: object) -> str:
    members = _union(annotation)
    if members is not None:
        return "|".join(_metavar(member) for member in members)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if items[-1] is Ellipsis:
            return f"{_metavar(items[0])},..."
        return ",".join(map(_metavar, items))
    if typing.get_origin(annotation) is typing.Literal:
        return "{" + ",".join(map(str, typing.get_args(annotation))) + "}"
    names: dict[object, str] = {int: "INT", float: "NUMBER", str: "TEXT", bool: "true|false", type(None): "auto"}
    return names[annotation]


def _read(annotation: object, text: str) -> object:
    """Parse ``text`` as ``annotation``; ValueError where it does not fit."""
    members = _union(annotation)
    if members is not None:
        return _first_that_fits(members, text)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        parts = text.split(",")
        kinds = [items[0]] * len(parts) if items[-1] is Ellipsis else list(items)
        if len(kinds) != len(parts):
            raise ValueError(text)
        return tuple(_read(kind, part.strip()) for kind, part in zip(kinds, parts, strict=True))
    if typing.get_origin(annotation) is typing.Literal:
        return next(filter(lambda choice: str(choice) == text, typing.get_args(annotation)), text)
    if annotation is type(None):
        if text.lower() != "auto":
            raise ValueError(text)
        return None
    if annotation is bool:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse(text)
    readers: dict[object, typing.Callable[[str], object]] = {int: argtypes.integer, float: argtypes.number, str: str}
    try:
        return readers[annotation](text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(text) from error


def _first_that_fits(members: tuple[object, ...], text: str) -> object:
    for member in sorted(members, key=lambda member: member is not type(None)):
        try:
            return _read(member, text)
        except ValueError:
            continue
    raise ValueError(text)


def _refuse(text: str) -> object:
    raise ValueError(text)
