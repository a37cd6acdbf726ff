"""Joins requests that wait for a handler: what came meanwhile is computed together."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Waiting:
    """One request: its body, what tells whether the asker has gone, and where the answer goes.

    Args:
        inputs: of the body, as a list; empty where it is to be refused alone.
        key: its parameters as JSON, in which true is not 1.
    """

    data: Any
    is_gone: Callable[[], Awaitable[bool]]
    answer: asyncio.Future
    inputs: list[Any]
    key: str


class Batcher:
    """Answer one batch after another, in the order of the first request of each.

    A batch is the oldest request and those behind it that have the same parameters, up to `batch_size` inputs. Nobody
    waits for others to come: only while the model computes do requests gather.

    Args:
        handler: `EndpointHandler` of a folder.
        batch_size: inputs that it computes at a time.
    """

    def __init__(self, handler: Callable[[Any], list[Any]], batch_size: int):
        self.handler = handler
        self.batch_size = batch_size
        self.waiting: deque[Waiting] = deque()
        self.has_come = asyncio.Event()

    async def answer(self, data: Any, is_gone: Callable[[], Awaitable[bool]]) -> Any:
        """Wait for the answer to one request, or raise what the handler raises for it."""
        inputs = []
        key = ""
        if isinstance(data, dict) and {"inputs"} <= data.keys() <= {"inputs", "parameters"}:
            inputs = data["inputs"] if isinstance(data["inputs"], list) else [data["inputs"]]
            key = json.dumps({} if data.get("parameters") is None else data["parameters"], sort_keys=True)
        one = Waiting(data, is_gone, asyncio.get_running_loop().create_future(), inputs, key)
        self.waiting.append(one)
        self.has_come.set()
        return await one.answer

    async def run(self) -> None:
        """Compute until cancelled, in one thread beside the server's."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
            while True:
                await self.has_come.wait()
                batch = []
                for one in self._take():
                    if not await one.is_gone():
                        batch.append(one)
                    elif not one.answer.done():
                        one.answer.set_result(None)  # Its request must end, too.
                if not self.waiting:
                    self.has_come.clear()
                answers = await loop.run_in_executor(thread, self._compute, batch)
                for one, answer in zip(batch, answers, strict=True):
                    if one.answer.done():  # Its request was cancelled.
                        continue
                    if isinstance(answer, Exception):
                        one.answer.set_exception(answer)
                    else:
                        one.answer.set_result(answer)

    def _take(self) -> list[Waiting]:
        """The oldest request, and those that are computed with it."""
        first = self.waiting.popleft()
        batch = [first]
        number = len(first.inputs)
        for one in self.waiting if first.inputs else ():
            if one.inputs and one.key == first.key and number + len(one.inputs) <= self.batch_size:
                batch.append(one)
                number += len(one.inputs)
        for one in batch[1:]:
            self.waiting.remove(one)
        return batch

    def _compute(self, batch: list[Waiting]) -> list[Any]:
        """The answer or the error of each request; where one has an error, each is computed alone."""
        if len(batch) > 1:
            joined = [value for one in batch for value in one.inputs]
            try:
                answers = iter(self.handler({"inputs": joined, "parameters": json.loads(batch[0].key)}))
                return [self._share(one, answers) for one in batch]
            except Exception:
                pass  # Each request is computed alone below, which shows whose fault it is.
        return [self._attempt(one.data) for one in batch]

    def _share(self, one: Waiting, answers: Any) -> Any:
        own = [next(answers) for _ in one.inputs]
        # As from the handler, an image alone gets a list of classes, a text alone a list of one translation.
        if isinstance(one.data["inputs"], list) or self.handler.task == "translation":
            return own
        return own[0]

    def _attempt(self, data: Any) -> Any:
        try:
            return self.handler(data)
        except Exception as error:
            return error
