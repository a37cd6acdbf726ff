"""One record for each task and no second list of them; rooms that do not know each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import BertConfig, MarianConfig, ViTConfig

import reluformers
from reluformers.families import FAMILIES
from reluformers.tasks import load_recipe, task_named, task_of, task_of_model_type

ROOT = Path(reluformers.__file__).parents[1]
# rooms from the ground up; each imports only from those before it, beside the files that lie directly in the package
FLOORS = (
    ("saved_code",),  # what `import reluformers` registers
    ("data",),
    ("onnx",),
    ("conversion",),
    ("evaluation",),
    ("training",),
    ("translation", "images"),
    ("app",),
    ("export",),
    ("serving",),
    ("publish",),
    ("commands",),
)
# files of the package itself that know rooms, and the room beneath which each of them lies
BELOW = {"tasks": "export"}


def test_every_family_has_a_task():
    for config_class, models in FAMILIES.items():
        task = task_of_model_type(config_class.model_type)
        assert task.auto_class in models
        assert task_named(task.name) is task
    with pytest.raises(ValueError, match="'bert'"):
        task_of_model_type("bert")


def test_models_of_others_have_tasks_too():
    assert task_of(MarianConfig()).name == "translation"
    assert task_of(ViTConfig()).name == "image-classification"
    with pytest.raises(ValueError, match="bert"):
        task_of(BertConfig())


def test_a_recipe_names_its_task(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("task: image-classification\nmodel: {size: Ti/4}\n")
    recipe = load_recipe(path, ["model.preset=relu-vit"])
    assert type(recipe) is task_named("image-classification").recipe_class
    recipe.save(tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe
    for text, field in (
        ("model: {size: Ti/4}\n", "task"),
        ("task: speech\n", "task"),
        ("task: translation\naugmentation: {}\n", "augmentation"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=field):
            load_recipe(path)


def imported_names(path: Path, package: list[str]) -> Iterator[str]:
    """Full names of what a file of a package imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> set[str]:
    """Rooms and files of the package that a file imports, wherever in it."""
    names = imported_names(path, list(path.relative_to(ROOT).parts[:-1]))
    return {".".join(name.split(".")[:2]) for name in names if name.split(".")[0] == "reluformers"}


def test_imports_point_down_only():
    levels = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    folders = {path.name for path in (ROOT / "reluformers").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders | {"app"} == set(levels)
    # The app is a program of its own beside the package, as a Space holds it.
    assert {name for path in (ROOT / "app").glob("*.py") for name in imports_of(path)} <= {"reluformers.modeling"}
    levels |= {f"_{name}": levels[room] - 0.5 for name, room in BELOW.items()}
    levels |= {"___init__": len(FLOORS)}
    for path in (ROOT / "reluformers").rglob("*.py"):
        parts = path.relative_to(ROOT / "reluformers").parts
        own = parts[0] if len(parts) > 1 else f"_{path.stem}"
        if own not in levels and own not in ("___init__", "___main__"):
            # a file that lies in the package itself serves all rooms and knows none
            assert not {name.split(".")[1] for name in imports_of(path)} & set(levels), path
            continue
        for name in imports_of(path):
            other = name.split(".")[1]
            other = other if other in levels else f"_{other}"
            if other in levels and other != own:
                assert levels[other] < levels[own], f"{path} imports {name}"


def test_kernels_import_nothing_of_the_library():
    for path in (ROOT / "reluformers_kernels").glob("*.py"):
        assert not imports_of(path), path
