"""An engine without ComfyUI for tests of jobs: what a piece does is written in its value.

`--engine` of `run.py batch` takes this file. The workflow is one node, `Echo`, with a text. Its
words: `fail` raises, `die` ends the process, `once FILE` ends it the first time, `hang FILE` waits
for ever the first time, `full` finds the disk full, `sleep 3` waits, `until FILE 7` waits for a
file. Then every text but `empty` is written to a file. With a base directory, every try of a piece
is noted there in `tries.txt`.
"""

import errno
import os
import time
from pathlib import Path

PROMPT = {"1": {"class_type": "Echo", "inputs": {"text": "", "model": "base.safetensors"}}}


class Engine:
    def __init__(self, settings):
        self.roots = [settings.inputs or Path("/nowhere")]
        self._base = settings.base

    def prompt(self, saved):
        return {"1": saved["1"]}

    def kinds(self, prompt):
        return {"Echo": {"text": "STRING", "model": "COMBO", "clip": "CLIP"}}

    def files(self, prompt):
        digests = self._base / "digest.txt" if self._base else None
        noted = digests.read_text() if digests and digests.is_file() else "0"
        return {"base.safetensors": os.environ.get("STAND_IN_DIGEST", noted)}

    def run(self, prompt, key, output):
        text = prompt["1"]["inputs"]["text"]
        word, _, rest = text.partition(" ")
        if self._base:
            with (self._base / "tries.txt").open("a") as file:
                file.write(f"{text}\n")
        if word == "fail":
            raise ValueError(f"It fails: {text}")
        if word == "die":
            os._exit(9)
        if word == "once" and not Path(rest).exists():
            Path(rest).touch()
            os._exit(9)
        if word == "hang" and not Path(rest).exists():
            Path(rest).touch()
            time.sleep(1e6)
        if word == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output / "text.txt"))
        if word == "sleep":
            time.sleep(float(rest))
        while word == "until" and not Path(rest.partition(" ")[0]).exists():
            time.sleep(0.05)
        if word != "empty":
            (output / "text.txt").write_text(text)
        return {"1": [text]}


def results(out: Path) -> dict[str, bytes]:
    """The bytes of all results by their path."""
    pieces = out / "pieces"
    return {
        path.relative_to(pieces).as_posix(): path.read_bytes()
        for path in pieces.rglob("*")
        if path.is_file()
    }
