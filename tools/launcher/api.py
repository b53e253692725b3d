"""ComfyUI's own HTTP and WebSocket API, as a client that queues prompts and fetches what they
make.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .errors import LaunchError

_POLL = 5.0  # seconds of silence on the WebSocket after which the history is requested


@dataclass(frozen=True)
class Progress:
    """Where a running prompt is: the node at work, its step and its number of steps (0 of 0 until
    known).
    """

    node: str
    value: float = 0
    maximum: float = 0


@dataclass(frozen=True)
class OutputFile:
    """A file that a prompt has made, as ComfyUI names it."""

    node: str
    filename: str
    subfolder: str
    type: str


class PromptError(LaunchError):
    """ComfyUI refused a prompt or failed while running it."""


class ConnectionLostError(LaunchError):
    """ComfyUI does not answer any more."""


class Client:
    """Talks to the ComfyUI server at `url` (such as http://127.0.0.1:8188); `timeout`: seconds for
    one answer.
    """

    def __init__(self, url: str, timeout: float = 60.0):
        self.url, self._timeout = url.rstrip("/"), timeout
        self._listeners: dict[str, str] = {}

    def object_info(self) -> dict:
        """Every node class of the server with its inputs and outputs."""
        return json.loads(self._request("/object_info"))

    def system_stats(self) -> dict:
        """Versions, memory and devices of the server."""
        return json.loads(self._request("/system_stats"))

    def queue(self, prompt: dict, saved: dict | None = None) -> str:
        """Queue a prompt in API format and return its id; raises PromptError when ComfyUI finds it
        invalid.

        `saved`: its workflow as the canvas saves it, to be saved in the images as a run on the
        canvas does.
        """
        # An id of its own for each prompt: ComfyUI confuses an old connection with a new one of the
        # same id.
        listener = uuid.uuid4().hex
        more = {"extra_data": {"extra_pnginfo": {"workflow": saved}}} if saved else {}
        try:
            answer = self._request("/prompt", {"prompt": prompt, "client_id": listener, **more})
            prompt_id = json.loads(answer)["prompt_id"]
        except urllib.error.HTTPError as error:
            raise PromptError(refusal(error.read())) from error
        self._listeners[prompt_id] = listener
        return prompt_id

    def wait(self, prompt_id: str, on_progress: Callable[[Progress], None] | None = None) -> dict:
        """Wait until a prompt that this client queued is done; its history entry, or PromptError
        when it failed.

        `on_progress` gets the last progress again every few seconds in which ComfyUI says nothing.
        """
        entry = asyncio.run(self._follow(prompt_id, on_progress or (lambda progress: None)))
        trouble = failure(entry)
        if trouble:
            raise PromptError(trouble)
        return entry

    def interrupt(self) -> None:
        """Stop the running prompt before its next step."""
        self._request("/interrupt", {})

    def history(self, prompt_id: str) -> dict | None:
        """The history entry of a prompt, or None while it is not done."""
        return json.loads(self._request(f"/history/{prompt_id}")).get(prompt_id)

    def forget(self, prompt_id: str) -> None:
        """Remove a prompt from the server's history."""
        self._request("/history", {"delete": [prompt_id]})

    def download(self, file: OutputFile) -> bytes:
        """The content of an output file."""
        query = {"filename": file.filename, "subfolder": file.subfolder, "type": file.type}
        return self._request(f"/view?{urllib.parse.urlencode(query)}")

    async def _follow(self, prompt_id: str, on_progress: Callable[[Progress], None]) -> dict:
        import aiohttp  # here, because the launcher is imported before its environment exists

        address = f"{self.url.replace('http', 'ws', 1)}/ws?clientId={self._listeners[prompt_id]}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(
                    address, timeout=aiohttp.ClientWSTimeout(ws_close=2), max_msg_size=0
                ) as socket,
            ):
                latest = None
                while (entry := self.history(prompt_id)) is None:
                    if latest is not None:
                        on_progress(latest)
                    latest = await _listen(socket, prompt_id, on_progress) or latest
                return entry
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLostError(
                f"The connection to ComfyUI at {self.url} broke off ({error}): see its log."
            ) from error

    def _request(self, path: str, body: dict | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return answer.read()
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(
                f"ComfyUI at {self.url} does not answer ({error}): see its log."
            ) from error


async def _listen(
    socket, prompt_id: str, on_progress: Callable[[Progress], None]
) -> Progress | None:
    """Report progress until the prompt seems to be done, the socket closes, or nothing comes for a
    while.

    Returns the last progress that was reported.
    """
    import aiohttp

    latest = None
    while True:
        try:
            message = await socket.receive(timeout=_POLL)
        except TimeoutError:
            return latest
        if message.type in (
            aiohttp.WSMsgType.CLOSE,
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.ERROR,
        ):
            raise aiohttp.ClientConnectionError("the server closed the WebSocket")
        if message.type != aiohttp.WSMsgType.TEXT:
            continue  # a preview image
        event = json.loads(message.data)
        data = event.get("data") or {}
        if data.get("prompt_id") != prompt_id:
            continue
        if event["type"] == "executing" and data.get("node") is None:
            return latest
        if event["type"] == "executing":
            latest = Progress(data["node"])
        elif event["type"] == "progress":
            latest = Progress(data["node"], data["value"], data["max"])
        else:
            continue
        on_progress(latest)


def output_files(entry: dict) -> Iterator[OutputFile]:
    """Every file named in a history entry, in the order of the nodes' ids."""
    for node, outputs in sorted(
        entry.get("outputs", {}).items(), key=lambda item: (len(item[0]), item[0])
    ):
        for listed in outputs.values():
            for item in listed if isinstance(listed, list | tuple) else ():
                if isinstance(item, dict) and "filename" in item:
                    yield OutputFile(
                        node,
                        item["filename"],
                        item.get("subfolder", ""),
                        item.get("type", "output"),
                    )


def failure(entry: dict) -> str | None:
    """What went wrong in a history entry, as a sentence, or None."""
    status = entry.get("status") or {}
    if status.get("status_str") != "error":
        return None
    for kind, data in status.get("messages", ()):
        if kind == "execution_error":
            return (
                f"{data['node_type']} (node {data['node_id']}): "
                f"{' '.join(data['exception_message'].split())}"
            )
        if kind == "execution_interrupted":
            return "The run was interrupted."
    return "ComfyUI reports a failure without a reason: see its log."


def refusal(body: bytes) -> str:
    """Why ComfyUI refused a prompt, from the JSON that it answers."""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"ComfyUI refused the prompt: {body[:200].decode(errors='replace')}"
    reasons = []
    for node, details in (answer.get("node_errors") or {}).items():
        for problem in details.get("errors", ()):
            reasons.append(
                f"{details.get('class_type')} (node {node}): {problem['message']}: "
                f"{problem['details']}"
            )
    error = answer.get("error")
    general = error.get("message", "") if isinstance(error, dict) else str(error)
    return f"ComfyUI refused the prompt: {'; '.join(reasons) or general}"
