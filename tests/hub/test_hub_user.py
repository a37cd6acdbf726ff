"""Somebody with transformers, and nothing of ours, opens a revision of a release."""

import json

import pytest

from builders.clean_processes import run_clean
from builders.hub_folders import client, hub_environment
from builders.models import build_model
from reluformers.translation.tokenization import save_tokenizers, train_tokenizer

LINES = ["a dog runs", "a cat sleeps", "ein Hund rennt", "eine Katze schläft"]
NAME = "acme/toy"
OPEN_TWO = """
    import json
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

    name, options = sys.argv[1], {"revision": "v1", "trust_remote_code": True}
    found = [
        pipeline("translation", model=name, **options),
        pipeline("translation", model=name, trust_remote_code=True),
    ]
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    found.append(type(found[0])(model, AutoTokenizer.from_pretrained(name, revision="v1")))
    sys.stdout.write("\\n" + json.dumps([len(pipe.target_tokenizer) for pipe in found]))
"""


@pytest.mark.slow
def test_the_target_tokenizer_is_of_the_revision_of_the_model(tmp_path, hub):
    source, target, later = (train_tokenizer(LINES, vocab_size=size, min_frequency=1) for size in (60, 50, 40))
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target), "tying": "none"}
    build_model("reluformer", **sizes).save_pretrained(tmp_path / "released")
    save_tokenizers(tmp_path / "released", source, target)
    later.save_pretrained(tmp_path / "later")
    api = client(hub)
    api.create_repo(NAME)
    api.upload_folder(repo_id=NAME, folder_path=tmp_path / "released")
    api.create_tag(NAME, tag="v1")
    api.upload_folder(repo_id=NAME, folder_path=tmp_path / "later", path_in_repo="target_tokenizer")
    output = run_clean(OPEN_TWO, tmp_path, NAME, **hub_environment(hub, tmp_path / "home"))
    assert json.loads(output.splitlines()[-1]) == [len(target), len(later), len(target)]
