"""Options made from configurations."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest

from fullfield._check import InputError
from fullfield.cli import methods
from fullfield.cli.main import build_parser
from fullfield.estimators import registry
from fullfield.ops.tvl1.config import PRESETS, TVL1Config

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class OtherConfig:
    rounds: int = field(default=12, metadata={"help": "flow updates, 100 % of them", "metavar": "N"})
    warps: int = field(default=1, metadata={"help": "shared with TV-L1"})
    sides: tuple[int, int] = (3, 5)
    shares: tuple[float, ...] = (0.5,)
    extent: Literal["small", "large"] = "small"
    warm: bool = True
    limit: float | None = None


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("other_config")
    module.__dict__.update(OtherConfig=OtherConfig, PRESETS={"default": OtherConfig(), "sharp": OtherConfig(rounds=32)})
    monkeypatch.setitem(sys.modules, "other_config", module)
    monkeypatch.setitem(registry.METHODS, "other", registry.Method("Other", "other_config", "OtherConfig"))


def _chosen(*options: str) -> methods.MethodChoice:
    return methods.choose_method(build_parser().parse_args(["flow", "a", "b", "-o", "c", *options]))


def test_get_parameters_by_option_covers_every_config_field() -> None:
    assert {p.field for p in methods.get_parameters_by_option("tvl1").values()} == {f.name for f in fields(TVL1Config)}
    assert {"--lambda", "--scale-factor"} <= methods.get_parameters_by_option("tvl1").keys()


def test_choose_method_options_override_preset() -> None:
    assert _chosen("--method", "tvl1").config == PRESETS["default"]
    assert _chosen("--method", "tvl1", "--preset", "paper", "--lambda", "0.2", "--scales", "auto").config == PRESETS[
        "paper"
    ].replace(lambda_=0.2, scales=None)
    assert _chosen("--method", "tvl1", "--scales", "4").config.scales == 4
    chosen = _chosen("--method", "tvl1", "--precision", "float16", "--borders", "clamp")
    assert (chosen.config.precision, chosen.config.borders) == ("float16", "clamp")
    with pytest.raises(InputError, match=r"^--precision: expected one of float32, float16, got 'fast'"):
        _chosen("--method", "tvl1", "--precision", "fast")


@pytest.mark.usefixtures("two_methods")
def test_choose_method_parses_every_field_type() -> None:
    options = ("--sides", "7,9", "--shares", "1,2.5", "--extent", "large", "--no-warm", "--limit", "3", "--warps", "4")
    chosen = _chosen("--method", "other", *options)
    assert chosen.config == OtherConfig(sides=(7, 9), shares=(1.0, 2.5), extent="large", warm=False, limit=3.0, warps=4)
    assert _chosen("--method", "other", "--preset", "sharp", "--limit", "auto").config == OtherConfig(rounds=32)
    for option, text in (("--sides", "7"), ("--sides", "a,b"), ("--extent", "medium"), ("--limit", "none")):
        with pytest.raises(InputError, match=f"^{option}: expected"):
            _chosen("--method", "other", option, text)


@pytest.mark.usefixtures("two_methods")
def test_choose_method_refuses_options_of_other_method() -> None:
    with pytest.raises(InputError, match=r"^--rounds: belongs to --method other, not to auto"):
        _chosen("--rounds", "3")
    with pytest.raises(InputError, match=r"^--padding: belongs to --method raft, raft-small, not to sea-raft-m"):
        _chosen("--method", "sea-raft", "--padding", "kitti")
    with pytest.raises(InputError, match=r"^--lambda: belongs to --method tvl1, not to other"):
        _chosen("--method", "other", "--lambda", "3")
    with pytest.raises(InputError, match=r"^--warm: belongs to --method other"):
        _chosen("--no-warm")
    with pytest.raises(InputError, match=r"^--preset: other has default, sharp"):
        _chosen("--method", "other", "--preset", "paper")
    assert _chosen("--method", "tvl1", "--warps", "7").config.warps == 7


@pytest.mark.usefixtures("two_methods")
def test_flow_help_shows_preset_values(cli: Any) -> None:
    ran = cli("flow", "--help")
    text = " ".join(ran.out.split())
    assert ran.code == 0
    assert "flow updates, 100 % of them [12 (sharp: 32)]" in text
    assert "--rounds N" in text
    assert "(--method other)" in text
    assert "parameters of TV-L1, Other (--method tvl1, other)" in text
    assert (
        "tvl1: linearisations of the data term per level [10 (realtime: 6, fast: 4, paper: 1)]; other: shared with"
        in text
    )
    assert "--precision {float32,float16}|{auto,exact,fast,bfloat16}" in text
    assert "[3,5]" in text
