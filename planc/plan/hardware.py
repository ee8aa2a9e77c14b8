"""The `hardware` block: the target device of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planc.devices.hardware import DEVICES, Device, meant_device
from planc.plan import codes
from planc.plan.keys import key, keyed, keys
from planc.plan.quantities import BYTES
from planc.plan.scalars import Float, Int, Quantity, listed, wrong_type
from planc.plan.scope import Scope
from planc.plan.types import Optional, Variant, render_call
from planc.record import record
from planc.syntax import ast

_OWN = "device"


@keyed
class OwnDevice:
    """A device that planc does not know."""

    memory: int = key(Quantity(BYTES, low=1), doc="total memory, as the runtime reports it")
    peak_flops: float | None = key(
        Optional(Float(1.0)), unsaid=None, doc="dense bfloat16 FLOP/s, such as 989e12"
    )
    memory_bandwidth: int | None = key(Optional(Quantity(BYTES, low=1)), unsaid=None, doc="bytes per second")
    link_bandwidth: int | None = key(
        Optional(Quantity(BYTES, low=1)),
        unsaid=None,
        doc="bytes per second to devices of the same node, one way",
    )
    nic_bandwidth: int | None = key(
        Optional(Quantity(BYTES, low=1)), unsaid=None, doc="bytes per second over the network, one way"
    )
    devices_per_node: int | None = key(Optional(Int(1)), unsaid=None, doc="devices connected by links")
    host_bandwidth: int | None = key(
        Optional(Quantity(BYTES, low=1)), unsaid=None, doc="bytes per second to the host's memory, one way"
    )


@record
class DeviceType:
    """The name of a device that planc knows, or `device(memory = 80 GiB, ...)`; the value is a Device."""

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return {_OWN: OwnDevice}

    def convert(self, value: ast.Value, scope: Scope) -> Device | None:
        match value:
            case ast.Ref(name) if name.text in DEVICES:
                return DEVICES[name.text]
            case ast.Call(name, _, _) if name.text == _OWN:
                own: OwnDevice | None = Variant({_OWN: OwnDevice}).convert(value, scope)
                return _device(own) if own else None
            case ast.Ref(name) if name.text == _OWN:
                help = f"write `{_OWN}(memory = 80 GiB)`; `planc explain hardware` lists what else it takes"
                scope.report(codes.WRONG_ARGUMENTS, name.span, f"`{_OWN}` needs `memory`", help=help)
            case ast.Ref(name):
                meant = meant_device(name.text)
                near = f"did you mean `{meant}`?" if meant else None
                text = f"no device `{name.text}`"
                scope.unknown(codes.UNKNOWN_NAME, name, (*DEVICES, _OWN), text=text, help=near)
            case ast.Call(name, _, _):
                scope.unknown(codes.UNKNOWN_ACTION, name, (_OWN,), text=f"`{name.text}` is not a device")
            case _:
                wrong_type(self, value, scope, ())
        return None

    def describe(self, *, mark: str = "") -> str:
        names = (*DEVICES, f"{_OWN}(memory = 80 GiB, ...)")
        return listed(f"{mark}{name}{mark}" for name in names)

    def render(self, value: Any) -> str:
        return value.name if value.name in DEVICES else render_call(_OWN, _own(value))


def _device(own: OwnDevice) -> Device:
    return Device(_OWN, own.memory, **{name: getattr(own, name) for name in _SHARED})


def _own(device: Device) -> OwnDevice:
    return OwnDevice(device.memory_bytes, **{name: getattr(device, name) for name in _SHARED})


_SHARED = tuple(key.name for key in keys(OwnDevice) if key.name != "memory")
"""The names that fields of a device and arguments of `device(...)` share."""


@keyed
class HardwareSpec:
    """The target device: `check` tests whether the plan fits, `estimate` bounds its speed.

    A device of your own is `device(memory = 80 GiB, peak_flops = 989e12, memory_bandwidth = 3350 GB,
    link_bandwidth = 450 GB, nic_bandwidth = 50 GB, devices_per_node = 8)`: memory is what the runtime reports
    as the total, FLOP and bytes are per second, links one way. Only the memory is required. The block changes
    neither the run nor the plan's hash.
    """

    gpu: Device = key(DeviceType(), example="h100", doc="the device of every rank")
