"""A process of a pool that computes on one device: how it serves its parent, whatever it computes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from fullfield._check import InputError


class ParentEndedError(OSError):
    """The parent has closed the pipe, or has ended."""


class ParentPipe:
    """A process's pipe to its parent. Several threads may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: str, content: Any = None) -> None:
        """Send a message. ParentEndedError where nobody receives it."""
        try:
            with self._lock:
                self._connection.send((kind, content))
        except OSError as error:
            raise ParentEndedError(*error.args) from error

    def receive(self) -> Any:
        """Return what the parent sends next. ParentEndedError where nothing can come."""
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise ParentEndedError(*error.args) from error

    def report_frame(self, number: int) -> None:
        """Send the number of a finished frame."""
        self.send("frame", number)


def run_task_and_send_errors_then_exit(connection: Connection, task: Callable[[ParentPipe], None]) -> None:
    """Do ``task`` until the parent closes the pipe or terminates this process; send it the error that ends the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it

    def stop(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
    warnings.filterwarnings("ignore", ".* NaN or infinite")  # the parent warns once for all processes
    pipe = ParentPipe(connection)
    try:
        with contextlib.suppress(ParentEndedError, SystemExit):
            try:
                task(pipe)
            except ParentEndedError:
                raise
            except (InputError, OSError) as error:
                pipe.send("refused", str(error))
            except Exception:  # noqa: BLE001 - sent to the parent, which raises
                pipe.send("error", traceback.format_exc())
    finally:
        connection.close()
        os._exit(0)  # without taking PyTorch down piece by piece
