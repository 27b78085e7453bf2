"""NVRTC and the driver through ctypes: from CUDA C++ source to a function that can be launched.

NVRTC comes with torch; neither ``nvcc`` nor headers are needed.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Mapping
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def nvrtc() -> ctypes.CDLL | None:
    """NVRTC of the CUDA version that torch was built with, or any that is installed; None if there is none."""
    majors = [torch.version.cuda.split(".")[0]] if torch.version.cuda else ["13", "12"]
    folders = [""]
    for folder in _nvidia_folders():
        folders += sorted(glob.glob(os.path.join(folder, "*", "lib")))
    for folder in folders:
        for major in majors:
            if folder:  # NVRTC asks for its builtins by name, which finds only what is loaded already
                for builtins in glob.glob(os.path.join(folder, f"libnvrtc-builtins.so.{major}*")):
                    ctypes.CDLL(builtins)
            try:
                return ctypes.CDLL(os.path.join(folder, f"libnvrtc.so.{major}"))
            except OSError:
                continue
    return None


def _nvidia_folders() -> list[str]:
    try:
        import nvidia
    except ImportError:
        return []
    return list(nvidia.__path__)


@lru_cache(maxsize=1)
def driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def check_driver(result: int) -> None:
    if result:
        message = ctypes.c_char_p()
        driver().cuGetErrorString(result, ctypes.byref(message))
        raise RuntimeError(f"CUDA driver: {message.value.decode() if message.value else result}")


def compile_source(
    source: bytes, name: str, headers: Mapping[str, bytes], capability: tuple[int, int]
) -> tuple[bytes, str]:
    """Compile CUDA C++ for a GPU.

    Args:
        source: the source.
        name: of the source in messages.
        headers: what it includes, by name.
        capability: compute capability, such as ``(9, 0)``. A GPU newer than NVRTC gets PTX, which its driver compiles.

    Returns:
        The program (a cubin or PTX) and the compiler's log.

    Raises:
        RuntimeError: the source does not compile.
    """
    library = nvrtc()
    count = ctypes.c_int()
    _check_nvrtc(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check_nvrtc(library.nvrtcGetSupportedArchs(known))
    target = 10 * capability[0] + capability[1]
    machine = target in list(known)
    target = target if machine else max(arch for arch in known if arch < target)
    options = [f"--gpu-architecture={'sm' if machine else 'compute'}_{target}", "--std=c++17"]
    if machine:
        options.append("--ptxas-options=-v")
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(headers))(*headers.values())
    names = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers))
    _check_nvrtc(library.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(headers), texts, names))
    try:
        encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = library.nvrtcCompileProgram(program, len(options), encoded)
        log = _nvrtc_text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        log = log.rstrip(b"\0").decode(errors="replace")
        if result:
            raise RuntimeError(f"{name} does not compile:\n{log}")
        if machine:
            return _nvrtc_text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), log
        return _nvrtc_text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc_text(size_of, read, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check_nvrtc(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check_nvrtc(read(program, buffer))
    return buffer.raw


def _check_nvrtc(result: int) -> None:
    if result:
        describe = nvrtc().nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {describe(result).decode()}")


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [
        ("id", ctypes.c_int),
        ("padding", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    ]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


@lru_cache(maxsize=1)
def supports_pdl() -> bool:
    """Whether the driver can start a kernel before the one in front of it has ended (CUDA 12)."""
    return hasattr(driver(), "cuLaunchKernelEx")


def launch(
    function: ctypes.c_void_p,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    stream: int,
    arguments: ctypes.Structure,
    launch_pdl: bool = False,
) -> None:
    """Launch a kernel whose only parameter is ``arguments``.

    Args:
        launch_pdl: it may start before the kernel in front of it has ended, for whose results it waits itself.
    """
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    if not launch_pdl:
        check_driver(
            driver().cuLaunchKernel(
                function, *grid, threads, 1, 1, shared_bytes, ctypes.c_void_p(stream), parameters, None
            )
        )
        return
    attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
    config = _Config(grid, (threads, 1, 1), shared_bytes, stream, ctypes.pointer(attribute), 1)
    check_driver(driver().cuLaunchKernelEx(ctypes.byref(config), function, parameters, None))


_MAX_DYNAMIC_SHARED_BYTES, _SHARED_CARVEOUT = 8, 9  # CUfunction_attribute


def load_function(program: bytes, name: str, shared_bytes: int) -> ctypes.c_void_p:
    """A kernel of a compiled program on the current device, with leave to use ``shared_bytes`` of shared memory."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check_driver(driver().cuModuleLoadData(ctypes.byref(module), program))
    check_driver(driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    check_driver(driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes))
    check_driver(driver().cuFuncSetAttribute(function, _SHARED_CARVEOUT, 100))
    return function
