"""The compiler that comes with torch, NVRTC, and the driver, in their own terms."""

from __future__ import annotations

import ctypes
import glob
import os
import re
import struct
from pathlib import Path

import torch

__all__ = ["Arguments", "current_stream", "machine_code"]

_SOURCE = Path(__file__).with_name("kernels.cu")


class Arguments:
    """Room for a kernel's arguments, and pointers to each."""

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self.values = ctypes.create_string_buffer(struct.calcsize(layout))
        kinds = re.findall(r"\d*[a-zA-Z]", layout)
        ends = [struct.calcsize("".join(kinds[: i + 1])) for i in range(len(kinds))]
        first = ctypes.addressof(self.values)
        places = [
            first + end - struct.calcsize(kind)
            for kind, end in zip(kinds, ends, strict=True)
        ]
        self.pointers = (ctypes.c_void_p * len(places))(*places)


def current_stream(index: int) -> int:
    """The current stream of a device, as the driver wants it."""
    return torch._C._cuda_getCurrentRawStream(index)


def machine_code(architecture: str) -> bytes:
    """The source, compiled by NVRTC."""
    library = _compiler()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    given = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    options = (ctypes.c_char_p * len(given))(*given)
    failed = library.nvrtcCreateProgram(
        ctypes.byref(program), _SOURCE.read_bytes(), b"kernels.cu", 0, None, None
    )
    failed = failed or library.nvrtcCompileProgram(program, len(given), options)
    failed = failed or library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    failed = failed or library.nvrtcGetCUBIN(program, code)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC could not compile for {architecture}: {failed}")
    return code.raw


def _compiler() -> ctypes.CDLL:
    """NVRTC: as torch has loaded it, as the system has it, or from torch's packages."""
    major = str(torch.version.cuda).split(".")[0]
    name = f"libnvrtc.so.{major}"
    beside = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    for place in (name, *glob.glob(os.path.join(beside, "*", "lib", name))):
        # It looks for a second library by name, so that one must be there already.
        parts = glob.glob(os.path.join(os.path.dirname(place), "libnvrtc-builtins.so*"))
        try:
            for part in parts if os.path.isabs(place) else []:
                ctypes.CDLL(part)
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise OSError(f"{name} was not found")
