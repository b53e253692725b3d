"""A few dozen of the prompts of `run.py fuzz`, with a fixed seed, each followed to its end."""

import pytest
from robustness import fuzz, prompts

from tools.launcher import comfyui
from tools.launcher.api import Client
from tools.launcher.server import Server

_PROMPTS = 60  # `run.py fuzz` tries more
_SECONDS = (
    600.0  # for an answer, and for a prompt's end after an interrupt: for the busiest machine
)


@pytest.mark.slow
def test_every_prompt_ends_in_a_result_or_a_sentence(tmp_path, request):
    base = comfyui.prepare_base(tmp_path)
    fuzz.hostile_files(base)
    with Server(request.getfixturevalue("comfyui"), base, fuzz.ARGUMENTS, cpu=True) as server:
        client = Client(server.url, timeout=_SECONDS)
        generator = prompts.Generator(client.object_info(), seed=7)
        ends = [
            (number, *fuzz.follow(client, generator.make(number), stop=_SECONDS))
            for number in range(_PROMPTS)
        ]
    defects = [
        f"{number} {kind}: {message[:300]}"
        for number, kind, message in ends
        if kind in fuzz.DEFECTS
    ]
    assert defects == []
    assert fuzz.leftovers(base) == []
    assert {"done", "sentence", "refused"} <= {
        kind for _, kind, _ in ends
    }  # else nothing has been tried
