"""Scripts in processes of their own that need not import PyTorch anew: forked from one that has done nothing else.

For what wants memory that nobody has used yet. What is about imports, or about the start of a process, starts Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from typing import Any


class Server:
    """A process that has imported PyTorch and numba and started no threads; on Linux."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        # glibc raises this threshold as blocks are freed and keeps what is below it: the peak of memory would depend on
        # what ran before. A threshold that is set stays, and each larger block goes back to the system when it is free.
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def run(self, script: str, *arguments: object) -> str:
        """What ``script`` printed in a fork; RuntimeError with its last words where it failed."""
        asked, told = self._process.stdin, self._process.stdout
        if asked is None or told is None:
            raise RuntimeError("the process has no pipes")
        asked.write(json.dumps([script, *map(str, arguments)]) + "\n")
        asked.flush()
        answer: dict[str, Any] = json.loads(told.readline())
        if answer["status"]:
            raise RuntimeError(f"exit status {answer['status']}: {answer['said'][-3000:]}")
        return str(answer["said"])

    def close(self) -> None:
        self._process.communicate()


def _fork(words: list[str]) -> dict[str, Any]:
    """Run a script with its arguments in a child; how it ended, and its stdout and stderr together."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(writing, stream)
            sys.argv = ["-c", *words[1:]]
            exec(compile(words[0], "script", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:  # noqa: BLE001 - it ends here and is told
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        said = pipe.read()
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "said": said}


def _serve() -> None:
    import numba  # noqa: F401
    import torch  # noqa: F401

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
