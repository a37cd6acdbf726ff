"""The HTTP server: the addresses of an Inference Endpoint, and the OpenAPI page."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from reluformers.files import read_json
from reluformers.modeling.endpoint import BATCH_SIZE
from reluformers.saved_code.registry import HANDLERS
from reluformers.saved_models import EXPORT_RECORD

from .batching import Batcher

logger = logging.getLogger(__name__)

MAX_REQUESTS = 64  # So many may be read, wait or be computed; more get status 503.
MAX_BODY_BYTES = 16 * 2**20  # The handler's largest image takes so much in base64.
BODY_SECONDS = 30  # A body must arrive in this time.
HEADER_SECONDS = 10  # A header must arrive in this time, or at most in twice as long.
MAX_CONNECTIONS = 128  # Each connection is an open file, so more are not taken.
DRAIN_SECONDS = 60  # After SIGTERM, accepted requests have this time.


def load_handler(folder: str | Path, **options: Any) -> Any:
    """Open a saved folder, or an export, to answer requests as its Inference Endpoint does; its code is executed.

    Args:
        folder: that `save_pretrained` of a model of this library, or `reluformers export`, has written.
        options: of an export's handler, such as `precision`.
    """
    if Path(folder, EXPORT_RECORD).is_file():
        from reluformers.export.endpoint import EndpointHandler  # Only exports need ONNX Runtime.

        return EndpointHandler(str(folder), **options)
    openers = read_json(Path(folder, "config.json")).get("auto_map", {})
    for auto_class, module in HANDLERS.items():
        if auto_class in openers:
            return import_module(f"reluformers.modeling.{module}").EndpointHandler(str(folder), **options)
    raise ValueError(f"{folder}: is no model for translation or image classification that reluformers has saved")


def build_server(handler: Any, title: str) -> FastAPI:
    """Build the server of one model.

    `POST /` and `POST /predict` take the body that an Inference Endpoint takes, `GET /` and `GET /health` say that the
    model is loaded, `/docs` is the OpenAPI page. Errors are `{"error": one line}`: 400 for what the handler refuses,
    408, 413 and 415 for a body that is slow, too large or of another kind, 500 where the model failed, and 503 while
    `MAX_REQUESTS` are in the house.

    Args:
        handler: as `load_handler` gives it.
        title: of the OpenAPI page.
    """
    batcher = Batcher(handler, BATCH_SIZE)
    requests = set()

    @contextlib.asynccontextmanager
    async def computing(server: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    body = {"requestBody": describe_body(handler)}
    server = FastAPI(title=title, description=f"A model for {handler.task.replace('-', ' ')}.", lifespan=computing)

    @server.get("/health", summary="Say that the model is loaded")
    @server.get("/", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @server.post("/predict", summary="Answer one request", openapi_extra=body)
    @server.post("/", include_in_schema=False)
    async def predict(request: Request) -> JSONResponse:
        if len(requests) >= MAX_REQUESTS:
            raise HTTPException(503, f"{MAX_REQUESTS} requests are waiting: ask again later", {"Retry-After": "1"})
        requests.add(request)
        try:
            data = await read_request(request, handler.task)
            answer = await batcher.answer(data, request.is_disconnected)
        except ClientDisconnect:
            return JSONResponse(None)  # Nobody reads it.
        except (ValueError, RecursionError) as error:  # Endless brackets are a RecursionError.
            return _fault(400, error)
        except RuntimeError as error:
            return _fault(500, error)
        finally:
            requests.remove(request)
        try:
            return JSONResponse(answer)
        except ValueError as error:  # NaN is no JSON.
            return _fault(500, f"the model's answer is no JSON: {error}")

    @server.exception_handler(HTTPException)
    async def answer_fault(request: Request, error: HTTPException) -> JSONResponse:
        return _fault(error.status_code, error.detail, error.headers)

    return server


def _fault(status: int, what: object, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": str(what)}, status, headers)


async def read_request(request: Request, task: str) -> Any:
    """Read the body of a request as the handler takes it: JSON, or for image classification an image file.

    Raises:
        HTTPException: it is slow, too large or of another kind.
        ValueError: it is no JSON.
    """
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    is_file = task == "image-classification" and kind.startswith("image/")
    if kind != "application/json" and not is_file:  # Pages of other sites could send text/plain without asking.
        kinds = "application/json or image/…" if task == "image-classification" else "application/json"
        raise HTTPException(415, f"Content-Type must be {kinds}, got {kind!r:.50}")
    body = bytearray()
    length = 0

    async def read() -> None:
        nonlocal length
        async for part in request.stream():
            length += len(part)
            if length <= MAX_BODY_BYTES:  # Read the rest too, as a client that still sends does not hear the answer.
                body.extend(part)

    try:
        await asyncio.wait_for(read(), BODY_SECONDS)
    except asyncio.TimeoutError as error:  # Up to Python 3.10 it is not the built-in TimeoutError.
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS} seconds") from error
    if length > MAX_BODY_BYTES:
        raise HTTPException(413, f"the body has {length} bytes, at most {MAX_BODY_BYTES} are allowed")
    if is_file:
        return {"inputs": bytes(body)}
    return json.loads(body)


def describe_body(handler: Any) -> dict[str, Any]:
    """The request body for the OpenAPI page, with the parameters that the handler takes and their bounds."""
    parameters = {name: {"description": f"{bounds}"} for name, bounds in handler.parameters.items()}
    one = {"type": "string"}
    properties = {
        "inputs": {"oneOf": [one, {"type": "array", "items": one}]},
        "parameters": {"type": "object", "properties": parameters, "additionalProperties": False},
    }
    content = {"application/json": {"schema": {"type": "object", "required": ["inputs"], "properties": properties}}}
    if handler.task == "translation":
        content["application/json"]["example"] = {"inputs": "A dog runs."}
    else:
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


def bind(host: str, port: int) -> socket.socket:
    """Reserve an address, before a model is loaded for it; an `OSError` where it is taken or none of this machine."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    if os.name != "nt":  # On Windows it would let two servers have the same address.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    bound.listen()  # Without it a second server could have the address too.
    return bound


class Connection(H11Protocol):
    """A connection that ends where there are too many, or no whole header comes; uvicorn bounds neither."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Count it, and look after it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        self.loop.call_later(HEADER_SECONDS, self._end_if_idle, self.cycle)

    def _end_if_idle(self, before: Any) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.cycle is before and (before is None or before.response_complete)
        if is_idle:
            self.transport.abort()
        else:
            self.loop.call_later(HEADER_SECONDS, self._end_if_idle, self.cycle)


def serve(server: FastAPI, bound: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that are there are answered first, for `DRAIN_SECONDS` at most."""
    config = uvicorn.Config(
        server, http=Connection, backlog=MAX_CONNECTIONS, timeout_graceful_shutdown=DRAIN_SECONDS, access_log=False
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after the last answer.
        uvicorn.Server(config).run(sockets=[bound])
