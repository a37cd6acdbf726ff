"""A process as somebody has it who never installed this library."""

import functools
import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

OURS = ("reluformers", "reluformers_kernels", "reluformers_native")
EXTRAS = ("triton", "datasets", "evaluate", "peft", "accelerate")
HIDING = """
import importlib.util, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
assert importlib.util.find_spec("reluformers") is None
"""
# imports what takes seconds, and forks for each request, a line of JSON
SERVER = """
import json, os, traceback
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, LlamaForCausalLM, pipeline

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.chdir(request["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a question to the user is not for the next request to answer
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv[1:], code = request["arguments"], 0
    try:
        exec(compile(request["code"], "<clean>", "exec"), {"__name__": "__main__", "sys": sys})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


def start(script: str, folder: Path, *arguments: str, hidden: tuple[str, ...], **options) -> subprocess.Popen:
    """A process of Python without the library and the hidden packages, with a home of its own."""
    environment = {"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "HOME": str(folder)}
    environment |= {"OMP_NUM_THREADS": "1", **options.pop("environment", {})}
    script = HIDING.format(hidden={*OURS, *hidden}) + textwrap.dedent(script)
    command = [sys.executable, "-I", "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder, **options)


@functools.cache
def server() -> subprocess.Popen:
    """The process that others are forked from, one for all tests: it has run nothing but imports."""
    return start(SERVER, Path(tempfile.mkdtemp()), hidden=EXTRAS, stdin=subprocess.PIPE)


def run_clean(code: str, cache: Path, *arguments: str, hidden: tuple[str, ...] = EXTRAS, **environment: str) -> str:
    """Output of code that has torch and transformers, but nothing of reluformers or the extras.

    It must end well. With another environment it has a process of its own.
    """
    if environment or hidden != EXTRAS:
        options = {"hidden": hidden, "stderr": subprocess.PIPE, "environment": environment}
        process = start(code, cache, *arguments, **options)
        output, errors = process.communicate()
        status = process.returncode
    else:
        cache.mkdir(exist_ok=True)
        request = {"code": textwrap.dedent(code), "folder": str(cache), "arguments": arguments}
        server().stdin.write(json.dumps(request) + "\n")
        server().stdin.flush()
        status = int(server().stdout.readline())
        output, errors = ((cache / name).read_text() for name in ("stdout", "stderr"))
    assert status == 0, errors
    return output
