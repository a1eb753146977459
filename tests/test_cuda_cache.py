"""Compiled kernels are kept and found again; what is missing is named. CuPy is a stand-in here."""

import shutil
import sys
import types
from pathlib import Path

import pytest

from cuda_units import SOURCES
from gnnx.errors import ResourceError, RunError, UsageError
from gnnx.ops import _cuda

UNIT = _cuda.Unit("spmm", ("VALUE=float", "INDEX=int", "VECTOR=4"))


class Nvrtc:
    """As much of cupy.cuda.nvrtc as is called, counting what is compiled."""

    NVRTCError = ValueError

    def __init__(self):
        self.compiled, self.destroyed, self.wrong = [], 0, False

    def getVersion(self):  # noqa: N802 - CuPy's names
        return 13, 0

    def createProgram(self, text, name, headers, names):  # noqa: N802
        assert "#include" in text
        assert not headers
        assert not names
        return name

    def compileProgram(self, program, options):  # noqa: N802
        if self.wrong:
            raise ValueError("NVRTC_ERROR_COMPILATION")
        self.compiled.append((program, options))

    def getCUBIN(self, program):  # noqa: N802
        return b"cubin of " + program.encode()

    def getProgramLog(self, _program):  # noqa: N802
        return "values.cuh(1): error"

    def destroyProgram(self, _program):  # noqa: N802
        self.destroyed += 1


@pytest.fixture
def nvrtc(tmp_path, monkeypatch):
    fake = Nvrtc()
    cupy = types.SimpleNamespace(
        cuda=types.SimpleNamespace(nvrtc=fake),
        RawModule=lambda path: types.SimpleNamespace(path=path),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("GNNX_CACHE_DIR", str(tmp_path / "cache"))
    _forget()
    yield fake
    _forget()


def _forget():
    """As in a new process."""
    for function in (_cuda._cupy, _cuda._module, _cuda._function):
        function.cache_clear()


def test_a_kernel_is_compiled_once_for_all_processes(nvrtc, tmp_path):
    first = _cuda._module(UNIT, (9, 0)).path
    _forget()
    assert _cuda._module(UNIT, (9, 0)).path == first
    assert len(nvrtc.compiled) == nvrtc.destroyed == 1
    assert Path(first).read_bytes() == b"cubin of spmm.cu"
    assert [path.suffix for path in (tmp_path / "cache" / "cuda").iterdir()] == [".cubin"]
    _, options = nvrtc.compiled[0]
    assert "-arch=sm_90" in options
    assert "-DVALUE=float" in options


def test_another_device_type_or_source_is_compiled_anew(nvrtc, tmp_path, monkeypatch):
    paths = {_cuda._module(UNIT, (9, 0)).path, _cuda._module(UNIT, (8, 0)).path}
    paths.add(_cuda._module(UNIT._replace(defines=("VALUE=double",)), (9, 0)).path)
    changed = shutil.copytree(SOURCES, tmp_path / "changed")
    (changed / "values.cuh").write_text("// another\n")
    monkeypatch.setattr(_cuda, "source_folder", lambda: changed)
    _forget()
    paths.add(_cuda._module(UNIT, (9, 0)).path)
    assert len(paths) == len(nvrtc.compiled) == 4


def test_what_does_not_compile_is_shown(nvrtc):
    nvrtc.wrong = True
    with pytest.raises(RunError, match=r"spmm.cu does not compile (.|\n)*values.cuh\(1\): error"):
        _cuda._module(UNIT, (9, 0))
    assert nvrtc.destroyed == 1


def test_a_cache_that_cannot_be_written_is_named(nvrtc, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GNNX_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="compiled kernels cannot be kept") as caught:
        _cuda._module(UNIT, (9, 0))
    assert "GNNX_CACHE_DIR" in caught.value.remedy


def test_cupy_is_named_where_it_is_missing(nvrtc, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UsageError, match="need CuPy") as caught:
        _cuda._module(UNIT, (9, 0))
    assert "cuda13" in caught.value.remedy


def test_kernels_are_found_in_a_checkout_and_in_a_wheel(tmp_path, monkeypatch):
    assert _cuda.source_folder() == SOURCES
    shutil.copytree(SOURCES, tmp_path / "gnnx" / "cuda")
    monkeypatch.setattr(_cuda, "__file__", str(tmp_path / "gnnx" / "ops" / "_cuda.py"))
    assert _cuda.source_folder() == tmp_path / "gnnx" / "cuda"
