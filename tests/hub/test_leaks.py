"""Tokens and places of this machine are found wherever they hide in a release."""

import base64
import json
import time
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.torch import load_file, save_file

from builders.hub_folders import REPO, client
from builders.pictures import picture
from builders.saved_models import save_classifier
from reluformers.publish.card import write_card
from reluformers.publish.leaks import check_files
from reluformers.publish.push import push_to_hub
from reluformers.publish.release import stage_files
from reluformers.publish.secrets import find_secret

ROOT = Path(__file__).parents[2]
HUB_TOKEN = "hf_" + "aB3d" * 9
# put together here, so that nobody who searches this file takes them for real ones
KEYS = {
    "a token of the Hub": HUB_TOKEN,
    "a key of AWS": "AKIA" + "ABCD2345" * 2,
    "a token of GitHub": "ghp_" + "aB3d" * 9,
    "a token of GitHub, fine-grained": "github_pat_" + "11ABCDE_" * 6,
    "a token of GitLab": "glpat-" + "aB3-" * 5,
    "a key of OpenAI or Anthropic": "sk-proj-" + "aB3_" * 12,
    "a key of OpenAI or Anthropic, the second": "sk-ant-api03-" + "aB3_" * 20,
    "a key of OpenAI or a like service": "sk-" + "aB3d" * 12,
    "a key of Google": "AIza" + "SyA1-" * 7,
    "a token of Slack": "xoxb-" + "1234567890-" * 2 + "aB3d" * 6,
    "a webhook of Slack": "https://hooks.slack.com/services/T0AB/B0CD/" + "aB3d" * 6,
    "a token of npm": "npm_" + "aB3d" * 9,
    "a token of PyPI": "pypi-AgEIcHlwaS5vcmc" + "aB3d" * 20,
    "a key of Stripe": "sk_live_" + "aB3d" * 6,
    "a token of Replicate": "r8_" + "aB3d" * 9 + "x",
    "a private key": "-----BEGIN RSA PRIVATE KEY-----",
    "a private key, of PGP": "-----BEGIN PGP PRIVATE KEY BLOCK-----",
}
KEYS |= {
    "a key of AWS, secret": "aws_secret_access_key = " + "aB3+" * 10,
    "a token of GitLab, of a runner": "glrt-" + "aB3-" * 5,
    "a key of Groq": "gsk_" + "aB3d" * 13,
    "a key of xAI": "xai-" + "aB3d" * 20,
    "a key of Perplexity": "pplx-" + "aB3d" * 12,
    "a key of NVIDIA": "nvapi-" + "aB3_" * 16,
    "a token of Databricks": "dapi" + "0a1b" * 8,
    "a key of Weights & Biases": 'WANDB_API_KEY="' + "0a1b" * 10,
    "a client secret of Google": "GOCSPX-" + "aB3-" * 7,
    "a token of Google": "ya29." + "aB3_" * 20,
    "a key of Azure": "AccountKey=" + "aB3+" * 21 + "aB==",
    "a token of Slack, of an app": "xapp-1-" + "AB3" * 3 + "-1234567890123-" + "0a1b" * 16,
    "a token of Telegram": "1234567890:AA" + "aB3" * 11,
    "a key of Twilio": "SK" + "0a1b" * 8,
    "a key of Mailchimp": "0a1b" * 8 + "-us12",
    "a key of Mailgun": "key-" + "0a1b" * 8,
    "a key of SendGrid": "SG." + "aB" * 11 + "." + "aB3" * 14 + "x",
    "a token of Docker": "dckr_pat_" + "aB3" * 9,
    "a key of Stripe, of tests": "sk_test_" + "aB3d" * 6,
    "a key of Stripe, restricted": "rk_live_" + "aB3d" * 6,
    "a token of Shopify": "shpat_" + "0a1b" * 8,
    "a token of Square": "sq0csp-" + "aB3" * 14 + "x",
    "a token of DigitalOcean": "dop_v1_" + "0a1b" * 16,
    "a token of Vault": "hvs." + "aB3d" * 22,
    "a key of Linear": "lin_api_" + "aB3d" * 10,
    "a token of Notion": "ntn_" + "aB3d" * 11,
    "a token of Grafana": "glsa_" + "aB3d" * 8 + "_0a1b2c3d",
    "a key of Postman": "PMAK-" + "0a1b" * 6 + "-" + "0a" * 17,
    "a token of Sentry": "sntrys_" + "aB3d" * 15,
    "a JSON web token": "eyJ" + "aB3d" * 5 + ".eyJ" + "aB3d" * 5 + "." + "aB3d" * 10,
    "a password in an address": "://admin:" + "aB3d" * 4 + "@db.example.com/x",
    "a password of .netrc": "machine huggingface.co login me password " + "aB3d" * 4,
    "a private key, of age": "AGE-SECRET-KEY-1" + "QZ" * 29,
}
HOME = "/home/somebody/runs/secret.txt"


@pytest.mark.parametrize(("kind", "key"), KEYS.items(), ids=KEYS)
def test_keys_of_many_makers_are_found(kind, key):
    for text in (key, f'KEY = "{key}"', f"KEY={key}", json.dumps({"a": f"first\n{key}"})):
        secret = find_secret(text)
        assert secret.what == kind.partition(",")[0]
        assert text[secret.position :][:3] in key
        assert key not in repr(secret)


@pytest.mark.parametrize(
    "text",
    [
        "task-" + "abcdefgh" * 5 + "1",
        "risk-averse-and-very-long-words-of-a-corpus-2024",
        "sk-learn-and-" + "x" * 40,
        "hf_token hf_hub_download hf_",
        "the ghp_ prefix, glpat- and npm_run_scripts",
        "-----BEGIN CERTIFICATE-----",
        "AKIAlowercase1234567",
        "sha256:" + "0123456789abcdef" * 4,
        "glide-path-of-the-aircraft-that-lands and glacier-retreat-since-the-last-century",
        "keyhf_abcdefghijklmnopqrstuvwxyzabcdefgh",
        "https://example.com:8080/path@v1 and git@example.com:org/repo.git and mailto:someone@example.com",
        "http://user:password@example.com",
        "VGhpcyBpcyBub3RoaW5nIGJ1dCBvcmRpbmFyeSB0ZXh0IGluIGJhc2U2NA==",
    ],
)
def test_ordinary_text_is_none(text):
    assert find_secret(text) is None


@pytest.mark.parametrize("before", ["token", "Bearer%20", "x_", "hf_token_", "\\u0020"])
def test_a_token_with_letters_before_it_is_found(before):
    token = "hf_" + "aBcD" * 9
    for text in (before + token, f'"{before}{token}"'):
        assert find_secret(text).what == "a token of the Hub"


@pytest.mark.parametrize("before", ["", "x", "xy", "Bearer ", "user:", '{"token": "'])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("key", [HUB_TOKEN, KEYS["a key of OpenAI or Anthropic"], KEYS["a token of GitHub"]])
def test_a_token_in_base64_is_found(before, encode, key):
    padded = encode((before + key).encode()).decode()
    hidden = padded.rstrip("=")
    for text in (hidden, padded, f"first line\nAuthorization: Basic {padded}\n", f"data_{hidden}"):
        secret = find_secret(text)
        assert secret.what.endswith("in base64")
        assert secret.position == text.index(hidden) or text.startswith("data_")


def test_the_line_of_a_hidden_token_is_named(folder, tmp_path):
    text = (folder / "config.json").read_text()
    hidden = base64.b64encode(HUB_TOKEN.encode()).decode()
    (folder / "config.json").write_text(text.replace("{\n", f'{{\n  "note": "{hidden}",\n', 1))
    with pytest.raises(ValueError, match=r"config\.json, line 2: holds a token of the Hub in base64"):
        stage_files(folder, tmp_path / "staging")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weights", "noise", "text"])
def test_the_search_takes_time_in_proportion_to_the_bytes(tmp_path, kind):
    import torch

    seconds = {}
    for size in (1 << 24, 1 << 27):
        if kind == "text":
            name = f"{size}.txt"
            (tmp_path / name).write_text('  "some words of a vocabulary": 12345,\n' * (size // 40))
        else:
            name = f"{size}.safetensors"
            tensor = torch.randn(size // 4) if kind == "weights" else torch.randint(256, (size,), dtype=torch.uint8)
            save_file({"weight": tensor}, tmp_path / name, metadata={"format": "pt"})
        start = time.process_time()  # what other programs take does not count
        check_files(tmp_path, [name], shown_as=tmp_path)
        seconds[size] = time.process_time() - start
    assert seconds[1 << 27] < 24 * seconds[1 << 24]  # a search of the square takes 64 times as long


def test_names_that_look_like_paths_are_none_of_this_machine(tmp_path):
    labels = ["/m/01g317", "/m/0cmf2/x", "/etc/fstab"]
    folder = save_classifier(tmp_path / "model", id2label=dict(enumerate(labels)))
    assert "/m/01g317" in (folder / "config.json").read_text()
    picture(8, 12).save(tmp_path / "x.png")
    write_card(folder, REPO, examples=[tmp_path / "x.png"])
    assert "/m/01g317" in (folder / "README.md").read_text()
    (folder / "results.json").write_text(json.dumps({"examples": [{"source": "edit /etc/fstab or /usr/share/x.txt"}]}))
    stage_files(folder, tmp_path / "clean")
    for number, place in enumerate(
        ("/data/runs/x.json", "/mnt/corpora/x", HOME, f"{Path.cwd()}/x", "~/runs/x", "file:///srv/x/y")
    ):
        (folder / "results.json").write_text(json.dumps({"examples": [{"source": f"see {place} there"}]}))
        with pytest.raises(ValueError, match="a path of this machine"):
            stage_files(folder, tmp_path / f"staging{number}")


def test_our_code_and_a_vocabulary_hold_no_keys(saved):
    files = [
        path for folder in ("configuration", "modeling", "reluformers", "docs") for path in (ROOT / folder).rglob("*")
    ]
    files += saved.glob("*.json")
    assert len(files) > 100
    assert not [path for path in files if path.is_file() and find_secret(path.read_bytes())]


def test_a_key_in_the_code_stays_at_home(folder, hub):
    with (folder / "handler.py").open("a") as file:
        file.write(f'\nKEY = "{KEYS["a key of AWS"]}"\n')
    lines = (folder / "handler.py").read_text().count("\n")
    with pytest.raises(ValueError, match=rf"handler\.py, line {lines}: holds a key of AWS; take it out") as error:
        push_to_hub(folder, REPO, api=client(hub))
    assert "AKIA" not in str(error.value)
    assert not hub.repos


@pytest.mark.parametrize(
    ("text", "message"),
    [(HUB_TOKEN, "holds a token of the Hub"), (HOME, f"names a path of this machine, {HOME}")],
    ids=["token", "home"],
)
@pytest.mark.parametrize("key", ["note", "format"])
def test_metadata_of_weights_are_read(folder, tmp_path, text, message, key):
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"format": "pt", key: text})
    with pytest.raises(ValueError, match=rf"model\.safetensors, its metadata '{key}': {message}"):
        stage_files(folder, tmp_path / "staging")


def test_a_token_as_a_tensor_is_found(folder, tmp_path):
    import torch

    weights = folder / "model.safetensors"
    hidden = torch.tensor(list(b"x" * 50 + HUB_TOKEN.encode()), dtype=torch.uint8)
    save_file({**load_file(weights), "hidden": hidden}, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model\.safetensors, behind byte 0: holds a token of the Hub"):
        stage_files(folder, tmp_path / "staging")


def write_text_chunk(path: Path, text: str) -> None:
    info = PngInfo()
    info.add_text("Comment", text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)


def write_compressed_chunk(path: Path, text: str) -> None:
    info = PngInfo()
    info.add_itxt("Comment", "the run " + text, zip=True)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)


def write_exif(path: Path, text: str) -> None:
    exif = Image.Exif()
    exif[0x010E] = text  # ImageDescription
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def write_exif_in_utf_16(path: Path, text: str) -> None:
    exif = Image.Exif()
    exif[0x9C9C] = text.encode("utf-16-le")  # XPComment
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def write_behind_the_end(path: Path, text: str) -> None:
    Image.new("RGB", (8, 8)).save(path)
    path.write_bytes(path.read_bytes() + text.encode())


PLACES = {
    "a text chunk": (write_text_chunk, "its text 'Comment'"),
    "a compressed one": (write_compressed_chunk, "its text 'Comment'"),
    "EXIF": (write_exif, "its (EXIF entry ImageDescription|text 'exif')"),
    "EXIF in UTF-16": (write_exif_in_utf_16, "its (EXIF entry XPComment|text 'exif')"),
    "behind the end": (write_behind_the_end, "behind byte 0"),
}


@pytest.mark.parametrize(("write", "place"), PLACES.values(), ids=PLACES)
def test_metadata_of_pictures_are_read(folder, tmp_path, write, place):
    stage_files(folder, tmp_path / "clean")
    write(folder / "attention.png", HUB_TOKEN)
    with pytest.raises(ValueError, match=rf"attention\.png, {place}: holds a token of the Hub"):
        stage_files(folder, tmp_path / "staging")
    write(folder / "attention.png", HOME)
    with pytest.raises(ValueError, match=rf"attention\.png, {place}: .*a path of this machine"):
        stage_files(folder, tmp_path / "again")


def test_comments_of_a_jpeg_are_read(folder, tmp_path):
    Image.new("RGB", (8, 8)).save(folder / "photo.jpg", comment=HUB_TOKEN.encode())
    card = (folder / "README.md").read_text().replace("attention.png", "photo.jpg")
    (folder / "README.md").write_text(card)
    with pytest.raises(ValueError, match=r"photo\.jpg, its text 'comment': holds a token of the Hub"):
        stage_files(folder, tmp_path / "staging")


def test_relative_paths_of_a_recipe_become_names(folder, tmp_path):
    (folder / "recipe.yaml").write_text(
        "data:\n  train: {source: corpora/of mine/train.en, target: a/b/train.de}\n  test: data\\test.tsv\n"
        "  path: bentrevett/multi30k\n  validation: data/dev.jsonl.gz\n  url: https://example.org/a/b.jsonl\n"
        "tokenizer:\n  path: runs/old/tokenizer\ntraining: {learning_rate: 0.1, note: and/or as it is said}\n"
    )
    results = {"examples": [{"source": "/me waves", "reference": "a/b/c", "output": "x/y.z"}], "model": "runs/a/b"}
    (folder / "results.json").write_text(json.dumps(results))
    stage_files(folder, tmp_path / "staging")
    recipe = (tmp_path / "staging/recipe.yaml").read_text()
    for name in (
        "source: train.en",
        "target: train.de",
        "test: test.tsv",
        "validation: dev.jsonl.gz",
        "path: tokenizer",
    ):
        assert name in recipe
    for kept in ("path: bentrevett/multi30k", "url: https://example.org/a/b.jsonl", "note: and/or as it is said"):
        assert kept in recipe
    assert json.loads((tmp_path / "staging/results.json").read_text()) == {**results, "model": "b"}
