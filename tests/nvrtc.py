"""NVRTC through ctypes: compiles for a named architecture on machines with no GPU and no driver.

CuPy's front door asks for the device first. This calls the same library with the same options.
"""

import ctypes
import glob
import os
import sysconfig


def find():
    """NVRTC of a CUDA toolkit, or of the packages that CuPy and torch bring; None without one."""
    homes = [
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        *glob.glob("/usr/local/cuda*"),
    ]
    site = sysconfig.get_paths()["purelib"]
    patterns = [f"{home}/{lib}/libnvrtc.so*" for home in homes if home for lib in ("lib64", "lib")]
    patterns += [f"{home}/targets/*/lib/libnvrtc.so*" for home in homes if home]
    patterns += [f"{site}/nvidia/*/lib/libnvrtc.so*", f"{site}/nvidia/*/lib64/libnvrtc.so*"]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern))]
    for path in [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def compile_text(library, text, name, options):
    """Return the cubin, empty where it does not compile, and the compiler's log."""
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), name.encode(), 0, None, None
    )
    assert code == 0, f"nvrtcCreateProgram: {code}"
    table = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = library.nvrtcCompileProgram(program, len(options), table)
    log = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
    cubin = b"" if failed else _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log.rstrip(b"\0").decode()


def _read(size_of, read, program):
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert read(program, buffer) == 0
    return buffer.raw[: size.value]
