"""A small server with ComfyUI's API. What a prompt does is the class_type of its node "1":

Sample makes an image after three steps of progress, Fail raises, Refuse is found invalid, Sleep
runs until it is interrupted, Die ends the server. Every prompt waits for its client to listen.
Started with --broken it ends at once.
"""

import asyncio
import io
import json
import os
import sys

from aiohttp import web
from PIL import Image

history = {}
sockets = {}
requested = set()
interrupted = asyncio.Event()


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


async def send(client, kind, **data):
    await sockets[client].send_str(json.dumps({"type": kind, "data": data}))


async def work(prompt_id, client, kind):
    while client not in sockets or prompt_id not in requested:
        await asyncio.sleep(0.01)
    await send(client, "executing", node="1", prompt_id=prompt_id)
    status, messages, outputs = "success", [], {}
    if kind == "Sample":
        for step in range(3):
            await send(client, "progress", node="1", value=step + 1, max=3, prompt_id=prompt_id)
        outputs = {
            "1": {
                "images": [{"filename": "a_00001_.png", "subfolder": "", "type": "output"}],
                "animated": [False],
            }
        }
    elif kind == "Fail":
        status = "error"
        details = {
            "node_id": "1",
            "node_type": "Fail",
            "exception_message": "The file is corrupt:\nget it again.",
        }
        messages = [["execution_start", {}], ["execution_error", details]]
    elif kind == "Die":
        os._exit(3)
    else:
        await interrupted.wait()
        status, messages = "error", [["execution_interrupted", {}]]
    history[prompt_id] = {
        "outputs": outputs,
        "status": {"status_str": status, "messages": messages},
    }
    await send(client, "executing", node=None, prompt_id=prompt_id)


async def post_prompt(request):
    body = await request.json()
    kind = body["prompt"]["1"]["class_type"]
    if kind == "Refuse":
        problem = {"message": "Value not in list", "details": "image: 'x'"}
        answer = {
            "error": {"message": "bad"},
            "node_errors": {"1": {"class_type": kind, "errors": [problem]}},
        }
        return web.json_response(answer, status=400)
    prompt_id = f"p{len(history)}"
    request.app["work"].append(asyncio.create_task(work(prompt_id, body["client_id"], kind)))
    return web.json_response({"prompt_id": prompt_id})


async def get_history(request):
    prompt_id = request.match_info["prompt_id"]
    requested.add(prompt_id)
    return web.json_response({prompt_id: history[prompt_id]} if prompt_id in history else {})


async def get_socket(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    sockets[request.query["clientId"]] = socket
    await socket.send_bytes(b"a preview")
    async for _ in socket:
        pass
    del sockets[request.query["clientId"]]
    return socket


async def get_view(request):
    image = io.BytesIO()
    Image.new("RGB", (64, 32), "red").save(image, "PNG")
    return web.Response(body=image.getvalue())


async def get_object_info(request):
    return web.json_response({"Sample": {}})


async def get_stats(request):
    system = {"comfyui_version": "0.3.75", "pytorch_version": "2.13.0", "ram_total": 16e9}
    card = {"name": "cuda:0 Card", "type": "cuda", "vram_total": 8e9, "vram_free": 6e9}
    return web.json_response({"system": system, "devices": [card]})


async def post_interrupt(request):
    interrupted.set()
    return web.Response()


def main():
    if "--broken" in sys.argv:
        sys.exit("ValueError: nothing works today")
    app = web.Application()
    app["work"] = []
    app.router.add_post("/prompt", post_prompt)
    app.router.add_post("/interrupt", post_interrupt)
    app.router.add_get("/history/{prompt_id}", get_history)
    app.router.add_get("/ws", get_socket)
    app.router.add_get("/view", get_view)
    app.router.add_get("/object_info", get_object_info)
    app.router.add_get("/system_stats", get_stats)
    web.run_app(app, host=option("--listen"), port=int(option("--port")), shutdown_timeout=0.2)
    print("Stopped cleanly", flush=True)


if __name__ == "__main__":
    main()
