"""Make a Python process able to import ComfyUI, or, run as a script, start ComfyUI's server in it.

As a script: `python -P boot.py COMFYUI_FOLDER [arguments of ComfyUI's main.py]`. The server ends
when the standard input of the process is closed, so that it never outlives the launcher, however
that one ended.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

_STOP_SECONDS = 8.0
_keep_alive = []


def prepare(comfyui: Path, cpu: bool) -> None:
    """Let this process import ComfyUI's modules from the folder `comfyui`; `cpu` keeps it from
    looking for a GPU.
    """
    _make_importable(comfyui, cpu)
    importlib.import_module(
        "utils"
    )  # before ComfyUI's nodes put the folder in front that has another one
    if cpu:
        from comfy.cli_args import args

        args.cpu = True


def _make_importable(comfyui: Path, cpu: bool) -> None:
    sys.path.insert(0, str(comfyui))
    if cpu:  # with a GPU, torch must not be imported before ComfyUI has chosen its memory allocator
        cure_torchvision()
    stub_torchaudio()


def cure_torchvision() -> None:
    """Make `import torchvision` work beside a torch build that its C++ library does not fit.

    The library then stays unloaded, and torchvision fails because the operators it describes do not
    exist. Declaring their schemas is enough; calling one still raises. Where torchvision imports,
    nothing is changed.
    """
    try:
        with _without_compiler():
            _import_torchvision()
    except (AttributeError, ImportError):  # another torchvision takes more of the compiler
        _forget_torchvision()
        _import_torchvision()


def _import_torchvision() -> None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declare_torchvision_operators()


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Within this, `from torch._dynamo.utils import is_compile_supported` imports nothing else.

    torchvision asks that question in one operator, and for it would import PyTorch's compiler,
    which takes seconds of ComfyUI's start.
    """
    if "torch" not in sys.modules:
        import torch  # noqa: F401, before the stand-ins, so that it sees the compiler's own modules
    if "torch._dynamo" in sys.modules:
        yield
        return
    stand_ins = {name: types.ModuleType(name) for name in ("torch._dynamo", "torch._dynamo.utils")}
    stand_ins["torch._dynamo.utils"].is_compile_supported = _is_compile_supported
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


def _is_compile_supported(device_type: str) -> bool:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)


def _forget_torchvision() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_torchvision_operators() -> None:
    import torch

    _forget_torchvision()
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep_alive.append(library)
    import torchvision  # noqa: F401


def stub_torchaudio() -> None:
    """Stand in for a missing torchaudio, which older ComfyUI imports for its audio nodes; these
    raise when used.
    """
    if "torchaudio" in sys.modules or importlib.util.find_spec("torchaudio") is not None:
        return
    for name in ("torchaudio", "torchaudio.functional", "torchaudio.transforms"):
        module = types.ModuleType(name, "Stand-in: torchaudio is not installed.")
        module.__spec__ = importlib.machinery.ModuleSpec(
            name, loader=None, is_package=name == "torchaudio"
        )
        sys.modules[name] = module
    sys.modules["torchaudio"].functional = sys.modules["torchaudio.functional"]
    sys.modules["torchaudio"].transforms = sys.modules["torchaudio.transforms"]
    sys.modules["torchaudio.transforms"].MelScale = _MissingTransform


class _MissingTransform:
    def __init__(self, *args, **kwargs):
        raise RuntimeError("Audio needs torchaudio, which is not installed: pip install torchaudio")


def _stop_with_parent() -> None:
    """Interrupt this process when its standard input closes; end it the hard way if that takes too
    long.
    """
    while os.read(0, 4096):  # not sys.stdin: its lock would be held when the interpreter shuts down
        pass
    if os.name == "nt":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(_STOP_SECONDS)
    os._exit(1)


def main(argv: list[str]) -> None:
    """Start ComfyUI: the first argument is its folder, the rest go to its main.py."""
    comfyui = Path(argv[0]).resolve()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    _make_importable(comfyui, cpu="--cpu" in argv)
    script = str(comfyui / "main.py")
    sys.argv = [script, *argv[1:]]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
