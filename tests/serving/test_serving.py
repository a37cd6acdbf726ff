"""`reluformers serve`: the endpoint's handler behind HTTP, asked as programs ask it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn

from builders.pictures import encode, picture
from builders.saved_models import save_classifier, save_translator
from reluformers.serving import server
from reluformers.serving.batching import Batcher


@contextlib.contextmanager
def serving(app):
    """Address of a server in a thread."""
    bound = server.bind("127.0.0.1", 0)
    runner = uvicorn.Server(uvicorn.Config(app, http=server.Connection, log_level="error"))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while thread.is_alive() and not runner.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    runner.should_exit = True
    thread.join()


def ask(address: str, data=None, kind: str = "application/json"):
    """Status and answer; JSON unless the body is bytes."""
    body = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
    request = urllib.request.Request(address, body, {"Content-Type": kind} if body is not None else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return server.load_handler(save_translator(tmp_path_factory.mktemp("translator")))


@pytest.fixture(scope="module")
def address(translator):
    with serving(server.build_server(translator, title="toy")) as address:
        yield address


def test_answers_are_those_of_the_handler(translator, address):
    handler = translator
    assert ask(f"{address}/health") == ask(address) == (200, {"status": "ok"})
    beams = {"inputs": ["old dog", "red cat house"], "parameters": {"num_beams": 2}}
    for body in ({"inputs": "old dog"}, beams):
        assert ask(address, body) == ask(f"{address}/predict", body) == (200, handler(body))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((body, 400) for body in (b"{", b"[" * 10**5, b"\xff", [], {"inputs": "a", "parameters": {"num_beams": 9}})),
        (b"x" * (server.MAX_BODY_BYTES + 1), 413),
    ],
    ids=["half", "deep", "bytes", "list", "beams", "large"],
)
def test_a_bad_request_gets_one_line(address, body, status):
    code, answer = ask(address, body)
    assert (code, set(answer)) == (status, {"error"})
    assert "\n" not in answer["error"]
    assert ask(address, {"inputs": "a"}, "text/plain")[0] == 415


def test_images_come_as_files_and_in_base64(tmp_path):
    handler = server.load_handler(save_classifier(tmp_path / "model"))
    data = encode(picture(8, 12))
    with serving(server.build_server(handler, title="toy")) as address:
        assert ask(address, data, "image/png") == (200, handler({"inputs": data}))
        assert ask(address, b"no image", "image/png")[0] == 400
        assert ask(address, data, "application/octet-stream")[0] == 415


class Counting:
    """A handler that reverses texts, refuses empty ones, and keeps the bodies; the first waits until it may go on."""

    task, parameters = "translation", {}

    def __init__(self):
        self.bodies, self.may_go_on = [], threading.Event()

    def __call__(self, data):
        self.bodies.append(data)
        self.may_go_on.wait(60)
        texts = data["inputs"] if isinstance(data["inputs"], list) else [data["inputs"]]
        if "" in texts:
            raise ValueError("a text is empty")
        return [text[::-1] for text in texts]


def batched(bodies, gone=()):
    """Answers or errors to requests of which all but the first wait while that is computed, and the calls."""
    handler = Counting()

    async def ask_all():
        batcher = Batcher(handler, batch_size=4)
        worker = asyncio.create_task(batcher.run())

        async def is_gone(number):
            return number in gone

        asked = []
        for number, body in enumerate(bodies):
            answer = batcher.answer(body, lambda number=number: is_gone(number))
            asked.append(asyncio.create_task(answer))
            while number == 0 and not handler.bodies:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        handler.may_go_on.set()
        answers = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        worker.cancel()
        return answers

    return asyncio.run(ask_all()), handler.bodies[1:]


def test_requests_that_wait_are_joined_by_their_parameters():
    beams = {"num_beams": 2}
    bodies = [
        {"inputs": "ab"},
        {"inputs": "cd"},
        {"inputs": ["ef", "gh"], "parameters": beams},
        {"inputs": ["ij", "kl"], "parameters": {}},
        {"inputs": ["mn", "op"]},  # would be a fifth input
        {"inputs": "qr", "parameters": None},
    ]
    answers, calls = batched(bodies)
    assert answers == [["ba"], ["dc"], ["fe", "hg"], ["ji", "lk"], ["nm", "po"], ["rq"]]
    assert [call["inputs"] for call in calls] == [["cd", "ij", "kl", "qr"], ["ef", "gh"], ["mn", "op"]]


def test_a_bad_request_spoils_no_other_and_none_is_computed_for_nobody():
    answers, calls = batched([{"inputs": "ab"}, {"inputs": ""}, {"inputs": "cd"}, {"inputs": "ef"}, []], gone=[3])
    assert answers[0] == ["ba"]
    assert answers[2] == ["dc"]
    assert [type(answer) for answer in answers] == [list, ValueError, list, type(None), TypeError]
    assert "ef" not in str(calls)


def test_too_many_requests_are_asked_to_come_again(monkeypatch):
    monkeypatch.setattr(server, "MAX_REQUESTS", 2)
    monkeypatch.setattr(server, "BATCH_SIZE", 1)
    handler = Counting()
    with serving(server.build_server(handler, title="toy")) as address, ThreadPoolExecutor(3) as pool:

        def ask_again():  # the request below may have been the second
            while (answer := ask(address, {"inputs": "ab"}))[0] == 503:
                time.sleep(0.01)
            return answer

        first = [pool.submit(ask_again) for _ in range(2)]
        deadline = time.monotonic() + 60
        while (status := ask(address, b"{")[0]) == 400 and time.monotonic() < deadline:  # until both have come
            time.sleep(0.01)
        assert status == 503
        assert ask(f"{address}/health")[0] == 200
        handler.may_go_on.set()
        assert [one.result() for one in first] == [(200, ["ba"])] * 2


def connected(address: str, sent: bytes) -> socket.socket:
    """A connection that has sent some bytes."""
    one = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60)
    one.sendall(sent)
    return one


def is_ended(one: socket.socket) -> bool:
    """Whether the server has ended a connection, without an answer."""
    try:
        return not one.recv(1)
    except ConnectionResetError:
        return True


def test_half_a_header_ends_and_a_long_answer_does_not(monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.1)
    monkeypatch.setattr(server, "BATCH_SIZE", 1)
    handler = Counting()
    with serving(server.build_server(handler, title="toy")) as address, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, address, {"inputs": "ab"})
        assert is_ended(connected(address, b"POST / HTTP/1.1\r\nHost:"))
        assert is_ended(connected(address, b""))
        time.sleep(0.5)
        handler.may_go_on.set()
        assert answer.result() == (200, ["ba"])


def test_connections_are_bounded(address, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    held = [connected(address, b"POST / HTTP/1.1\r\n") for _ in range(3)]
    assert is_ended(connected(address, b""))
    for one in held:
        one.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            assert ask(address) == (200, {"status": "ok"})
            return
    pytest.fail("a connection that is closed still counts")


@pytest.mark.slow
def test_the_command_answers_what_is_there_before_it_ends(tmp_path):
    """Without the packages that training needs, and with SIGTERM while a request is computed."""
    folder = save_translator(tmp_path / "model")
    with open(os.path.join(folder, "pipeline_translation.py"), "a") as file:
        file.write("\nimport time\nassert b'SECRET' not in open('/proc/self/environ', 'rb').read()\n")
        file.write("compute = TranslationPipeline.__call__\n")
        file.write(
            "def slow(self, *inputs, **options):\n    time.sleep(1)\n    return compute(self, *inputs, **options)\n"
        )
        file.write("TranslationPipeline.__call__ = slow\n")
    program = "import sys; sys.modules |= dict.fromkeys(('datasets', 'evaluate', 'gradio', 'matplotlib')); "
    program += "from reluformers_cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "serve", folder, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECRET": "x"},
    )
    line = child.stdout.readline()
    assert "is served at" in line, child.stderr.read()
    address = line.split(" is served at ")[1].split(",")[0]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(100):
            try:
                ask(f"{address}/health")
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        answer = pool.submit(ask, address, {"inputs": "old dog"})
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        assert answer.result()[0] == 200
    assert child.wait(30) == 0
    assert "Traceback" not in child.stderr.read()
