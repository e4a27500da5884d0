"""Command for Nuke that runs ``fullfield shot`` on the selected Read node's range in a separate process.

See docs/nuke.md for the installation. Nuke's Python needs only this file.
"""

import os
import re
import shlex
import subprocess
import threading
from pathlib import Path

import nuke

METHODS = ("auto", "fullfield-m", "fullfield-s", "tvl1")
# Nuke's settings for Python and libraries, which must not reach the Python of fullfield.
NUKES_OWN = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def executable():
    """Return the words of the fullfield command, from the variable FULLFIELD or by its name on the PATH."""
    return shlex.split(os.environ.get("FULLFIELD", "fullfield"), posix=os.name != "nt")


def command(plates, first, last, output, method="auto", refine=False, occlusion=False, device="cpu"):
    """Return the command line for the frames ``first`` to ``last`` of a pattern such as ``plate.%04d.exr``."""
    if not re.search(r"%\d*d|#|\.(mov|mp4|mkv|mxf)$", plates):
        raise ValueError(f"{plates}: expected a sequence such as plate.%04d.exr, or a video")
    words = [*executable(), "shot", plates, "--frames", f"{first}-{last}", "--direction", "both"]
    words += ["-o", output, "--method", method, "--device", device, "--farm", "openjd"]  # progress, frame by frame
    return words + ["--refine"] * bool(refine) + ["--occlusion"] * bool(occlusion)


def vectors_beside(plates):
    """Return the default pattern of the vectors: ``vectors/mv.%04d.exr`` next to the plates, with as many digits."""
    digits = re.search(r"%0?(\d*)d", plates)
    number = f"%0{digits.group(1)}d" if digits and digits.group(1) else "%04d"
    return f"{Path(plates).parent.as_posix()}/vectors/mv.{number}.exr"


def run(words, progress=None, cancelled=lambda: False):
    """Run a command and report to ``progress(percent, line)``; RuntimeError has its last line if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in NUKES_OWN}
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True)
    except OSError as error:
        message = f"{words[0]}: cannot be started ({error}); set the variable FULLFIELD to the command"
        raise RuntimeError(message) from error
    said = ""
    for line in process.stdout:
        done = re.match(r"openjd_progress: (\d+)", line)
        if not done:
            said = line.strip() or said
        elif progress is not None:
            progress(int(done.group(1)), said)
        if cancelled():
            process.terminate()
    code = process.wait()
    if code and not cancelled():
        raise RuntimeError(said or f"fullfield ended with exit code {code}")
    return code


def ask(read):
    """Show the panel with the Read node's values and return the input; None if it was closed."""
    plates = read["file"].value()
    panel = nuke.Panel("fullfield: motion vectors")
    panel.addSingleLineInput("frames", "{}-{}".format(read["first"].value(), read["last"].value()))
    panel.addFilenameSearch("vectors", vectors_beside(plates))
    panel.addEnumerationPulldown("method", " ".join(METHODS))
    panel.addBooleanCheckBox("refine", False)
    panel.addBooleanCheckBox("occlusion", False)
    panel.addEnumerationPulldown("device", "cpu cuda")
    if not panel.show():
        return None
    answers = {name: panel.value(name) for name in ("vectors", "method", "refine", "occlusion", "device")}
    frames = re.match(r"^\s*(-?\d+)\s*-\s*(-?\d+)\s*$", panel.value("frames"))
    if frames is None:
        raise ValueError("frames: expected FIRST-LAST, got {}".format(panel.value("frames")))
    return dict(answers, plates=plates, first=int(frames.group(1)), last=int(frames.group(2)))


def read_back(answers):
    """Create a Read node for the vectors and return it."""
    node = nuke.nodes.Read(file=answers["vectors"], first=answers["first"], last=answers["last"])
    node["raw"].setValue(True)
    return node


def flow_of_selected():
    """Show the panel, run the command in a thread with a progress bar, and create a Read node for the vectors."""
    try:
        read = nuke.selectedNode()
        if read.Class() != "Read":
            raise ValueError("select a Read node")
        answers = ask(read)
        if answers is None:
            return None
        words = command(
            *(answers[name] for name in ("plates", "first", "last", "vectors")),
            **{name: answers[name] for name in ("method", "refine", "occlusion", "device")},
        )
        Path(answers["vectors"]).parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        nuke.message(str(error))
        return None

    def work():
        task = nuke.ProgressTask("fullfield")

        def tell(percent, line):
            task.setProgress(percent)
            task.setMessage(line)

        try:
            if run(words, tell, task.isCancelled) == 0:
                nuke.executeInMainThread(read_back, (answers,))
        except RuntimeError as error:
            nuke.executeInMainThread(nuke.message, (str(error),))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def add_menu():
    """Put the command into Nuke's menu; call it in menu.py."""
    nuke.menu("Nuke").addCommand("fullfield/Motion vectors of the selected Read", flow_of_selected)
