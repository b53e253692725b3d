"""Edit by Words stopped in the middle of a step, and with each side of CFG in a call of its own."""

from __future__ import annotations

import threading

import pytest
import reduced
import torch
from model_changers import PROMPT, edit_by_words
from tapping import World, hooks_left

EDIT = "brown hair -> red hair: 1.5"
#: For each network where the MODEL comes from, and a module in its middle.
NETWORKS = {
    "demo": "output_blocks.4.1",
    "sd3": "joint_blocks.0",
    "flux": "single_blocks.0",
}
_SIDE = "glassbox-side"


class Words(World):
    def __init__(self, app, name):
        loaded = (
            app.run("GBX_LoadDemoModel", weights="avatars-v2")
            if name == "demo"
            else reduced.checkpoint(name)
        )
        super().__init__(app, *loaded)
        (self.positive,) = app.run("CLIPTextEncode", clip=self.clip, text=PROMPT)
        self.network = self.model.model.diffusion_model
        self.middle = self.network.get_submodule(NETWORKS[name])
        self.name = name

    def samples(self, model):
        return self.sample(model, self.latent(2, 64, 64), steps=3)["samples"]


@pytest.fixture(scope="module", params=NETWORKS)
def words(app, request):
    return Words(app, request.param)


def _stop(words: Words, model, after: int, in_texts: bool) -> list[bool]:
    """Sample with a Stop once a module in the middle has been evaluated so often, in the call or in
    the texts beside it; returns for each evaluation whether it was of a text.
    """
    from comfy.model_management import InterruptProcessingException

    evaluated: list[bool] = []

    def hook(_module, _args, _output):
        of_text = threading.current_thread().name == _SIDE
        evaluated.append(of_text)
        if evaluated.count(in_texts) == after and of_text == in_texts:
            raise InterruptProcessingException

    handle = words.middle.register_forward_hook(hook)
    try:
        with pytest.raises(InterruptProcessingException):
            words.samples(model)
    finally:
        handle.remove()
    return evaluated


@pytest.mark.parametrize("in_texts", [False, True])
@pytest.mark.parametrize("edit", [EDIT, f"brown -> {'red ' * 100}: 1.5"], ids=["short", "long"])
def test_a_stop_in_a_step_leaves_nothing(words, in_texts, edit):
    """The MODEL has its weights, hooks and wrappers, no thread lives on, and the next runs of the
    plain MODEL and of the edit are bit-equal to those before.
    """
    if in_texts and words.name == "demo":
        pytest.skip("A U-Net's texts are read in the call itself.")
    edited = edit_by_words(words, words.model, edit)
    plain = words.samples(words.model)
    expected = words.samples(edited)
    assert not torch.equal(plain, expected)
    weights = {name: value.clone() for name, value in words.network.state_dict().items()}
    patches = dict(words.model.patches)
    threads = set(threading.enumerate())
    evaluated = _stop(words, edited, after=2, in_texts=in_texts)
    assert (True in evaluated) == (words.name != "demo"), "texts are evaluated on threads"
    assert set(threading.enumerate()) == threads
    assert hooks_left(words.model) == 0
    assert words.model.patches == patches
    for name, value in words.network.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert torch.equal(words.samples(words.model), plain)
    assert torch.equal(words.samples(edited), expected)
    assert set(threading.enumerate()) == threads


def test_both_sides_in_calls_of_their_own_give_the_same_edit(words, monkeypatch):
    edited = edit_by_words(words, words.model, EDIT)
    calls: list[int] = []

    def count(_network, args):
        calls.append(len(args[0]))

    plain = words.samples(words.model)
    handle = words.network.register_forward_pre_hook(count)
    try:
        joined = words.samples(edited)
        assert calls == [4] * 3, "two images of both sides in each of three steps"
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(words.model.model, "memory_required", lambda *_args, **_kwargs: 1e18)
            apart = words.samples(edited)
    finally:
        handle.remove()
    assert calls == [2] * 6
    assert (joined - plain).abs().max() > 0.01
    # Convolutions of other numbers of rows; without AVX-512 4e-5.
    assert (apart - joined).abs().max() < 1e-4 * joined.abs().max()
