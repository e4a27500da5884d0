"""Play random histories of a shot.

``python scripts/check/hostile/histories.py --count 200 --seed 1`` takes about twenty minutes.

A history makes a shot, edits it and makes it again: other lengths, directions, chunks, kills, ``--overwrite``,
``--frames``, replaced plates and masks, other settings, and ``retime`` and ``warp`` along the flow. Some plates have
smaller data windows, some shots are a video, and some pictures become one. At its end the whole shot is
asked for once, and every stored file must hold what a run in an empty folder makes, bit for bit. A run that is killed
has a process of its own, which gets signal 9 at a random call that writes notes or gives a file its name, or at any
moment; the others run in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

HEIGHT, WIDTH = 24, 32
METHOD = (
    "--method",
    "tvl1",
    "--preset",
    "fast",
    "--iterations",
    "2",
    "--warps",
    "1",
    "--scales",
    "2",
    "--threads",
    "1",
)
SETTINGS = ((), ("--lambda", "0.05"), ("--direction", "both"), ("--direction", "both", "--occlusion"),
            ("--warm-start",), ("--warm-start", "--half"), ("--direction", "backward", "--step", "2"),
            ("--st-map", "st.%04d.exr"))  # fmt: skip
KILLS: Counter[bool] = Counter()
"""Runs that were to be killed, by whether they were."""
FORMATS = ("exr", "exr", "exr", "flo", "npy")


def smooth(seed: int, width: int) -> torch.Tensor:
    """Return a random picture [3, HEIGHT, width]."""
    coarse = torch.rand(1, 3, 8, width // 4, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (HEIGHT, width), mode="bilinear")[0]


class History:
    """A shot in a folder, and what happened to it.

    Args:
        draw: random numbers.
        folder: an empty one.
    """

    def __init__(self, draw: random.Random, folder: Path) -> None:
        self.draw, self.folder = draw, folder
        self.events: list[str] = []
        self.settings: tuple[str, ...] = draw.choice(SETTINGS)
        plain = {"exr", "flo", "npy"} if not self._needs_exr() else {"exr"}
        self.suffix = draw.choice([name for name in FORMATS if name in plain])
        self.count = draw.randint(3, 7)
        self.plate_suffix = draw.choice(("png", "exr", "exr", "mkv"))
        has_mask = self.plate_suffix != "mkv" and draw.random() < 0.4
        self.mask: tuple[str, ...] = ("--mask", "mask.%04d.png") if has_mask else ()
        self.picture_suffix = "png" if self.plate_suffix == "mkv" else self.plate_suffix
        self.makes_video = draw.random() < 0.2
        self.video_frames: dict[int, torch.Tensor] = {}
        for number in range(1, self.count + 1):
            self.write_plate(number)

    def _needs_exr(self) -> bool:
        return bool({"both", "--half", "--st-map"} & set(self.settings))

    def note(self, text: str) -> None:
        self.events.append(text)

    # ---- events

    def write_plate(self, number: int) -> None:
        """Write a plate with the bytes of no other one: like its neighbours, or once in a while after a cut."""
        from fullfield.io import write_image

        texture = smooth(1 if self.draw.random() < 0.9 else self.draw.getrandbits(40), WIDTH + 32)
        detail = smooth(self.draw.getrandbits(40), WIDTH)
        frame = 0.85 * texture[..., number : number + WIDTH] + 0.15 * detail
        path = self.plate_path(number)
        if self.plate_suffix == "mkv":
            self.video_frames[number] = frame
            write_video(path, [self.video_frames[n] for n in sorted(self.video_frames)])
            return
        if self.plate_suffix == "exr":
            self._write_window(path, frame)
        else:
            write_image(path, frame)
        self.write_mask(number)

    def _write_window(self, path: Path, frame: torch.Tensor) -> None:
        """Write a frame as an EXR, often with a smaller data window."""
        from fullfield.io.oiio import Header, write_and_verify_picture
        from fullfield.io.windows import FrameWindow

        width, height = (self.draw.choice((side, side, self.draw.randint(side // 2, side))) for side in (WIDTH, HEIGHT))
        left, top = self.draw.randint(0, WIDTH - width), self.draw.randint(0, HEIGHT - height)
        pixels = frame[:, top : top + height, left : left + width].permute(1, 2, 0).contiguous().numpy()
        window = FrameWindow((left, top, width, height), (0, 0, WIDTH, HEIGHT))
        write_and_verify_picture(path, "openexr", pixels, ("R", "G", "B"), Header(window=window))

    def write_mask(self, number: int) -> None:
        """Write the mask of a plate: a hole somewhere, or none."""
        from fullfield.io import write_image

        mask = torch.ones(1, HEIGHT, WIDTH)
        top, left = self.draw.randint(0, HEIGHT - 1), self.draw.randint(0, WIDTH - 1)
        mask[:, top : top + self.draw.randint(0, 9), left : left + self.draw.randint(0, 9)] = 0
        write_image(self.folder / f"mask.{number:04d}.png", mask)

    def replace_a_mask(self) -> None:
        number = self.draw.randint(1, self.count)
        self.write_mask(number)
        self.note(f"mask {number} new")

    def plate_path(self, number: int) -> Path:
        if self.plate_suffix == "mkv":
            return self.folder / "plate.mkv"
        return self.folder / f"plate.{number:04d}.{self.plate_suffix}"

    def replace_a_plate(self) -> None:
        number = self.draw.randint(1, self.count)
        path = self.plate_path(number)
        how = self.draw.choice(("new", "in place", "touched", "copied"))
        if how in ("new", "in place"):
            old = path.stat()
            self.write_plate(number)
            if how == "in place" and path.stat().st_size == old.st_size:
                os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
        elif how == "touched":
            path.touch()
        else:
            shutil.copyfile(path, path.with_suffix(".copy"))
            path.with_suffix(".copy").replace(path)
        self.note(f"plate {number} {how}")

    def lengthen(self) -> None:
        self.count += 1
        self.write_plate(self.count)
        self.note(f"plate {self.count} added")

    def damage_a_plate(self) -> None:
        """Damage a plate for one run."""
        path = self.plate_path(self.draw.randint(1, self.count))
        good = path.read_bytes()
        path.write_bytes(good[:40])
        self.note(f"{path.name} damaged")
        self.make()
        path.write_bytes(good)
        self.note(f"{path.name} mended")

    def change_settings(self) -> None:
        allowed = [each for each in SETTINGS if self.suffix == "exr" or not {"both", "--half", "--st-map"} & set(each)]
        self.settings = self.draw.choice(allowed)
        frames = self._some_frames() if self.draw.random() < 0.6 else ()
        self.make(*frames, "--overwrite")

    def chunks(self) -> None:
        """Make the shot in chunks, in any order, as a farm does."""
        size = self.draw.randint(1, 3)
        starts = list(range(1, self.count + 1, size))
        self.draw.shuffle(starts)
        flags = ("--overwrite",) if self.draw.random() < 0.4 else ()
        for start in starts[: self.draw.randint(1, len(starts))]:
            self.make("--frames", f"{start}-{min(start + size - 1, self.count)}", *flags)

    def kill(self) -> None:
        """Make the shot in another process, and kill it."""
        flags = ("--overwrite",) if self.draw.random() < 0.7 else ()
        call = self.draw.randint(1, 12) if self.draw.random() < 0.7 else 0
        moment = self.draw.uniform(0.2, 1.5)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fullfield.cli.main", "fullfield.sequences.run", "OpenImageIO"])
        command = self.command(*flags)
        process = context.Process(target=doomed, args=(self.folder, command, call))
        process.start()
        process.join(120 if call else moment)
        hung = process.is_alive() and call
        process.kill()
        process.join()
        self.note(f"{' '.join(command)}\n  ended with {process.exitcode}, call {call}")
        assert not hung, f"no end within two minutes\n{self.told()}"
        KILLS[process.exitcode == -signal.SIGKILL] += 1

    def lose_a_frame(self) -> None:
        stored = sorted(self.folder.glob(f"mv.*.{self.suffix}"))
        if stored:
            lost = self.draw.choice(stored)
            lost.unlink()
            self.note(f"{lost.name} removed")

    def pictures(self) -> None:
        """Retime and warp along the flow that is there now."""
        self.make()
        for verb in ("retime", "warp"):
            self.derive(verb)

    def _some_frames(self) -> tuple[str, ...]:
        first = self.draw.randint(1, self.count)
        return "--frames", f"{first}-{self.draw.randint(first, self.count)}"

    def make(self, *more: str) -> int:
        return self.call(*self.command(*more))

    def command(self, *more: str) -> tuple[str, ...]:
        output = f"mv.%04d.{self.suffix}"
        return "shot", self.plates, "-o", output, *METHOD, *self.settings, *self.mask, *more

    @property
    def plates(self) -> str:
        if self.plate_suffix == "mkv":
            return "plate.mkv"
        return f"plate.%04d.{self.plate_suffix}"

    def derive(self, verb: str) -> int | None:
        """Make pictures along the flow; None where it does not hold what the verb needs."""
        if verb == "retime" and ("both" not in self.settings or self.suffix != "exr"):
            return None
        if verb == "warp" and ("--step" in self.settings or "backward" in self.settings):
            return None
        flow = ("--flow", f"mv.%04d.{self.suffix}", *self.mask)
        more = ("--overwrite",) if self.makes_video else ()  # a video is made as a whole
        if verb == "retime":
            return self.call("retime", self.plates, *flow, "--factor", "2", "-o", self.pictures_name("slow"), *more)
        if "both" in self.settings:
            on = f"on.%04d.{self.picture_suffix}"
            return self.call("warp", self.plates, *flow, "--reference", "2", "-o", on)
        frames = ("--frames", f"1-{self.count - 1}")
        return self.call("warp", self.plates, *flow, *frames, "-o", self.pictures_name("next"), *more)

    def pictures_name(self, stem: str) -> str:
        return f"{stem}.mkv" if self.makes_video else f"{stem}.%04d.{self.picture_suffix}"

    def call(self, *arguments: str) -> int:
        """Run a command in the folder; a refusal for other settings is answered with ``--overwrite``."""
        from fullfield.cli.main import main as fullfield

        self.note(" ".join(arguments))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = fullfield(list(arguments))
        self.note(f"  {code} {out.getvalue().strip()} {err.getvalue().strip()}")
        if code == 2 and "was begun with other settings" in err.getvalue() and "--overwrite" not in arguments:
            return self.call(*arguments, "--overwrite")
        assert "Traceback" not in err.getvalue(), err.getvalue()
        return code

    # ---- the end

    def check(self) -> None:
        """Ask for the whole shot, and compare every file with those of a run in an empty folder."""
        assert self.make() == 0, self.told()
        derived = [verb for verb in ("retime", "warp") if self.derive(verb) is not None]
        fresh = History.__new__(History)
        fresh.draw, fresh.events, fresh.settings = self.draw, [], self.settings
        fresh.suffix, fresh.count, fresh.folder = self.suffix, self.count, self.folder / "fresh"
        fresh.plate_suffix, fresh.mask = self.plate_suffix, self.mask
        fresh.picture_suffix, fresh.makes_video = self.picture_suffix, self.makes_video
        fresh.folder.mkdir()
        for path in [*self.folder.glob("plate.*"), *self.folder.glob("mask.*.png")]:
            shutil.copyfile(path, fresh.folder / path.name)
        assert fresh.make() == 0, fresh.told()
        for verb in derived:
            fresh.derive(verb)
        assert not list(self.folder.glob(".*.part*")), f"pieces are left\n{self.told()}"
        for path in sorted(fresh.folder.glob("[!p]*.*")):
            if path.is_file() and ".fullfield" not in path.name:
                here = self.folder / path.name
                assert here.is_file(), f"{path.name} is missing\n{self.told()}"
                assert same_content(here, path), f"{path.name} differs\n{self.told()}"

    def told(self) -> str:
        return "\n".join(self.events)


def write_video(path: Path, frames: Sequence[torch.Tensor]) -> None:
    """Write frames [3, H, W] as a video without loss."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=24)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgr0"
        for frame in frames:
            pixels = (frame * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode(None))


def same_content(one: Path, other: Path) -> bool:
    """Return whether two files hold the same; an encoder's videos of the same pictures differ a little."""
    if one.suffix != ".mkv":
        return bool(content(one) == content(other))
    from fullfield.io import open_video

    first, second = ([frame.values() for frame in open_video(path)] for path in (one, other))
    return len(first) == len(second) and all(
        float((a - b).abs().mean()) < 0.05 for a, b in zip(first, second, strict=True)
    )


def content(path: Path) -> Any:
    """Return what a file holds."""
    from fullfield.io import read_flow_layers
    from fullfield.io.all_channels import read_all_channels

    if path.name.startswith("st.") or (path.suffix == ".exr" and not path.name.startswith("mv.")):
        return read_all_channels(path).pixels.numpy().tobytes()
    if path.name.startswith("mv."):
        return {name: part.numpy().tobytes() for name, part in read_flow_layers(path).items()}
    return path.read_bytes()


def doomed(folder: Path, command: Sequence[str], call: int) -> None:
    """Run a command in a process that ends by signal 9 at a call that writes notes or gives a file its name.

    Args:
        folder: where to run it.
        command: its arguments.
        call: the number of that call; 0: none.
    """
    from fullfield._ledger.records import Journal
    from fullfield.cli.main import main as fullfield

    left = itertools.count(call, -1)
    next(left)

    def ending(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    Path.replace = ending(Path.replace)  # type: ignore[method-assign]
    Journal._append = ending(Journal._append)  # type: ignore[method-assign]
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        raise SystemExit(fullfield(list(command)))


def play(draw: random.Random, folder: Path) -> History:
    """Play one history in ``folder`` and check its end."""
    folder.mkdir(parents=True)
    history = History(draw, folder)
    events: list[Callable[[], object]] = [
        history.make, history.replace_a_plate, history.replace_a_plate, history.replace_a_mask, history.lengthen,
        history.damage_a_plate, history.change_settings,
        history.chunks, history.kill, history.lose_a_frame, history.pictures,
        lambda: history.make(*history._some_frames()), lambda: history.make(*history._some_frames(), "--overwrite"),
    ]  # fmt: skip
    for _ in range(draw.randint(3, 9)):
        draw.choice(events)()
    history.check()
    return history


def main() -> None:
    """Play histories as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true", help="report every history that fails, not the first")
    options = parser.parse_args()
    start, failed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as place:
        for number in range(options.count):
            folder = Path(place) / f"{number}"
            try:
                play(random.Random(f"{options.seed} {number}"), folder)
            except AssertionError as error:
                failed += 1
                print(f"history {number} of seed {options.seed}: {error}", flush=True)
                if not options.keep_going:
                    raise SystemExit(1) from None
            shutil.rmtree(folder, ignore_errors=True)
            if (number + 1) % 10 == 0:
                print(f"{number + 1} histories, {failed} failed, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{KILLS[True]} runs were killed, {KILLS[False]} ended before")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
