"""What `relu_attention` does in a tiny model of each type of the installed transformers, and the table of it.

Run as a module it writes the table into a page: python -m tests.any_model.every_type docs/model-types.md
"""

import functools
import inspect
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import reluformers  # noqa: F401 (registers the names)
from reluformers.attentions import SoftmaxWatch, check_attention, kept_by
from reluformers.configuration.configuration_attention import AttentionConfig
from reluformers.modeling.attention_interface import InterfaceAttention
from reluformers.modeling.modeling_exchanged import calls_interface

from .alone import attention_modules, calls_of, with_mask
from .tiny import has_model, inputs_of, model_types, models_of
from .written_out import register_written_out

INTERFACE = "ALL_ATTENTION_FUNCTIONS.get_interface("
BEGIN = "<!-- types: begin -->"
END = "<!-- types: end -->"
SECONDS = 10  # of the processor: for a type's models, and again for its attention modules by themselves
TOLERANCE = 1e-4  # of float32, against the size of the outputs and of each gradient
SOFTMAX = re.compile(r"\b(softmax|Softmax|scaled_dot_product_attention|MultiheadAttention)\(")


@dataclass
class Found:
    """What came of a type.

    Args:
        outcome: `"exact"`, `"in parts"` (exact, but tried part by part), `"refused"`, `"untried"` (no tiny model of it
            runs here), `"none"` (no attention through the interface), `"part"` (no model of its own) or `"wrong"`.
        why: the reason, where it is not exact.
        files: modules of transformers that called the attention.
        softmax: classes of modules, attentions by their names, that compute softmax beside it.
    """

    outcome: str
    why: str = ""
    files: set[str] = field(default_factory=set)
    softmax: set[str] = field(default_factory=set)


class SoftmaxSpy(SoftmaxWatch):
    """Notes the classes of the modules that call an attention of torch, or softmax in what is named an attention."""

    def __init__(self):
        super().__init__(None)
        self.classes = set()

    def note(self, owner):
        self.classes.add(owner)


def softmax_in(model: nn.Module) -> set[str]:
    """Classes of attentions in a model, run or not, whose code has softmax and no call of the interface."""
    return {one.__name__ for one in map(type, model.modules()) if computes_softmax(one)}


@functools.cache
def computes_softmax(module_class: type[nn.Module]) -> bool:
    """Whether an attention of transformers has softmax in its code, and no call of the interface."""
    if "Att" not in module_class.__name__ or calls_interface(module_class):
        return False
    bases = [one for one in module_class.__mro__ if one.__module__.startswith("transformers.models.")]
    return any(SOFTMAX.search(inspect.getsource(one)) for one in bases)


def refusal_of(model: PreTrainedModel) -> str | None:
    """What the library says of a model, or of one in it, before it computes anything."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            try:
                check_attention(type(part), part.config, AttentionConfig.parse("relu-vit"), "relu_attention")
            except ValueError as error:
                return str(error)
    return None


@functools.cache
def files_with_interface() -> set[str]:
    """Modules of models that call the attention interface."""
    root = Path(transformers.__file__).parent / "models"
    paths = [path for path in root.glob("*/modeling_*.py") if INTERFACE in path.read_text(encoding="utf-8")]
    return {f"transformers.models.{path.parent.name}.{path.stem}" for path in paths}


def examine(model_type: str) -> Found:
    """What comes of a type; wrong, too, where an attention keeps softmax that is not in `KEEPS_SOFTMAX`."""
    found = _examine(model_type)
    left = sorted(one for one in found.softmax if kept_by(one) is None)
    return Found("wrong", f"softmax stays in {', '.join(left)}", found.files, found.softmax) if left else found


def _examine(model_type: str) -> Found:
    """Outputs and gradients of tiny models with `relu_attention`, beside those of the written-out form.

    The whole model is tried first, then its parts, where the whole does not run or leaves the attention of its file
    out; attention modules by themselves come last.
    """
    if not has_model(model_type):
        return Found("part")
    register_written_out("written_relu", length_exponent=1.0)
    outcomes = set()
    files = set()
    softmax = set()
    why = ""
    built = []
    own = _file_of(model_type)
    every = files_with_interface()
    try:
        for place, model in models_of(model_type):
            if isinstance(model, Exception):
                why = why or f"{type(model).__name__}: {model}"
                continue
            if why_not := refusal_of(model):  # which needs no inputs
                return Found("refused", why_not)
            model.set_attn_implementation("relu_attention")
            built.append(model)
            softmax |= softmax_in(model)
            if _has_interface(model):
                model.set_attn_implementation("eager")
                inputs = _first_that_runs(inputs_of(model), functools.partial(_output, model))
                if isinstance(inputs, Exception):
                    why = why or f"{type(inputs).__name__}: {inputs}"
                    continue
                found = _compare(model, functools.partial(_output, model, inputs))
            else:
                found = Found("none")
            softmax |= found.softmax
            if found.outcome == "refused":
                return found
            if found.outcome in ("wrong", "raises"):
                return Found(found.outcome.replace("raises", "wrong"), found.why, found.files)
            if found.outcome == "exact":
                files |= found.files
            if place == "whole" or found.outcome == "exact":
                outcomes.add(found.outcome if place == "whole" else "in parts")
            if outcomes and own not in every - files:
                break
    except TimeoutError as error:
        why = why or str(error)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
    for model in built if own in every - files else ():
        for module in attention_modules(model).values():
            if own not in every - files:
                break
            model.set_attn_implementation("eager")  # which broadcasts less than the written-out form
            run = functools.partial(_output_alone, model, module)
            call = _first_that_runs(calls_of(module), run)
            found = None if isinstance(call, Exception) else _compare(model, functools.partial(run, call))
            if found is not None and found.outcome == "wrong":
                return found
            # one that raises may get a mask of another kind from its model
            if found is not None and found.outcome == "exact":
                files |= found.files
                softmax |= found.softmax
                outcomes.add("in parts")
    outcome = next((name for name in ("exact", "in parts", "none") if name in outcomes), "untried")
    return Found(outcome, why if outcome == "untried" else "", files, softmax)


def _has_interface(model) -> bool:
    every = files_with_interface()
    return any(base.__module__ in every for module in model.modules() for base in type(module).__mro__)


def _file_of(model_type: str) -> str:
    folder = CONFIG_MAPPING[model_type].__module__.split(".")[-2]
    return f"transformers.models.{folder}.modeling_{folder}"


def reached_files(found: dict[str, Found]) -> set[str]:
    """Modules of models whose attention ran exactly."""
    exact = [one.files for one in found.values() if one.outcome in ("exact", "in parts")]
    return files_with_interface() & set().union(*exact)


def files_left_out(found: dict[str, Found]) -> set[str]:
    """Modules of models that call the attention interface, and are neither exact nor of a type that is refused."""
    refused = {_file_of(model_type) for model_type, one in found.items() if one.outcome == "refused"}
    return files_with_interface() - reached_files(found) - refused


def _first_that_runs(tries: Generator[dict, Exception | None, None], run: Callable) -> dict | Exception:
    """The first inputs that a model takes; what it says of others is sent back to where they come from."""
    error = None
    while True:
        try:
            inputs = tries.send(error)
        except StopIteration:
            return error or LookupError("no inputs of it are known")
        try:
            with torch.no_grad():
                run(inputs)
            return inputs
        except TimeoutError:
            raise
        except Exception as found:  # whatever a model raises that wants others
            error = found


def _compare(model, run: Callable[[], torch.Tensor]) -> Found:
    """Outputs and gradients of a run of a model, or of a part of it, with both forms of an attention."""
    model.set_attn_implementation("relu_attention")
    files = set()
    spy = SoftmaxSpy()
    call = InterfaceAttention.forward

    def noting(self, module, *arguments, **keywords):
        files.add(type(module).__module__)
        return call(self, module, *arguments, **keywords)

    InterfaceAttention.forward = noting
    try:
        with spy:
            output, gradients = _with_gradients(model, run)
    except TimeoutError:
        raise
    except Exception as error:
        if "has sinks" in str(error):
            return Found("refused", f"{type(model).__name__}: {error}", files)
        return Found("raises", f"{type(error).__name__}: {error}", files)
    finally:
        InterfaceAttention.forward = call
    if not files:
        return Found("none", softmax=spy.classes)
    try:
        model.set_attn_implementation("written_relu")
        expected, expected_gradients = _with_gradients(model, run)
        if not (output - expected).norm() <= TOLERANCE * expected.norm():
            why = f"outputs differ by {(output - expected).norm() / expected.norm():.1e}"
            return Found("untried" if _differs_by_itself(model, run) else "wrong", why, files)
    except TimeoutError:
        raise
    except Exception as error:
        return Found("untried", f"the written-out form raises {type(error).__name__}: {error}", files)
    scale = max([gradient.norm() for gradient in expected_gradients.values()], default=torch.zeros(()))
    for name, gradient in gradients.items():
        if not (gradient - expected_gradients[name]).norm() <= 10 * TOLERANCE * scale:
            return Found("wrong", f"gradients of {name} differ", files)
    return Found("exact", files=files, softmax=spy.classes)


def _differs_by_itself(model, run: Callable[[], torch.Tensor]) -> bool:
    """Whether these inputs mean something else to the model's own eager form than to its SDPA."""
    outputs = []
    for name in ("eager", "sdpa"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            outputs.append(run())
    return bool((outputs[0] - outputs[1]).norm() > TOLERANCE * outputs[0].norm())


def _output(model, inputs) -> torch.Tensor:
    """The first floating output, without the rows of padded tokens."""
    torch.manual_seed(0)  # some models hide patches at random
    found = []

    def walk(part):
        if isinstance(part, torch.Tensor) and part.is_floating_point():
            found.append(part)
        elif isinstance(part, tuple | list):
            for one in part:
                walk(one)

    result = model(**inputs)
    walk(result.to_tuple() if hasattr(result, "to_tuple") else result)
    mask = inputs.get("attention_mask")
    is_token_wise = mask is not None and found[0].shape[:2] == mask.shape
    return found[0][mask.bool()] if is_token_wise else found[0]


def _output_alone(model, module, call) -> torch.Tensor:
    result = module(**with_mask(module, call, model.config._attn_implementation))
    return result[0] if isinstance(result, tuple) else result


def _with_gradients(model, run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    output = run()
    if output.requires_grad:
        target = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
        (output * target).sum().backward()
    gradients = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    return output.detach(), gradients


def table(found: dict[str, Found]) -> str:
    """The table of all types as Markdown."""
    groups = defaultdict(list)
    for model_type, one in found.items():
        groups[one.outcome].append(model_type)
    reasons = defaultdict(list)
    for model_type in groups["refused"]:
        why = found[model_type].why.partition(": ")[2].partition(": ")[0]
        reasons[re.sub(r"(its \w+ is) [\d.]+", r"\1 set", why)].append(model_type)
    kept = defaultdict(list)
    for model_type, one in found.items():
        for what in {kept_by(module_class) for module_class in one.softmax} - {None, ""}:
            kept[what].append(model_type)
    lines = [
        f"With transformers {transformers.__version__}, {len(groups['exact'])} types are exact, "
        f"{len(groups['in parts'])} are exact in parts, {len(groups['refused'])} are refused and "
        f"{len(groups['untried'])} were not tried. {len(groups['none'])} types call no attention through the "
        f"interface of transformers, and {len(groups['part'])} have no model of their own.",
        "",
        "| | model types |",
        "| --- | --- |",
        f"| exact | {', '.join(groups['exact'])} |",
        f"| exact in parts, the whole was not tried | {', '.join(groups['in parts'])} |",
        *(f"| refused: {why} | {', '.join(types)} |" for why, types in sorted(reasons.items())),
        *(f"| softmax stays in {what} | {', '.join(types)} |" for what, types in sorted(kept.items())),
    ]
    return "\n".join(lines)


def examine_all(types: list[str] | None = None) -> dict[str, Found]:
    """Examine every type, or those given."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    return {model_type: _in_time(model_type) for model_type in types or model_types()}


def _in_time(model_type: str) -> Found:
    def stop(*_):
        raise TimeoutError(f"it took over {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return examine(model_type)
    except TimeoutError as error:
        return Found("untried", str(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    results = examine_all()
    page.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    for name, one in results.items():
        if one.outcome in ("wrong", "untried"):
            print(name, one.outcome, one.why[:200].replace("\n", " "), sep="\t")
    print("files left out:", *sorted(files_left_out(results)))
