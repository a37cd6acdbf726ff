"""Folders that carelessness or malice has broken are refused in one line by whatever opens them."""

import random
import shutil

import pytest

from builders.broken_files import break_folder
from builders.saved_models import save_classifier, save_translator
from reluformers.analysis.cross_attention import open_translator
from reluformers.cards.finished_run import read_finished_run
from reluformers.conversion.convert import open_processor, open_source
from reluformers.errors import UserError
from reluformers.hub.check import read_answers, write_answers
from reluformers.hub.files import foreign_code, read_config, select_files
from reluformers.images.scoring import load_image_model
from reluformers.saved_models import load_config
from reluformers.translation.decoding import load_translation_model


def _open_processor(folder):
    open_processor(open_source(folder))


COMMON = [load_config, read_config, select_files, foreign_code, read_answers, read_finished_run, _open_processor]
DOORS = {
    "translation": [*COMMON, load_translation_model, open_translator],
    "images": [*COMMON, load_image_model],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    saved = {
        "translation": save_translator(folder / "translation", separate=True),
        "images": save_classifier(folder / "images"),
    }
    for path in saved.values():
        write_answers(path, [{"logits": {"mean": 0.0, "std": 1.0, "max": 2.0}}])
    return saved


def failures_of(whole, place, kind, seeds):
    """What doors let through of broken folders: neither an open model nor one line."""
    failures = []
    for seed in seeds:
        folder = place / f"{kind}-{seed}"
        shutil.copytree(whole[kind], folder)
        what = break_folder(folder, random.Random(seed))
        for door in DOORS[kind]:
            try:
                door(folder)
            except UserError as error:
                if "\n" in str(error):
                    failures.append(f"{seed} {what}: {door.__name__}: several lines: {error}")
            except BaseException as error:
                failures.append(f"{seed} {what}: {door.__name__}: {type(error).__name__}: {error!s:.150}")
        shutil.rmtree(folder)
    return failures


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_a_broken_file_is_refused_in_one_line(whole, tmp_path, kind):
    assert not failures_of(whole, tmp_path, kind, range(150))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_broken_files_are_refused_in_one_line(whole, tmp_path, kind):
    assert not failures_of(whole, tmp_path, kind, range(150, 2000))
