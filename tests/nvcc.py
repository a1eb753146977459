"""Compile every kernel with nvcc, for Ampere and Hopper: no warnings, no spilt registers.

`python tests/nvcc.py` is a step of `make check`. Every source is compiled once, with an instance of
each set of types in a namespace of its own; what has passed is not compiled again until it changes.
`--all` compiles all the same and prints the registers that the kernels take.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cuda_units import SOURCES, instances

ARCHITECTURES = ["sm_80", "sm_90"]
PASSED = SOURCES.parent / "build" / "nvcc"


def translation_unit(source):
    """One text with all instances of a source; a kernel's name is then no longer C's."""
    lines = ["#define KERNEL(name, ...) __global__ void name(__VA_ARGS__)"]
    lines += [f'#include "{path.name}"' for path in sorted(SOURCES.glob("*.cuh"))]
    for number, defines in enumerate(instances(source)):
        names = [define.partition("=")[0] for define in defines]
        lines += [f"#define {define.replace('=', ' ')}" for define in defines]
        lines += [f"namespace n{number} {{", f'#include "{source}.cu"', "}"]
        lines += [f"#undef {name}" for name in names]
    return "\n".join(lines) + "\n"


def compile_text(text, *flags):
    """Return the compiler's exit code and all it said."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(text)
        command = ["nvcc", "-std=c++17", "-cubin", "-Werror", "all-warnings", "-Xptxas", "-v"]
        command += [f"-I{SOURCES}", *flags, "-o", f"{folder}/kernels.cubin", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def resources(log):
    """Registers and spilt bytes of each kernel that ptxas reported, by its (mangled) name."""
    found = re.findall(
        r"Function properties for (\S+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers",
        log,
    )
    return {name: (int(registers), int(out) + int(back)) for name, out, back, registers in found}


def failure(source, architecture, show=False):
    """Compile a source; return what is wrong with it, or nothing."""
    code, log = compile_text(translation_unit(source), f"-arch={architecture}")
    kernels = resources(log)
    spilt = {name: spill for name, (_, spill) in kernels.items() if spill}
    if code or not kernels:
        return log
    if show:
        most = max(registers for registers, _ in kernels.values())
        print(f"{source:16s} {architecture}: {len(kernels)} kernels, at most {most} registers")  # noqa: T201
    return f"registers are spilt: {spilt}" if spilt else ""


def main():
    if shutil.which("nvcc") is None:
        print("nvcc is not on the PATH: the CUDA kernels are not compiled by it")  # noqa: T201
        return 0
    compile_all, failed = "--all" in sys.argv, False
    headers = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.cuh")))
    PASSED.mkdir(parents=True, exist_ok=True)
    for source in sorted(path.stem for path in SOURCES.glob("*.cu")):
        text = translation_unit(source).encode() + (SOURCES / f"{source}.cu").read_bytes()
        for architecture in ARCHITECTURES:
            digest = hashlib.sha256(headers + text + Path(__file__).read_bytes())
            stamp = PASSED / f"{source}-{architecture}-{digest.hexdigest()[:24]}"
            if stamp.exists() and not compile_all:
                continue
            if wrong := failure(source, architecture, show=compile_all):
                failed = True
                print(f"{source}.cu for {architecture}: {wrong}", file=sys.stderr)  # noqa: T201
            else:
                stamp.touch()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
