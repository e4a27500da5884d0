"""Options of the estimation methods, generated from the fields of their configurations."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from fullfield import _check
from fullfield._check import InputError
from fullfield.cli import argtypes
from fullfield.cli.report import print_note, rename_arguments_in_errors
from fullfield.estimators.network_config import RANDOM
from fullfield.estimators.registry import (
    DEFAULT_METHOD,
    DEFAULT_PRESET,
    METHODS,
    Method,
    get_method,
    resolve_method_name,
)
from fullfield.models.weights import WeightsOrigin, find_weights_origin

if TYPE_CHECKING:
    from torch import Tensor

    from fullfield.estimators.flow import Flow

REFINE_HELP = "refine with TV-L1 (estimates both directions)"
DEVICE_HELP = "auto (the first GPU with kernels, else the CPU), cpu, cuda, cuda:1, ..."


@dataclass(frozen=True)
class MethodChoice:
    """Method with its checked settings. Keeps its estimator."""

    method: str
    preset: str
    config: Any
    backend: str | None
    device: str
    origin: WeightsOrigin | None = None
    """Origin of a network's weights."""
    scale: str = "1"
    """Fraction of the frames' size at which to estimate."""

    @cached_property
    def estimator(self) -> Any:
        """Estimator, built on first use."""
        from fullfield.estimators.cascaded import ReducedSizeEstimator
        from fullfield.estimators.estimation import build_estimator

        with rename_arguments_in_errors(**map_arguments_to_options(self.method)):
            estimator = build_estimator(self.method, config=self.config, backend=self.backend)
        return estimator if self.scale == "1" else ReducedSizeEstimator(estimator, self.scale)

    @property
    def title(self) -> str:
        """Method and preset, with a note if the weights are random."""
        random = getattr(self.config, "weights", None) == RANDOM
        return f"{self.method} (preset {self.preset})" + (", random weights" if random else "")

    def collect_method_settings(self, estimator: Any = None) -> dict[str, Any]:
        """Return the method and its settings for a report, as the flow ``estimator`` has them, else the estimator."""
        estimator = self.estimator if estimator is None else estimator
        used = {"method": estimator.method, "parameters": dict(estimator.parameters), "backend": estimator.backend}
        return {**used, "requested_method": self.method, "preset": self.preset}

    def start_compiling_refinement_if_cold(self) -> None:
        """Compile what the method needs last in a second process; reading and the rest need not wait for it."""
        from fullfield.estimators.refined import RefinedEstimator

        device, estimator = _check.resolve_available_device(self.device, "--device"), self.estimator
        if isinstance(estimator, RefinedEstimator):
            estimator.start_compiling_process_if_cold(device)

    def load_weights_and_kernels(
        self, size: tuple[int, int] | None, progress: Callable[[float, str], None], *, quiet: bool
    ) -> None:
        """Check the device, download missing weights, and load or compile the kernels for frames of this size."""
        device = _check.resolve_available_device(self.device, "--device")
        estimator = self.estimator  # refuses unsuitable settings before any download
        self.start_compiling_refinement_if_cold()
        if not hasattr(self.config, "weights"):
            from fullfield.estimators.protocol import prepare_estimator_if_supported

            prepare_estimator_if_supported(estimator, device, size)
            return
        if self.origin is not None and self.origin.is_missing and not quiet:
            print_note(f"downloading the weights {self.origin.name}")
        estimator.prepare(
            device, size, download_progress=build_download_callback(progress, f"the weights of {self.method}")
        )

    def estimate(self, frame1: Tensor, frame2: Tensor, **options: Any) -> Flow:
        """Estimate the flow of frames that were read from files; the result is on the host."""
        from fullfield.estimators.estimation import estimate_tensors

        with rename_arguments_in_errors(method=f"--method {self.method}"):
            return estimate_tensors(frame1, frame2, self.estimator, device=self.device, **options).cpu()


_DEST = "parameter "


def build_download_callback(
    progress: Callable[[float, str], None], description: str
) -> Callable[[int, int | None], None]:
    """Return a callback that reports downloaded and total bytes to ``progress``."""

    def report(received_bytes: int, total_bytes: int | None) -> None:
        full = "" if total_bytes is None else f" of {total_bytes / 1e6:.1f}"
        progress(
            received_bytes / total_bytes if total_bytes else 0.0,
            f"downloading {description}, {received_bytes / 1e6:.1f}{full} MB",
        )

    return report


@dataclass(frozen=True)
class Parameter:
    """Field of a configuration as an option."""

    field: str
    annotation: object
    help: str
    choices: tuple[object, ...] | None
    metavar: str | None = None

    @property
    def option(self) -> str:
        """Name on the command line."""
        return "--" + self.field.rstrip("_").replace("_", "-")

    @property
    def is_switch(self) -> bool:
        """True if the option is a switch with a ``--no-`` form."""
        return self.annotation in (bool, bool | None)

    @property
    def placeholder(self) -> str:
        """Placeholder of the value in the help."""
        if self.choices is not None:
            return "{" + ",".join(str(choice) for choice in self.choices) + "}"
        return self.metavar or _choose_metavar(self.annotation)

    def parse_value(self, text: str) -> object:
        """Parse ``text``; InputError names the option."""
        try:
            value = _parse_as_annotation(self.annotation, text)
        except ValueError:
            raise InputError(f"{self.option}: expected {self.placeholder}, got {text!r}") from None
        if self.choices is not None and value not in self.choices:
            raise InputError(f"{self.option}: expected one of {', '.join(map(str, self.choices))}, got {text!r}")
        return value


def get_parameters_by_option(method: str) -> Mapping[str, Parameter]:
    """Return the parameters of ``method`` by option."""
    return _collect_parameters_by_option(get_method(method).import_config_class())


@cache  # the parsers call it a thousand times
def _collect_parameters_by_option(config_class: Any) -> Mapping[str, Parameter]:
    annotations = typing.get_type_hints(config_class)
    result = {}
    for field in dataclasses.fields(config_class):
        annotation, metadata = annotations[field.name], {"help": "", "choices": None, **field.metadata}
        if metadata["choices"] is None and typing.get_origin(annotation) is typing.Literal:
            metadata["choices"] = typing.get_args(annotation)
        parameter = Parameter(field.name, annotation, **metadata)
        result[parameter.option] = parameter
    return types.MappingProxyType(result)


def add_method_option_group(
    parser: argparse.ArgumentParser,
    *,
    is_positional: bool = False,
    extra_names: Sequence[str] = (),
    default: str = DEFAULT_METHOD,
    common_group: Any = None,
) -> Any:
    """Add ``--method``, or MODEL in its place, and the options that all methods have; return the group.

    ``extra_names`` are further names of MODEL, which are no methods of flow. ``common_group`` is the group of
    ``--method``, ``--preset`` and ``--device``, if it is another one.
    """
    presets = dict.fromkeys(name for method in METHODS.values() for name in method.load_presets())
    group = parser.add_argument_group("estimation")
    common_group = group if common_group is None else common_group
    names = f"{', '.join((*METHODS, *extra_names))}, or your own package.module:Class"
    if is_positional:
        parser.add_argument(
            "method", type=partial(_parse_method_name_or_alias, extra_names=extra_names), metavar="MODEL", help=names
        )
    else:
        common_group.add_argument(
            "--method", type=_parse_method_name_or_alias, metavar="NAME", default=default, help=names
        )
    common_group.add_argument(
        "--preset", choices=presets, default=DEFAULT_PRESET, help="set of parameters to start from"
    )
    common_group.add_argument("--device", metavar="NAME", default="auto", help=DEVICE_HELP)
    group.add_argument("--backend", metavar="NAME", help="use this backend or fail; see fullfield doctor [the best]")
    group.add_argument("--threads", type=argtypes.parse_thread_count, help="CPU threads [all]")
    return group


def _parse_method_name_or_alias(text: str, extra_names: Sequence[str] = ()) -> str:
    if text in extra_names:
        return text
    try:
        return resolve_method_name(text)
    except InputError:
        names = ", ".join((*METHODS, *extra_names))
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {names})") from None


def add_scale_option(group: Any) -> None:
    """Add ``--scale``, for an estimation on smaller frames."""
    group.add_argument(
        "--scale", metavar="FRACTION", default="1", help="estimate at this fraction of the size, such as 1/2"
    )


def limit_cpu_threads_unless_none(thread_count: int | None) -> None:
    """Limit the process to ``thread_count`` CPU threads."""
    if thread_count is not None:
        import torch

        torch.set_num_threads(thread_count)


def choose_method(args: argparse.Namespace) -> MethodChoice:
    """Return the method and its settings; InputError names the option that does not fit."""
    method = get_method(args.method)
    presets = method.load_presets()
    if args.preset not in presets:
        raise InputError(f"--preset: {args.method} has {', '.join(presets)}, got {args.preset!r}")
    changes = _collect_own_parameters_and_refuse_others(args, args.method)
    with rename_arguments_in_errors(**map_arguments_to_options(args.method)):
        config = dataclasses.replace(presets[args.preset], **changes)
        origin = None if method.network is None else find_weights_origin(method.network, config.weights)
    return MethodChoice(args.method, args.preset, config, args.backend, resolve_auto_device(args.device), origin)


def resolve_auto_device(name: str) -> str:
    """Return the name of a device, with ``auto`` decided for this machine."""
    if name != "auto":
        return name
    from fullfield.ops.devices import resolve_device

    return str(resolve_device(name))


def map_arguments_to_options(method: str) -> dict[str, str]:
    """Return the options of the arguments of ``estimate``, for ``rename_arguments_in_errors``."""
    own = {parameter.field: option for option, parameter in get_parameters_by_option(method).items()}
    names = ("method", "backend", "device", "scale", "initial_flow")
    general = {name: f"--{name.replace('_', '-')}" for name in names}
    return {**own, **general, "max_updates": "highest --updates"}


def add_parameter_options(parser: argparse.ArgumentParser) -> None:
    """Add a group of options for each method, or for several methods that share them."""
    shared: dict[tuple[str, ...], dict[str, dict[str, Parameter]]] = {}
    for name in METHODS:
        for option, parameter in get_parameters_by_option(name).items():
            shared.setdefault(_list_methods_with_option(option), {}).setdefault(option, {})[name] = parameter
    for owners, options in shared.items():
        titles = ", ".join(METHODS[name].title for name in owners)
        group = parser.add_argument_group(f"parameters of {titles} (--method {', '.join(owners)})")
        for meanings in options.values():
            _add_parameter_option(group, meanings)


def _add_parameter_option(group: Any, parameters_by_method: dict[str, Parameter]) -> None:
    """Add one option, with its meaning for each method that has it."""
    parameter = next(iter(parameters_by_method.values()))
    names_by_help: dict[str, list[str]] = {}
    for name, meaning in parameters_by_method.items():
        names_by_help.setdefault(meaning.help, []).append(name)
    texts = [f"{help}{_describe_preset_values(tuple(names), parameter)}" for help, names in names_by_help.items()]
    if len(names_by_help) > 1:
        texts = [f"{', '.join(names)}: {text}" for text, names in zip(texts, names_by_help.values(), strict=True)]
    how: dict[str, Any] = {
        "metavar": "|".join(dict.fromkeys(meaning.placeholder for meaning in parameters_by_method.values()))
    }
    if parameter.is_switch:
        how = {"action": argparse.BooleanOptionalAction}
    how |= {"dest": _DEST + parameter.option, "default": argparse.SUPPRESS}
    group.add_argument(parameter.option, help="; ".join(texts).replace("%", "%%"), **how)


def _list_methods_with_option(option: str) -> tuple[str, ...]:
    """Return the methods that have the option."""
    return tuple(name for name in METHODS if option in get_parameters_by_option(name))


def list_used_parameter_options(args: argparse.Namespace) -> list[str]:
    """Return the parameter options on the command line."""
    return [dest.removeprefix(_DEST) for dest in vars(args) if dest.startswith(_DEST)]


def get_parameter_option_value_if_used(args: argparse.Namespace, option: str) -> Any:
    """Return the text (of a switch the value) of a parameter option on the command line; None if it is absent."""
    return getattr(args, _DEST + option, None)


def _collect_own_parameters_and_refuse_others(args: argparse.Namespace, method: str) -> dict[str, Any]:
    """Return the parameters on the command line by field; an option of another method is refused."""
    own, changes = get_parameters_by_option(method), {}
    for option in list_used_parameter_options(args):
        if option not in own:
            owners = ", ".join(_list_methods_with_option(option))
            raise InputError(f"{option}: belongs to --method {owners}, not to {method}; leave it out")
        result = get_parameter_option_value_if_used(args, option)
        changes[own[option].field] = result if isinstance(result, bool) else own[option].parse_value(result)
    return changes


def _describe_preset_values(methods: tuple[str, ...], parameter: Parameter) -> str:
    """Return the presets' values for the help: one, or one per preset and method if they differ."""
    values: dict[str, list[str]] = {}
    for name in methods:
        values.setdefault(_describe_default_and_presets(METHODS[name], parameter.field), []).append(name)
    if parameter.is_switch and values.keys() == {_format_parameter_value(None)}:
        return ""  # not a value of the command line
    if len(values) == 1:
        return f" [{next(iter(values))}]"
    return " [" + "; ".join(f"{', '.join(names)}: {value}" for value, names in values.items()) + "]"


def _describe_default_and_presets(method: Method, field: str) -> str:
    """Return the value of the default preset, and those of the presets that differ."""
    values = {
        preset: _format_parameter_value(getattr(config, field)) for preset, config in method.load_presets().items()
    }
    default = values[DEFAULT_PRESET]
    others = ", ".join(f"{preset}: {value}" for preset, value in values.items() if value != default)
    return f"{default} ({others})" if others else default


def _format_parameter_value(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_format_parameter_value, value))
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _split_annotation_origin_and_arguments(annotation: object) -> tuple[object, tuple[object, ...]]:
    """Split ``Union`` (also ``A | B``), ``tuple`` or ``Literal`` from its arguments; a plain type gives None."""
    origin = typing.get_origin(annotation)
    return typing.Union if origin is types.UnionType else origin, typing.get_args(annotation)


def _choose_metavar(annotation: object) -> str:
    origin, inner = _split_annotation_origin_and_arguments(annotation)
    if origin is typing.Union:
        return "|".join(map(_choose_metavar, inner))
    if origin is tuple:
        return f"{_choose_metavar(inner[0])},..." if inner[-1] is Ellipsis else ",".join(map(_choose_metavar, inner))
    if origin is typing.Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    names: dict[object, str] = {int: "INT", float: "NUMBER", str: "TEXT", bool: "true|false", type(None): "auto"}
    return names[annotation]


def _parse_as_annotation(annotation: object, text: str) -> object:
    """Parse ``text`` as ``annotation``; ValueError if it does not fit."""
    origin, inner = _split_annotation_origin_and_arguments(annotation)
    if origin is typing.Union:
        for member in sorted(inner, key=lambda member: member is not type(None)):
            with contextlib.suppress(ValueError):
                return _parse_as_annotation(member, text)
        raise ValueError(text)
    if origin is tuple:
        items = text.split(",")
        kinds = [inner[0]] * len(items) if inner[-1] is Ellipsis else inner
        return tuple(_parse_as_annotation(kind, item.strip()) for kind, item in zip(kinds, items, strict=True))
    if origin is typing.Literal:
        return next((choice for choice in inner if str(choice) == text), text)
    words: dict[object, dict[str, object]] = {type(None): {"auto": None}, bool: {"true": True, "false": False}}
    readers: dict[object, typing.Callable[[str], object]] = {
        int: argtypes.parse_integer,
        float: argtypes.parse_finite_number,
        str: str,
    }
    try:
        return words[annotation][text.lower()] if annotation in words else readers[annotation](text)
    except (KeyError, argparse.ArgumentTypeError) as error:
        raise ValueError(text) from error
