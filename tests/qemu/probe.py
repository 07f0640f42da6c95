"""Runs in the sandbox of a unit: try what an engine needs of it, and print as JSON what the kernel answered.

probe.py sandbox MIB   that much locked memory, code made at run time, a compiled library from the cache, copying between processes
probe.py grow          take more memory than the exporter may have
"""

# ruff: noqa: T201 - this is a command
from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import shutil
import sys
from pathlib import Path

from dsv41_serving.facts.copying import try_copying

LIBC = ctypes.CDLL(None, use_errno=True)
# mov eax, 42; ret
CODE = bytes.fromhex("b82a000000c3")


def lock_memory(size: int) -> str:
    """Lock `size` bytes as a registration of a KV pool does."""
    buffer = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return _answer(LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)))


def make_code() -> str:
    """Write instructions into memory and run them, as a just-in-time compiler does."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    page.write(CODE)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return str(function())


def load_library() -> str:
    """Load a library that lies in the cache of kernel compilers."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if not cache:
        return "no cache"
    made = Path(cache) / "probe.so"
    shutil.copyfile("/lib/x86_64-linux-gnu/libm.so.6", made)
    library = ctypes.CDLL(str(made))
    library.floor.restype, library.floor.argtypes = ctypes.c_double, [ctypes.c_double]
    return str(library.floor(3.5))


def _answer(status: int) -> str:
    return "ok" if status == 0 else errno.errorcode[ctypes.get_errno()]


if __name__ == "__main__":
    if sys.argv[1] == "grow":
        print(len(bytearray(1200 << 20)))
    else:
        copying = try_copying()
        print(
            json.dumps(
                {
                    "mlock": lock_memory(int(sys.argv[2]) << 20),
                    "made code": make_code(),
                    "library": load_library(),
                    "pidfd_getfd": copying.pidfd_getfd,
                    "process_vm_readv": copying.process_vm_readv,
                }
            )
        )
