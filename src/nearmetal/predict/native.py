"""Settings as the C++ simulator takes them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from nearmetal.predict import _sim

if TYPE_CHECKING:
    from nearmetal.predict.moderation import StageSetting
    from nearmetal.predict.moderation_rules import ModerationSetting


def native_moderation(setting: ModerationSetting) -> _sim.ModerationSetting:
    """Return the rule for the simulator."""
    native = _sim.ModerationSetting()
    for name in (one.name for one in fields(setting)):
        setattr(native, name, int(getattr(setting, name)))
    return native


def native_stage(setting: StageSetting, delivery_tail: int = 0) -> _sim.StageSetting:
    """Return the stage for the simulator; `delivery_tail` is 1 + the table of what delivery varies by."""
    native = _sim.StageSetting()
    native.moderation = native_moderation(setting.moderation)
    for name in (one.name for one in fields(setting) if one.name != "moderation"):
        setattr(native, name, int(getattr(setting, name)))
    native.delivery_tail = delivery_tail
    return native
