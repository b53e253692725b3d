"""Routes under /glassbox: data for the pack's widgets before anything has run, and settings of the
server.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import kernels

#: What a question is answered with: plain data from the address' parameters, or ValueError with a
#: sentence.
Answer = Callable[..., object]


def serve(answers: dict[str, Answer], post: bool = False) -> None:
    """Serve each function at /glassbox/<name>; its arguments are the address' parameters.

    By GET, or by ``post`` where it changes something. Answers JSON, or status 400 with {"error": "a
    sentence"}. Without ComfyUI's server nothing is served.
    """
    server = running_server()
    if server is None:
        return
    known = {route.path for route in server.routes}
    for name, answer in answers.items():
        if f"/glassbox/{name}" not in known:
            (server.routes.post if post else server.routes.get)(f"/glassbox/{name}")(
                _handler(answer)
            )


def running_server() -> Any:
    """ComfyUI's server, or None in a program that runs nodes without one."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def _handler(answer: Answer) -> Callable:
    from aiohttp import web

    async def handle(request: Any) -> web.Response:
        try:
            arguments = inspect.signature(answer).bind(**request.query).arguments
        except TypeError:
            wanted = ", ".join(inspect.signature(answer).parameters)
            return web.json_response(
                {"error": f"Pass these parameters, each once: {wanted}."}, status=400
            )
        try:
            # In a thread of its own: reading a large file must not hold up the server.
            return web.json_response(await asyncio.to_thread(answer, **arguments))
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)

    return handle


#: Leave it to the environment variable.
ENVIRONMENT = "environment"


def choose(backend: str) -> dict[str, str]:
    """Force "eager" or "triton", or "auto", in this process, or ENVIRONMENT; raises ValueError for
    another name.
    """
    kernels.use(None if backend == ENVIRONMENT else backend)
    return {"backend": backend}


_WEB = Path(__file__).resolve().parents[2] / "web"


def revalidate_modules() -> None:
    """Have browsers ask for .mjs and .json of the pack again, as ComfyUI does for .js: no update
    mixes old and new.
    """
    app = getattr(running_server(), "app", None)
    if app is not None and _no_cache not in app.on_response_prepare:
        app.on_response_prepare.append(_no_cache)


async def _no_cache(request: Any, response: Any) -> None:
    resource = request.match_info.route.resource
    folder = None if resource is None else resource.get_info().get("directory")
    if (
        folder is not None
        and request.path.endswith((".mjs", ".json"))
        and Path(folder).resolve() == _WEB
    ):
        response.headers.setdefault("Cache-Control", "no-cache")
