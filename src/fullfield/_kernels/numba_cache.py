"""Compilation of numba functions once per machine, with a message on stderr if the cache is cold."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullfield._kernels import Missing
from fullfield._kernels.cache_folder import (
    announce_and_time_compilation,
    find_or_create_writable_folder_or_none,
    list_trusted_folders_before_writable,
    log_warning_or_print_unless_quiet,
)

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_CHECKSUM = 32  # bytes of SHA-256
_KEY_DIGITS = 12
_SAID = set[str]()


def explain_missing_numba() -> Missing | None:
    """Return None if numba can be used, else the reason."""
    if importlib.util.find_spec("numba") is None:
        return Missing("numba is not installed (pip install numba)")
    return None


def find_or_create_numba_cache_folder_or_none(*source_paths: str) -> Path | None:
    """Return a folder for code compiled from these source files, writable if one is, or None.

    It is in ``FULLFIELD_CACHE_DIR``, the user's cache folder or a temporary folder of the user's. The name contains a
    digest of the source_paths and versions, so that a change to a helper that numba inlines is never missed.
    """
    import llvmlite
    import numba

    digest = hashlib.sha256(f"checksums {numba.__version__} {llvmlite.__version__} {sys.version}".encode())
    for source in source_paths:
        # numba keeps code by the path of its source, too.
        digest.update(str(Path(source).resolve()).encode())
        digest.update(Path(source).read_bytes())
    name = f"numba-{digest.hexdigest()[:16]}"
    folder = find_or_create_writable_folder_or_none(name)
    return folder if folder is not None else next(iter(list_trusted_folders_before_writable(name, None)), None)


@contextmanager
def cache_compiled_code(folder: Path | None) -> Iterator[None]:
    """Enclose definitions whose ``njit(cache=True)`` functions keep their code in ``folder``, with checksums."""
    from numba import config
    from numba.core import caching

    before, plain = config.CACHE_DIR, caching.IndexDataCacheFile
    implementation = caching.FunctionCache._impl_class
    locators = implementation._locator_classes
    config.CACHE_DIR = str(folder) if folder is not None else ""
    caching.IndexDataCacheFile = _create_checksummed_file_class(_list_read_only_copies(folder))
    implementation._locator_classes = [_create_locator_class_for_read_only_folders(locators[0]), *locators[1:]]
    try:
        yield
    finally:
        config.CACHE_DIR, caching.IndexDataCacheFile = before, plain
        implementation._locator_classes = locators


def create_jit_decorator(folder: Path | None, **options: Any) -> Callable[[Any], Any]:
    """Return the decorator of a module's kernels, whose code is kept in ``folder``; ``options`` are numba's.

    The kernels release the GIL, and a division by zero raises no exception. Python calls them, C does not.
    """
    from numba import njit

    def jit(function: Any) -> Any:
        with cache_compiled_code(folder):
            options.setdefault("no_cfunc_wrapper", True)
            return njit(nogil=True, error_model="numpy", cache=folder is not None, **options)(function)

    return jit


def create_helper_jit_decorator(folder: Path | None, **options: Any) -> Callable[[Any], Any]:
    """Return the decorator of functions that only kernels call; arguments as for :func:`create_jit_decorator`.

    They compile in less time, because Python cannot call them.
    """
    return create_jit_decorator(folder, no_cpython_wrapper=True, **options)


@functools.cache
def _list_read_only_copies(folder: Path | None) -> tuple[Path, ...]:
    """Return the folders whose code is loaded if it is not in ``folder``."""
    return () if folder is None else tuple(list_trusted_folders_before_writable(folder.name, folder))


@functools.cache
def _create_locator_class_for_read_only_folders(base: Any) -> Any:
    """Return numba's class of the folder ``config.CACHE_DIR``, changed to accept one that cannot be written."""

    class Locator(base):  # type: ignore[misc]  # numba has no types
        def ensure_cache_path(self) -> None:
            with suppress(OSError):  # ChecksummedFile.save reports what cannot be written
                super().ensure_cache_path()

    return Locator


@functools.cache
def _create_checksummed_file_class(read_only_folders: tuple[Path, ...]) -> Any:
    """Return the class of numba's files of one function, each with a checksum at its end.

    Code that is not in its folder is loaded from ``read_only_folders``.

    numba unpickles the files: a damaged one raises any exception or ends the process. This class removes a damaged
    file, so that numba compiles again. Bytes after a pickle's end are not read, so numba can read the files too.
    """
    from numba.core.caching import IndexDataCacheFile

    class ChecksummedFile(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
        def save(self, key: Any, data: Any) -> None:
            # numba numbers a function's files. Two processes that write at once would give two processors' code one
            # number, so the name has the processor and the types in it.
            digest = hashlib.sha256(repr(key).encode()).hexdigest()[:_KEY_DIGITS]
            self._data_name_pattern = f"{self._base}.{digest}.{{number:d}}.nbc"
            try:
                super().save(key, data)
            except OSError as error:  # a full disk; the code itself is there
                where = error.filename or self._cache_path
                _warn_once_per_folder(
                    self._cache_path, f"{where}: cannot keep compiled kernels ({error.strerror or error})"
                )

        def __init__(self, cache_path: str, filename_base: str, source_stamp: Any) -> None:
            super().__init__(cache_path=cache_path, filename_base=filename_base, source_stamp=source_stamp)
            self._base, self._stamp = filename_base, source_stamp

        def load(self, key: Any) -> Any:
            data = super().load(key)
            for folder in read_only_folders if data is None else ():
                copy = type(self)(str(folder / Path(self._cache_path).name), self._base, self._stamp)
                data = super(ChecksummedFile, copy).load(key)
                if data is not None:
                    break
            return data

        def _load_index(self) -> Any:
            return super()._load_index() if _is_intact_else_remove_and_warn(self._index_path) else {}

        def _load_data(self, name: str) -> Any:
            if not _is_intact_else_remove_and_warn(self._data_path(name)):
                raise FileNotFoundError(self._data_path(name))
            return super()._load_data(name)

        @contextmanager
        def _open_for_write(self, filepath: str) -> Iterator[Any]:
            content = io.BytesIO()
            yield content
            with super()._open_for_write(filepath) as file:
                file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())

    return ChecksummedFile


def _is_intact_else_remove_and_warn(path: str) -> bool:
    """Return whether a file ends in the checksum of the rest; a damaged file is removed."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return False
    if content[-_CHECKSUM:] == hashlib.sha256(content[:-_CHECKSUM]).digest():
        return True
    with suppress(OSError):
        Path(path).unlink()
    _warn_once_per_folder(str(Path(path).parent), f"{path}: damaged; its kernels are compiled again")
    return False


def _warn_once_per_folder(folder: str, text: str) -> None:
    if folder not in _SAID:
        _SAID.add(folder)
        log_warning_or_print_unless_quiet(text)


def is_cache_warm(folder: Path | None, label: str) -> bool:
    """Return whether ``folder`` or a read-only copy of it holds all kernels called ``label``, for this CPU."""
    if folder is None:
        return False
    return any(_get_stamp_path(one, label).exists() for one in (folder, *_list_read_only_copies(folder)))


def compile_or_load_all_and_mark_warm(functions: dict[str, tuple[Any, Any]], folder: Path | None, label: str) -> None:
    """Compile or load every ``label: (dispatcher, signature)``.

    A cold cache is announced on stderr, because it costs seconds once, unless ``FULLFIELD_QUIET`` is set.
    """
    cold = not is_cache_warm(folder, label)
    with announce_and_time_compilation(label, "this CPU", folder) if cold else nullcontext():
        for dispatcher, signature in functions.values():
            if signature not in dispatcher.overloads:  # a kernel that two modules share may be compiled already
                dispatcher.compile(signature)
            dispatcher.disable_compile()  # a call with other types is a mistake, not a second specialisation
    if cold and folder is not None:
        with suppress(OSError):  # only the announcement would be repeated
            _get_stamp_path(folder, label).touch()


class KernelModule:
    """Module of kernels that is imported and compiled (or loaded) on first use, from any thread.

    Args:
        module: full name of the module, with ``ENTRY_POINTS``, as for :func:`compile_or_load_all_and_mark_warm`, and
            their ``CACHE``.
        label: name of the kernels in the announcement.
    """

    def __init__(self, module: str, label: str) -> None:
        self._name, self._label = module, label
        self._lock = threading.Lock()
        self._ready: Any = None
        self._process: SpawnProcess | None = None

    def __call__(self) -> Any:
        """Return the module."""
        with self._lock:
            if self._ready is None:
                if self._process is not None:
                    self._process.join()
                    self._process = None
                module = importlib.import_module(self._name)
                compile_or_load_all_and_mark_warm(module.ENTRY_POINTS, module.CACHE, self._label)
                self._ready = module
        return self._ready

    def start_compiling_process_if_cold(self) -> None:
        """Compile in a second process, if the cache is cold and can be written; the next call waits for it.

        Only for programs whose main module can be imported again, as ``multiprocessing`` does.
        """
        folder, warm = self.find_cache_folder_and_check_warm()
        if folder is None or warm:
            return
        from multiprocessing import get_context

        with self._lock:
            if self._ready is None and self._process is None:
                log_warning_or_print_unless_quiet(f"compiling {self._label} for this CPU in a second process, once ...")
                arguments = self._name, self._label
                self._process = get_context("spawn").Process(
                    target=_try_compile_into_cache_silently, args=arguments, daemon=True
                )
                self._process.start()

    @property
    def is_compiling(self) -> bool:
        """Return whether a second process is compiling."""
        with self._lock:
            return self._process is not None and self._process.is_alive()

    def find_cache_folder_and_check_warm(self) -> tuple[Path | None, bool]:
        """Return the folder of the compiled kernels, or None, and whether it has them for this CPU."""
        folder = importlib.import_module(self._name).CACHE
        return folder, is_cache_warm(folder, self._label)


def _try_compile_into_cache_silently(module: str, label: str) -> None:
    """Compile the kernels of a module into the cache, silently: after an error the parent compiles them itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    os.environ["FULLFIELD_QUIET"] = "1"
    with suppress(Exception):
        KernelModule(module, label)()


def _get_stamp_path(folder: Path, label: str) -> Path:
    return folder / f"{label.replace(' ', '-')}.{_compute_cpu_digest()}.compiled"


def cpu_has_feature(feature: str) -> bool:
    """Return whether the processor has an instruction set, by LLVM's name such as ``"avx512f"``."""
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get(feature, False))


def _compute_cpu_digest() -> str:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_name() + llvm.get_host_cpu_features().flatten()
    return hashlib.sha256(features.encode()).hexdigest()[:12]
