"""Devices for training: their names, and the reasons why this machine cannot train on one.

torch takes seconds to import, so it is imported only for graphics cards.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from medfedvqa.errors import ConfigError

Precision = Literal["float32", "bfloat16"]
"""The arithmetic of the frozen part of a backbone."""
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
_NAME = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?", re.ASCII)
_NO_HOST_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""Parts of torch 2's messages when processor memory is short, for which it raises a plain `RuntimeError`."""


@dataclass(frozen=True)
class DeviceProblem:
    """Why this machine cannot train on a device, and what to do."""

    problem: str
    remedy: str


_UNKNOWN = DeviceProblem("its name is unknown", "write auto, cpu, cuda or cuda:NUMBER")


class DeviceMemoryError(ConfigError):
    """The memory of a device is too small for a task."""


def check_names(text: str) -> str:
    """Returns the text. Raises `ConfigError`, without torch, unless it names devices separated by commas."""
    for name in text.split(","):
        if not _NAME.fullmatch(name):
            raise _refused(name, _UNKNOWN)
    return text


def problem_of(device: str) -> DeviceProblem | None:
    """Why this machine cannot train on `auto`, `cpu`, `cuda` or `cuda:NUMBER`; None if it can."""
    if not _NAME.fullmatch(device):
        return _UNKNOWN
    if device in (AUTO, CPU):
        return None
    count, number = _cards(), int(device.partition(":")[2] or 0)
    if not count:
        return DeviceProblem(
            "torch finds no graphics card or no driver",
            "install the card's driver and a torch that is built for it, or choose cpu",
        )
    if number >= count:
        cards = "there is only one graphics card" if count == 1 else f"there are only {count} graphics cards"
        return DeviceProblem(f"{cards}, numbered from 0", "choose another number")
    return None


def resolved(text: str) -> str:
    """The devices that a user named, with `auto` replaced: `cuda` if this machine has a usable card, else `cpu`.

    Raises `ConfigError` for a name that is unknown, and for a device that this machine lacks.
    """
    names = check_names(text).split(",")
    for name in names:
        if problem := problem_of(name):
            raise _refused(name, problem)
    return ",".join((CUDA if _cards() else CPU) if name == AUTO else name for name in names)


def in_turn(devices: str, number: int) -> str:
    """The device for the site or run of this number, counted from 0: each device gets one in turn."""
    names = devices.split(",")
    return names[number % len(names)]


def in_words(devices: str) -> str:
    """The devices as a command prints them. On graphics cards float32 is not shortened to TF32."""
    return f"{devices} (TF32 off)" if CUDA in devices else devices


def exact_float32(device: str) -> None:
    """Turns TF32 off on a graphics card. By default torch uses it for convolutions, with 10 of 23 mantissa bits."""
    if device.startswith(CUDA):
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


@contextmanager
def memory_in_words(device: str, option: str = "", size: int = 1) -> Iterator[None]:
    """A context in which torch's out-of-memory errors become `DeviceMemoryError`.

    `option`: the option that sets the batch size, which the error names; `size`: its value.
    """
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise DeviceMemoryError(_too_small(device, option, size)) from error
    except RuntimeError as error:
        if not any(text in str(error) for text in _NO_HOST_MEMORY):
            raise
        raise DeviceMemoryError(_too_small(device, option, size)) from error


def _too_small(device: str, option: str, size: int) -> str:
    smaller = "tune fewer blocks, or choose a smaller backbone or another device"
    if option and size > 1:
        smaller = f"try half the batch, {option}={size // 2} instead of {size}; or {smaller}"
    return f"the memory of the device '{device}' is too small for this job: {smaller}"


def _refused(name: str, problem: DeviceProblem) -> ConfigError:
    return ConfigError(f"this machine cannot train on '{name}': {problem.problem}; {problem.remedy}")


def _cards() -> int:
    """The number of graphics cards that torch can use."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CUDA warns of a missing driver, which callers report in words
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
