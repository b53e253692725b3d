"""What the boot script does to a process before ComfyUI starts in it."""

from __future__ import annotations

import subprocess
import sys

# Fails on import as torchvision does when its C++ library does not fit the installed torch.
_UNFIT_TORCHVISION = """
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
"""


def _run(root, folder, code: str) -> subprocess.CompletedProcess:
    """Run code in a new process that sees the packages in a folder first; `boot` is the boot
    script.
    """
    script = root / "tools" / "launcher" / "boot.py"
    start = (
        f"import sys, runpy; sys.path.insert(0, {str(folder)!r}); boot = "
        f"runpy.run_path({str(script)!r})"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{start}\n{code}"], capture_output=True, text=True
    )


def test_an_unfit_torchvision_is_cured(root, tmp_path):
    (tmp_path / "torchvision.py").write_text(_UNFIT_TORCHVISION)
    without = _run(root, tmp_path, "import torchvision")
    assert "operator torchvision::nms does not exist" in without.stderr
    cured = _run(
        root,
        tmp_path,
        "boot['cure_torchvision'](); import torchvision, torch; print(torch.ops.torchvision.nms)",
    )
    assert "torchvision.nms" in cured.stdout, cured.stderr


def test_a_fitting_torchvision_is_left_alone(root, tmp_path):
    (tmp_path / "torchvision.py").write_text("")
    ran = _run(
        root,
        tmp_path,
        "boot['cure_torchvision'](); import torch; print(hasattr(torch.ops.torchvision, 'nms'))",
    )
    assert ran.stdout.strip() == "False", ran.stderr


def test_the_compiler_is_imported_when_it_is_used(root, tmp_path):
    """torchvision asks it one question, for which it would take half of ComfyUI's start."""
    code = (
        "boot['cure_torchvision'](); import torch\n"
        "print('torch._dynamo' in sys.modules)\n"
        "from torchvision.ops.roi_align import is_compile_supported\n"
        "print(is_compile_supported('cpu'), 'torch._dynamo' in sys.modules)\n"
        "print(torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(1)).item())\n"
    )
    ran = _run(root, tmp_path, code)
    assert ran.stdout.split() == ["False", "True", "True", "2.0"], ran.stderr


def test_a_torchvision_that_takes_more_of_the_compiler_gets_it(root, tmp_path):
    for number, line in enumerate(
        (
            "from torch._dynamo import config",
            "import torch._dynamo.config",
            "from torch._dynamo import disable\n@disable\ndef call(): pass",
            "import torch\n@torch.compiler.disable\ndef call(): pass",
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "torchvision.py").write_text(line)
        code = "boot['cure_torchvision'](); import torchvision, torch; print(torch._dynamo.config)"
        ran = _run(root, folder, code)
        assert "torch._dynamo.config" in ran.stdout, ran.stderr


def test_another_failure_of_torchvision_is_not_hidden(root, tmp_path):
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('something else')")
    assert "something else" in _run(root, tmp_path, "boot['cure_torchvision']()").stderr


def test_a_present_torchaudio_is_left_alone(root, tmp_path):
    (tmp_path / "torchaudio.py").write_text("real = True")
    ran = _run(
        root, tmp_path, "boot['stub_torchaudio'](); import torchaudio; print(torchaudio.real)"
    )
    assert ran.stdout.strip() == "True", ran.stderr


def test_a_missing_torchaudio_has_a_stand_in(root, tmp_path):
    code = (
        "import importlib.util as util; real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torchaudio' else real(name, *rest)\n"
        "boot['stub_torchaudio'](); import torchaudio\n"
        "from torchaudio.transforms import MelScale\n"
        "try: MelScale(16)\n"
        "except RuntimeError as error: print(error)\n"
    )
    ran = _run(root, tmp_path, code)
    assert "Audio needs torchaudio, which is not installed" in ran.stdout, ran.stderr
