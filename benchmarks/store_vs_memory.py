"""From a .npy file to a sketch in a folder, by the command line, beside sketching the same array in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from harness import in_a_process_of_its_own, table
from numpy.typing import NDArray

import sketchmix as sm

Array = NDArray[Any]

N, P, Q = 1_000_000, 1024, 41
ROWS_IN_MEMORY = 500_000
REPEATS = 9


def write(path: Path) -> None:
    """N rows, made of some that are written again and again, as np.save would write them."""
    block = np.random.default_rng(0).standard_normal((20_000, P), dtype=np.float32)
    described = np.lib.format.header_data_from_array_1_0(block) | {"shape": (N, P)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, described)
        for _ in range(N // len(block)):
            file.write(block.data)
        file.flush()
        os.fsync(file.fileno())  # or the disk would still be busy with it


def expected() -> sm.Sketch:
    """The first rows, sketched."""
    block = np.random.default_rng(0).standard_normal((20_000, P), dtype=np.float32)
    return sm.Sketcher(Q, random_state=0).fit(block).transform(block[:1000])


def in_memory(sketcher: sm.Sketcher, X: Array) -> float:
    """Rows a second, of an array that is there."""
    started = time.perf_counter()
    sketcher.transform(X)
    return len(X) / (time.perf_counter() - started)


def by_the_command_line(file: Path, out: Path) -> tuple[float, float]:
    """Rows a second, as the command says, and of the whole process with its start."""
    program = Path(sys.executable).with_name("sketchmix")
    command = [program, "sketch", file, out, "--sketch-size", Q, "--seed", 0, "--json"]
    started = time.perf_counter()
    said = json.loads(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout)
    seconds = time.perf_counter() - started
    assert said["rows"] == N
    assert sm.Sketch.open(out)[:1000].values.tobytes() == expected().values.tobytes()
    shutil.rmtree(out)  # or its cache would take fresh memory every time, which is slow on a virtual machine
    return said["rows_per_second"], N / seconds


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        in_a_process_of_its_own(write, folder / "X.npy")
        X = np.array(np.load(folder / "X.npy", mmap_mode="r")[:ROWS_IN_MEMORY])
        sketcher = sm.Sketcher(Q, random_state=0).fit(X)
        runs = [
            (in_memory(sketcher, X), *by_the_command_line(folder / "X.npy", folder / "sketch"))
            for _ in range(REPEATS + 1)
        ][1:]
    memory, command, process = (float(rate) for rate in np.median(runs, axis=0))
    table(
        f"sketching {N:,} x {P} rows of a .npy file into a folder, Q={Q}: medians of {REPEATS}",
        ["", "rows/s", "of in memory"],
        [
            ["array in memory, to memory", memory, 1.0],
            ["command line, file to folder", command, command / memory],
            ["the same with the start of Python", process, process / memory],
        ],
    )
    print("required: at least 0.6; in each run", " ".join(f"{run[1] / run[0]:.2f}" for run in runs))


if __name__ == "__main__":
    main()
