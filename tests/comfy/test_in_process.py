"""The ComfyUI that tests share in their own process."""

from pathlib import Path


def test_comfyui_has_its_own_nodes(app, comfyui):
    import nodes

    assert Path(nodes.__file__).parent == comfyui.resolve()
    assert not hasattr(app.module("nodes"), "NODE_CLASS_MAPPINGS")


def test_the_pack_is_loaded_and_a_node_runs(app):
    assert any(name.startswith("GBX_") for name in app.classes)
    (latent,) = app.run("EmptyLatentImage", width=128, height=64, batch_size=2)
    assert latent["samples"].shape == (2, 4, 8, 16)


def test_nodes_run_on_the_cpu_in_inference_mode(app):
    from comfy import model_management

    assert model_management.get_torch_device().type == "cpu"
    (latent,) = app.run("EmptyLatentImage", width=64, height=64, batch_size=1)
    assert latent["samples"].is_inference()


def test_no_file_of_comfyuis_nodes_is_missing(app):
    """They need ComfyUI's `utils`, which shares its name with a module of its folder `comfy`."""
    assert "ImageCrop" in app.classes
