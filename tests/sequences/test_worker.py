"""Messages of a pool's process to its parent."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from fullfield import InputError
from fullfield.sequences import worker
from fullfield.sequences.worker import ParentPipe, run_task_and_send_errors_then_exit


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker.os, "_exit", lambda _: None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError("cannot be read"), "refused"), (InputError("method"), "refused"), (EOFError("x"), "error")],
)
def test_work_until_parent_ends_sends_errors(error: Exception, kind: str) -> None:
    def work(pipe: ParentPipe) -> None:
        pipe.report_frame(pipe.receive())
        raise error

    parent, child = Pipe()
    parent.send(1001)
    run_task_and_send_errors_then_exit(child, work)
    assert parent.recv() == ("frame", 1001)
    sent, content = parent.recv()
    assert sent == kind
    assert str(error) in content


def test_work_until_parent_ends_stops_when_parent_closes() -> None:
    ended = []

    def work(pipe: ParentPipe) -> None:
        try:
            pipe.receive()
        finally:
            ended.append(True)

    parent, child = Pipe()
    parent.close()
    run_task_and_send_errors_then_exit(child, work)
    assert ended
    assert child.closed
