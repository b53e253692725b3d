"""Demo workflows at tiny settings on servers with other settings of cache and memory: the same
results.
"""

import pytest
from robustness import soak
from tqdm import tqdm

from tools.launcher import comfyui as installation
from tools.launcher.api import Client
from tools.launcher.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.endurance]

#: Of each family one that is quick.
_WORKFLOWS = (
    "demo_world_text_to_image",
    "demo_weights_sample",
    "demo_activations_tap_and_pca",
    "demo_noise_composition",
    "demo_neurons_known_neurons",
)
#: --lowvram and --novram exclude --cpu: see test_hosts for partial loads.
_SETTINGS = ((), ("--cache-none",), ("--cache-lru", "3", "--disable-smart-memory"))


def test_results_do_not_depend_on_settings_of_cache_and_memory(comfyui, tmp_path_factory):
    traces = soak.Traces()
    for arguments in _SETTINGS:
        base = installation.prepare_base(tmp_path_factory.mktemp("server"))
        with Server(comfyui, base, arguments, cpu=True) as server:
            client = Client(server.url)
            workflows = soak.tiny_workflows(client.object_info())
            soak.run_round(
                client,
                {name: workflows[name] for name in _WORKFLOWS},
                0,
                traces,
                tqdm(disable=True),
            )
    assert traces.compared == len(_WORKFLOWS) * (len(_SETTINGS) - 1)
    assert traces.failed == [] and traces.different == []
