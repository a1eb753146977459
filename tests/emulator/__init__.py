"""Run the sources in `cuda/` on this machine's processor, in place of `gnnx.ops._cuda`'s launch.

A unit is compiled by g++ when it is first asked for and kept by its content's hash.
"""

import ctypes
import hashlib
import os
import subprocess
import threading
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "cuda"
_KINDS = {"p": np.uint64, "i4": np.int32, "i8": np.int64, "f4": np.float32, "f8": np.float64}
_FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-fno-strict-aliasing"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


class EmulatorError(RuntimeError):
    """What a device would leave undefined, with block and thread."""


class Emulator:
    """Stands in for `_cuda._launch`; `seed` other than 0 shuffles blocks, warps and lanes."""

    def __init__(self, cache, *, sources=SOURCES, seed=0, sanitize=False):
        self.cache, self.sources, self.seed = Path(cache), Path(sources), seed
        self.flags = _FLAGS + _WARNINGS + (_SANITIZERS if sanitize else [])
        self.launched = []
        self._libraries = {}
        self._lock = threading.Lock()

    def launch(self, _device, unit, kernel, grid, block, args, shared_bytes):
        library = self._library(unit)
        call, signature = library[f"{kernel}_launch"], library[f"{kernel}_signature"]
        call.restype = signature.restype = ctypes.c_char_p
        _check_arguments(kernel, signature().decode(), args)
        boxes = [np.array(arg) for arg in args]
        table = (ctypes.c_void_p * len(boxes))(*[box.ctypes.data for box in boxes])
        dims = (ctypes.c_uint * 6)(*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block)))
        with self._lock:
            self.launched.append(kernel)
            error = call(dims, ctypes.c_size_t(shared_bytes), ctypes.c_uint(self.seed), table)
        if error:
            raise EmulatorError(f"{kernel}: {error.decode()}")

    def _library(self, unit):
        if unit not in self._libraries:
            runtime = self._built("emulator", HERE / "emulator.cpp", [], HERE.glob("emulator.*"))
            defines = [f"-D{define}" for define in unit.defines]
            flags = ["-DGNNX_EMULATOR", f"-I{HERE}", f"-I{self.sources}", *defines]
            source = self.sources / f"{unit.name}.cu"
            content = [*self.sources.iterdir(), *HERE.glob("emulator.*")]
            library = self._built(str(unit), source, [*flags, str(runtime)], content)
            self._libraries[unit] = ctypes.CDLL(str(library))  # units share names of kernels
        return self._libraries[unit]

    def _built(self, name, source, flags, content):
        """Find what was compiled when the files of `content` were the same, or compile it."""
        digest = hashlib.sha256(repr((name, self.flags)).encode())
        for path in sorted(content):
            digest.update(path.read_bytes())
        out = self.cache / f"{source.stem}-{digest.hexdigest()[:24]}.so"
        if not out.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            partial = out.with_suffix(f".{os.getpid()}")
            command = ["g++", *self.flags, "-x", "c++", str(source), "-x", "none", *flags]
            command += ["-o", str(partial)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
            partial.rename(out)
        return out


def _check_arguments(kernel, signature, args):
    """Hold arguments against parameters: a device would read bytes that are not there."""
    wanted = [signature[i : i + 2] for i in range(0, len(signature), 2)]
    types = [_KINDS["p" if kind[0] == "p" else kind] for kind in wanted]
    given = [type(arg) for arg in args]
    if given != types:
        raise EmulatorError(f"{kernel}: takes {types}, got {given}")
