"""Server that runs scripts in forks of a process which has only imported PyTorch and numba.

It is for scripts that need unused memory. Tests of imports and of the start of a process start Python instead.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import traceback
from typing import Any


class ForkServer:
    """Process that has imported PyTorch and numba and started no threads, on Linux."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)

    def run_script(self, script: str, *arguments: object) -> str:
        """Run ``script`` in a fork and return its output; raise RuntimeError with the end of the output if it fails."""
        return self._run(script, arguments, is_measured=False)

    def measure_script(self, script: str, *arguments: object) -> str:
        """Run a script that measures its memory: free blocks return to the system at once."""
        return self._run(script, arguments, is_measured=True)

    def _run(self, script: str, arguments: tuple[object, ...], *, is_measured: bool) -> str:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise RuntimeError("the process has no pipes")
        requests.write(json.dumps([is_measured, script, *map(str, arguments)]) + "\n")
        requests.flush()
        answer: dict[str, Any] = json.loads(answers.readline())
        if answer["status"]:
            raise RuntimeError(f"exit status {answer['status']}: {answer['output'][-3000:]}")
        return str(answer["output"])

    def close(self) -> None:
        self._process.communicate()


def _fix_allocator() -> None:
    """Let glibc return every block of 128 KiB or more to the system when it is free.

    Otherwise glibc raises this threshold as blocks are freed and keeps smaller blocks: the peak of memory would depend
    on earlier scripts.
    """
    threshold = -3  # M_MMAP_THRESHOLD
    if not ctypes.CDLL(None).mallopt(threshold, 131072):
        raise OSError("mallopt: the threshold cannot be set")


def _fork(is_measured: bool, words: list[str]) -> dict[str, Any]:
    """Run a script with its arguments in a child; return its exit status and its stdout and stderr together."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for stream in (1, 2):
                os.dup2(writing, stream)
            sys.argv = ["-c", *words[1:]]
            if is_measured:
                _fix_allocator()
            exec(compile(words[0], "script", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:  # noqa: BLE001 - printed, and the child ends
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        output = pipe.read()
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "output": output}


def _serve() -> None:
    import numba  # noqa: F401
    import torch  # noqa: F401

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in sys.stdin:
        is_measured, *words = json.loads(line)
        print(json.dumps(_fork(is_measured, words)), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
