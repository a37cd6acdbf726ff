"""The models of models/ are what `push` would upload, of today's code, and answer as when they were released."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from transformers import AutoConfig

from builders.clean_processes import run_clean
from reluformers.publish.folder_check import check_folder
from reluformers.publish.release import foreign_code, read_saved_model
from reluformers.saved_code.registry import code_of

MODELS = sorted(path.parent for path in (Path(__file__).parents[1] / "models").glob("*/config.json"))
MEGABYTES = {"digits-relu-vit": 1, "tatoeba-en-de": 16, "tatoeba-de-en": 16}

OPEN_DIGITS = """
    import sys
    from PIL import Image
    from transformers import pipeline

    classify = pipeline("image-classification", model=sys.argv[1], trust_remote_code=True)
    print(classify(Image.open(sys.argv[2]))[0]["label"])
"""


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_model_is_a_release_of_this_code(folder):
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    saved = read_saved_model(folder)
    names = set(saved.files)
    assert {path.relative_to(folder).as_posix() for path in folder.iterdir() if path.is_file()} <= names
    assert foreign_code(saved) == []
    assert set(code_of(type(config))) <= names, "run scripts/refresh_models.py"
    assert sum((folder / name).stat().st_size for name in names) < MEGABYTES[folder.name] * 2**20
    card = ModelCard.load(folder / "README.md")
    assert card.data.license
    assert card.data.eval_results


# A stranger classifies below, and translates in test_new_user.py.
@pytest.mark.slow
@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_model_answers_as_when_it_was_released(folder):
    assert check_folder(folder).is_stored


def test_a_stranger_classifies_a_digit(tmp_path):
    folder = next(folder for folder in MODELS if folder.name == "digits-relu-vit")
    picture = next(folder.glob("example*.png"))
    assert run_clean(OPEN_DIGITS, tmp_path, str(folder), str(picture)).strip() in [str(digit) for digit in range(10)]
