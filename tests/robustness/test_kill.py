"""Long nodes ended by SIGKILL, in the middle and while they write: the next run gives the bytes of
a whole one.
"""

import functools
import os
import shutil
import signal
import traceback
from pathlib import Path

import members
import pytest
import torch
from safetensors.torch import save, save_file
from trainer_inputs import DEFAULTS

from tools.launcher import paths

pytestmark = [
    pytest.mark.slow,
    pytest.mark.endurance,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks"),
]

_LAYERS = {
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": (64, 64),
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_v": (128, 128),
}
_PROMPTS = "\n".join(
    f"portrait of {name}" for name in ("mirella thrum", "bandor pyke", "zorvex quill")
)
_SCAN = {
    "noise_samples": 2,
    "seed": 1,
    "timestep": "official_961",
    "width": 64,
    "height": 64,
    "prompts": _PROMPTS,
}


_AUTOENCODER = {
    "activation_id": "up-level1-repeat0-vit-out",
    "image_folder": "",
    "features": 16,
    "k": 2,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "seed": 3,
    "steps": 1,
    "cfg": 3.0,
}


class Jobs:
    """Small runs of each long node under a name of its files; each returns what it has made as
    bytes.
    """

    def __init__(self, app, folder):
        import folder_paths

        self._comfy, self._folder, self._output = (
            app,
            folder,
            Path(folder_paths.get_output_directory()),
        )
        self._model, self._clip, self._vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        members.write_folder(folder / "loras", 8, rank=2)
        wide = folder / "wide"
        wide.mkdir()
        for seed in range(5):
            save_file(
                members.kohya(members.factors(seed, layers=_LAYERS)), wide / f"{seed}.safetensors"
            )
        self.space = self._build(wide, folder / "wide.safetensors")

    def _build(self, sources, target):
        builder, found = (
            self._comfy.module("nodes.weights.space_builder"),
            self._comfy.module("nodes.weights.member_sources"),
        )
        return builder.build(found.file_sources(sources), builder.BuildSettings(), target)

    def build(self, name):
        target = self._folder / name / "s.safetensors"
        self._build(self._folder / "loras", target)
        assert not list(target.parent.glob("*.building"))
        return target.read_bytes()

    def train(self, name):
        choices = DEFAULTS | {
            "pairing": "pool",
            "pool_size": 4,
            "grad_accumulation_steps": 2,
            "held_out": 1,
            "sample_interval": 0,
            "checkpoint_name": f"training/{name}",
        }
        latents = [
            {"samples": torch.randn(1, 24, 8, 8, generator=members.generator(seed))}
            for seed in range(3)
        ]
        given = {"model": [self._model], "latents": latents, "positive": self._captions(3)}
        given |= {key: [value] for key, value in choices.items()}
        outputs = self._comfy.run("GBX_TrainLoraImmiscible", **given)
        return save(outputs[1]) + repr(outputs[2]).encode()

    def invert(self, name):
        self._comfy.module("nodes.weights.inversion_comfy")._CHECKPOINT_INTERVAL = 1
        latent = {"samples": torch.randn(1, 24, 8, 8, generator=members.generator(0))}
        choices = {
            "steps": 4,
            "learning_rate": 0.1,
            "weight_decay": 1e-10,
            "components": 100,
            "seed": 4,
            "precision": "fp32",
            "gradient_checkpointing": False,
            "preview_interval": 1,
            "checkpoint_name": f"inversion/{name}",
        }
        outputs = self._comfy.run(
            "GBX_W2WInvert",
            model=self._model,
            space=self.space,
            latent=latent,
            positive=self._captions(1)[0],
            **choices,
        )
        return save({"coefficients": outputs[0].coefficients})

    def learn_space(self, name):
        import folder_paths

        source = paths.ROOT / "assets" / "avatars-v2-people"
        folder = Path(folder_paths.get_input_directory()) / "killed people"
        for person in ("person_00", "person_01"):
            (folder / person).mkdir(parents=True, exist_ok=True)
            shutil.copy(source / person / "0.webp", folder / person)
        space = self._comfy.run(
            "GBX_W2WTrainSpace",
            model=self._model,
            clip=self._clip,
            vae=self._vae,
            folder="killed people",
            prompt="portrait",
            rank=1,
            components=2,
            steps=4,
            learning_rate=0.01,
            members_per_step=2,
            images_per_member=1,
            batch_size=2,
            resolution=64,
            seed=3,
            layers="attn2.to_k",
            end_percent=0.85,
            caption_dropout=0.5,
            precision="fp32",
            gradient_checkpointing=False,
            preview_interval=2,
            checkpoint_name=f"spaces/{name}",
            checkpoint_interval=1,
        )[0]
        return save({"basis": space.stored_basis.clone(), "codes": space.coefficients.clone()})

    def autoencoder(self, name):
        (latent,) = self._comfy.run("EmptyLatentImage", width=64, height=64, batch_size=1)
        made = self._comfy.run(
            "GBX_TrainSparseAutoencoder",
            model=self._model,
            clip=self._clip,
            latent=latent,
            prompts=_PROMPTS,
            name=f"killed/{name}",
            training_steps=6,
            **_AUTOENCODER,
        )[0]
        return save({"encoder": made.encoder.clone(), "decoder": made.decoder.clone()})

    def scores(self, name):
        outputs = self._comfy.run(
            "GBX_MemorizationScore",
            model=self._model,
            clip=self._clip,
            scan_file=f"scores/{name}",
            prompts_file="",
            threshold=0.0,
            text_norm=False,
            filename_prefix="",
            **_SCAN,
        )
        return outputs[4].encode()

    def statistics(self, name):
        outputs = self._comfy.run(
            "GBX_NeuronStatistics",
            model=self._model,
            clip=self._clip,
            prompts=_PROMPTS,
            prompts_file="",
            layers="output_blocks.5.1",
            filename_prefix=f"statistics_{name}/s",
        )
        return (self._output / outputs[2]).read_bytes()

    def searches(self, name):
        statistics = self._comfy.run(
            "GBX_NeuronStatistics",
            model=self._model,
            clip=self._clip,
            prompts=_PROMPTS,
            prompts_file="",
            layers="output_blocks.5.1",
            filename_prefix="",
        )[0]
        outputs = self._comfy.run(
            "GBX_NemoLocalize",
            model=self._model,
            clip=self._clip,
            statistics=statistics,
            layers="output_blocks.5.1",
            scan_file=f"searches/{name}",
            threshold=0.2,
            target_score=0.97,
            criterion="same_seed",
            theta_start=5.0,
            time_budget=0.0,
            **_SCAN,
        )
        return repr(outputs[0].scales).encode() + outputs[2].encode()

    def _captions(self, count):
        return [
            self._comfy.run("CLIPTextEncode", clip=self._clip, text=f"portrait {n}")[0]
            for n in range(count)
        ]


@pytest.fixture(scope="module")
def jobs(app, tmp_path_factory):
    return Jobs(app, tmp_path_factory.mktemp("jobs"))


def _run(work, target, owner=None, attribute="", call=0):
    """Do the work in a child and write its bytes to `target`; the child kills itself at that call
    of a function.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        torch.set_num_threads(1)
        if owner is not None:
            real, calls = getattr(owner, attribute), []

            def dying(*args, **kwargs):
                calls.append(None)
                if len(calls) == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            setattr(owner, attribute, dying)
        target.write_bytes(work())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# Where each is killed: a module and function of the pack or of Python, and at which call of it.
_SESSION, _FIRST = ("nodes.host.training.trainer:Session", "denoised"), "at_first_step"
_POINTS = {
    "build": [
        ("nodes.weights.space_builder:MemberStore", "add", 3),
        ("os", "fsync", 1),
        ("os", "replace", 1),
    ],
    "train": [(*_SESSION, 2), (*_SESSION, 7), ("os", "fsync", 3), ("os", "replace", 2)],
    "invert": [(*_SESSION, 1), (*_SESSION, 4), ("os", "replace", 2)],
    "learn_space": [(*_SESSION, 2), (*_SESSION, 4), ("os", "replace", 2), ("os", "fsync", 2)],
    "autoencoder": [
        ("nodes.activations.autoencoder_training:Trainer", "step", 3),
        ("os", "replace", 1),
        ("os", "fsync", 2),
    ],
    "scores": [
        ("nodes.neurons.detectors_comfy", _FIRST, 2),
        ("os", "fsync", 4),
        ("os", "replace", 1),
    ],
    "statistics": [("os", "fsync", 1), ("os", "replace", 1)],
    "searches": [
        ("nodes.neurons.prompt_search_comfy", _FIRST, 3),
        ("os", "replace", 3),
        ("os", "fsync", 5),
    ],
}


@pytest.mark.parametrize("kind", _POINTS)
def test_a_run_after_a_kill_gives_the_bytes_of_a_whole_one(app, jobs, tmp_path, kind):
    work = getattr(jobs, kind)
    assert _run(lambda: work("whole"), tmp_path / "whole") == 0
    for number, (place, attribute, call) in enumerate(_POINTS[kind]):
        module, _, name = place.partition(":")
        owner = os if module == "os" else app.module(module)
        owner = getattr(owner, name) if name else owner
        result = tmp_path / str(number)
        publish = functools.partial(work, f"killed{number}")
        died = _run(publish, result, owner, attribute, call)
        assert died == -signal.SIGKILL, (place, attribute)
        assert _run(publish, result) == 0
        assert result.read_bytes() == (tmp_path / "whole").read_bytes(), (place, attribute, call)
