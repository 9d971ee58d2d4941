# SPDX-License-Identifier: MIT
"""Memory of CUDA devices as MRs, by a dma-buf that the driver exports."""

from __future__ import annotations

import ctypes
import mmap
import os

from .. import MR, PD, AccessFlags

_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.MW_BIND


def register(pd: PD, address: int, length: int) -> MR:
    """Return an MR of `length` bytes at `address` of a CUDA device.

    Wraps cuMemGetHandleForAddressRange, which exports whole pages, and ibv_reg_dmabuf_mr(3).
    Raises RuntimeError if libcuda is missing, or cannot export the memory.
    """
    begin = address & -mmap.PAGESIZE
    end = (address + length + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
    fd = export(begin, end - begin)
    try:
        return MR.from_dmabuf(pd, fd, length, offset=address - begin, iova=address, access=_ACCESS)
    finally:
        os.close(fd)  # the MR keeps the memory


def export(address: int, length: int) -> int:
    """Return a new descriptor of the dma-buf of these pages."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        call = driver.cuMemGetHandleForAddressRange
    except (OSError, AttributeError) as error:
        raise RuntimeError(
            "a tensor on cuda is registered by a dma-buf, which needs NVIDIA's libcuda.so.1 with "
            f"cuMemGetHandleForAddressRange (CUDA 11.7 or later): {error}"
        ) from None
    call.argtypes = (
        *(ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_ulonglong),
    )
    fd = ctypes.c_int(-1)
    if code := call(ctypes.byref(fd), address, length, _DMA_BUF_FD, 0):
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError(
            f"cuMemGetHandleForAddressRange of {length} bytes at {address:#x}: "
            f"{(name.value or b'error').decode()} ({code}). The card and its driver (the open "
            "kernel modules) must support dma-bufs: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"
        )
    return fd.value
