"""What is installed under which name, and that the versions named in different files agree."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
import yaml
from packaging.version import Version

import reluformers

ROOT = Path(__file__).parents[1]
# Whoever wrote `from reluformers import …` needs each of these.
PUBLIC_NAMES = [
    "ATTENTION_PRESETS",
    "AttentionConfig",
    "AttentionStatistics",
    "MultiHeadAttention",
    "QKNormConfig",
    "QKNormForConditionalGeneration",
    "QKNormModel",
    "QKNormViTConfig",
    "QKNormViTForImageClassification",
    "QKNormViTModel",
    "ReLAConfig",
    "ReLAForConditionalGeneration",
    "ReLAModel",
    "ReLAViTConfig",
    "ReLAViTForImageClassification",
    "ReLAViTModel",
    "ReLUFormerConfig",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerModel",
    "ReLUFormerViTConfig",
    "ReLUFormerViTForImageClassification",
    "ReLUFormerViTModel",
    "ReLUViTConfig",
    "ReLUViTForImageClassification",
    "ReLUViTModel",
    "Seq2SeqTransformerConfig",
    "Seq2SeqTransformerForConditionalGeneration",
    "Seq2SeqTransformerModel",
    "TranslationPipeline",
    "VISION_SIZES",
    "VisionTransformerConfig",
    "VisionTransformerForImageClassification",
    "VisionTransformerModel",
    "exchange_attention",
    "fit_attention",
    "load_adapter",
    "quantize_int8",
    "rectified_attention",
    "register_attention",
    "restore_attention",
    "save_adapter",
    "seq2seq_config",
    "vision_config",
]


@pytest.fixture
def setup_arguments(monkeypatch) -> dict:
    captured = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: captured.update(arguments))
    runpy.run_path(str(ROOT / "setup.py"))
    return captured


def test_without_a_compiler_nothing_is_built_and_nothing_fails(tmp_path):
    places = ["--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp"]
    process = subprocess.run(
        [sys.executable, "setup.py", "build_ext", *places],
        env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr
    assert "reluformers_native._generic" in process.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_versions_agree(setup_arguments):
    assert setup_arguments["version"] == reluformers.__version__
    version = Version(reluformers.__version__)
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert ("Unreleased" if version.is_devrelease else version.public) in headings


def test_what_publishing_runs_is_pinned():
    """Actions by commit, images by digest; the job that builds what is uploaded knows no index but PyPI."""
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for used in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used), path
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            for step in job["steps"]:  # code of a job could read the token that a checkout leaves in .git
                assert "checkout@" not in step.get("uses", "") or step["with"]["persist-credentials"] is False, path
    for image in re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE):
        assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", image)
    publishing = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"))
    build = publishing["jobs"]["build"]
    assert "INDEX" not in str(build) + str(publishing.get("env"))
    for installed in (step["run"] for step in build["steps"] if "run" in step):
        assert re.fullmatch(r"pip install (build|cibuildwheel)==[\d.]+ && python -m \1 --[\w -]+", installed)


def test_public_names():
    assert sorted(reluformers.__all__) == PUBLIC_NAMES
    assert all(hasattr(reluformers, name) for name in PUBLIC_NAMES)
