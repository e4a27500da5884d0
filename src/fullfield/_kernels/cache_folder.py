"""Folders of compiled kernels, and the messages on stderr when kernels are compiled."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def iterate_candidate_cache_folders() -> Iterator[Path]:
    """Yield ``FULLFIELD_CACHE_DIR`` or the user's cache folder, then a temporary folder of the user's."""
    configured = os.environ.get("FULLFIELD_CACHE_DIR")
    if configured:
        yield Path(configured)
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        yield Path(os.environ["LOCALAPPDATA"]) / "fullfield" / "cache"
    elif os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"]) / "fullfield"
    else:
        with suppress(RuntimeError):  # no home directory is known
            yield Path.home() / ".cache" / "fullfield"
    temporary_folder = _get_user_temporary_folder_or_none()
    if temporary_folder is not None:
        yield temporary_folder


def _get_user_temporary_folder_or_none() -> Path | None:
    """Return this user's part of the temporary folder; None where no temporary folder can be written."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    try:
        return Path(tempfile.gettempdir()) / f"fullfield-{user}"
    except OSError:
        return None


def try_create_private_writable_folder(folder: Path) -> bool:
    """Return whether this user, and no other, can write to ``folder``, which is created if it does not exist.

    Compiled code is run, so it is never loaded from a folder that another user could write to. Under the temporary
    folder, where all users write, the whole path is checked, and others cannot read it either.
    """
    try:
        mode = 0o755
        temporary_folder = _get_user_temporary_folder_or_none()
        if temporary_folder is not None and temporary_folder in folder.parents:
            mode = 0o700
            temporary_folder.mkdir(mode=mode, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        if hasattr(os, "getuid") and not (
            _is_own_folder_without_mode_bits(folder, 0o002) and _is_path_private_if_temporary(folder)
        ):
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_own_folder_without_mode_bits(folder: Path, forbidden_bits: int) -> bool:
    """Return whether this is a folder, not a link, of this user with none of the bits ``forbidden_bits`` set."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & forbidden_bits


def _is_path_private_if_temporary(folder: Path) -> bool:
    """Return whether no other user can replace a part of the path; True outside the user's temporary folder."""
    top = _get_user_temporary_folder_or_none()
    if top is None or top not in folder.parents:
        return True
    inside = [folder, *folder.parents]
    own = inside[: inside.index(top) + 1]
    if not all(_is_own_folder_without_mode_bits(parent, 0o077) for parent in own):
        return False
    return _are_parents_writable_only_by_self_or_root(top.parent.resolve() / top.name)


def _are_parents_writable_only_by_self_or_root(path: Path) -> bool:
    """Return whether only root and this user can replace ``path``, which has no links, and the folders above it."""
    for parent in path.parents:
        status = parent.stat()
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.getuid()) or shared:
            return False
    return True


def _is_tree_readable_and_safe_from_others(folder: Path) -> bool:
    """Return whether only root or this user can have written ``folder`` and its files, and all can be read.

    ``folder`` has no links.
    """
    if not hasattr(os, "getuid"):
        return False
    try:
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            if not is_plain or status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
                return False
            if not os.access(path, os.R_OK):
                return False
        return folder.is_dir() and _are_parents_writable_only_by_self_or_root(folder)
    except OSError:
        return False


def find_or_create_writable_folder_or_none(folder_name: str) -> Path | None:
    """Return a writable folder of that folder_name in the first possible candidate folder, or None."""
    for parent in iterate_candidate_cache_folders():
        folder = parent / folder_name
        if try_create_private_writable_folder(folder):
            return folder
    return None


def list_trusted_folders_before_writable(folder_name: str, writable_folder: Path | None) -> list[Path]:
    """Return the folders of that folder_name before ``writable_folder`` whose files only root or this user can change.

    A container image is often built by root and run by another user.
    """
    folders: list[Path] = []
    for parent in iterate_candidate_cache_folders():
        if parent / folder_name == writable_folder:
            break
        folder = (parent / folder_name).resolve()
        if _is_tree_readable_and_safe_from_others(folder):
            folders.append(folder)
    return folders


def log_warning_or_print_unless_quiet(message: str) -> None:
    """Log a warning, unless ``FULLFIELD_QUIET`` is set; where no handler is configured, print it on stderr."""
    if os.environ.get("FULLFIELD_QUIET"):
        return
    logger = logging.getLogger("fullfield")
    if logger.hasHandlers():
        logger.warning(message)
    elif logger.isEnabledFor(logging.WARNING):
        print(f"fullfield: {message}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def announce_and_time_compilation(kernels: str, processor: str, folder: Path | None) -> Iterator[None]:
    """Announce the compilation of ``kernels`` for ``processor``, and print how long it took."""
    is_kept = folder is not None and os.access(folder, os.W_OK)  # an incomplete cache may be read-only
    times = "once" if is_kept else "in every process: no cache folder can be written"
    log_warning_or_print_unless_quiet(f"compiling {kernels} for {processor}, {times} ...")
    start = time.perf_counter()
    yield
    log_warning_or_print_unless_quiet(f"compiled in {time.perf_counter() - start:.1f} s")
