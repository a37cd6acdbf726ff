"""transformers' own common tests hold for our models as far as they hold for the stock ones beside them."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest
import transformers

from reluformers.families import FAMILIES

STOCK = {"Translation": "StockTranslation", "Images": "StockImages"}
RESULT = re.compile(r"^(PASSED|(?:SUB)?FAILED|ERROR)\b.*?::(\w+)::(\w+)", re.MULTILINE)
# distributions lack these two, of which the mixin inherits or asks: the tests of exporters and of `generate`
LACKING = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}
# end of the cases' names, test → why it cannot pass where there is such a test
EXCEPTIONS = {
    ("Translation", "test_bc_cache_name_forward"): (
        "wants a warning for `past_key_values`, which here is as good a name as `cache`"
    ),
    ("ReLATranslation", "test_inputs_embeds_matches_input_ids"): (
        "takes the embeddings of the source for the target's, which are others with ReLA's tying='decoder'"
    ),
}


def pip(*arguments: str) -> None:
    """Run pip, or leave the test out where it has no network."""
    result = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"pip {arguments[0]} gets nothing from PyPI: {result.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
def test_nothing_fails_that_passes_for_marian_or_vit(tmp_path):
    version, options = transformers.__version__, ["--quiet", "--no-deps"]
    pip("download", *options, "--no-binary", ":all:", "--dest", str(tmp_path), f"transformers=={version}")
    pip("install", *options, "--target", str(tmp_path), "parameterized")
    with tarfile.open(tmp_path / f"transformers-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.move(tmp_path / f"transformers-{version}" / "tests", tmp_path / "tests")
    for name, mixin in LACKING.items():
        path = tmp_path / "tests" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"class {mixin}:\n    pass\n")
    shutil.copy(Path(__file__).with_name("transformers_common.py"), tmp_path / "test_common.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-rpfE", "--tb=line", "--rootdir=.", "test_common.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    passed, failed = defaultdict(set), defaultdict(set)
    for outcome, case, test in RESULT.findall(result.stdout):
        (passed if outcome == "PASSED" else failed)[case].add(test)
    cases = {case for found in (passed, failed) for case in found}
    assert len(cases) == len(FAMILIES) + len(STOCK), result.stdout[-3000:] + result.stderr[-3000:]
    worse = {}
    for case in sorted(cases - set(STOCK.values())):
        stock = next(name for kind, name in STOCK.items() if case.endswith(kind))
        assert len(passed[stock]) > 50
        found = failed[case] & passed[stock] - failed[stock]
        excepted = {test for name, test in EXCEPTIONS if case.endswith(name)} & (passed[case] | failed[case])
        assert excepted <= found, "an exception that is none"
        worse[case] = sorted(found - excepted)
    for case in sorted(cases):
        print(case, len(passed[case] - failed[case]), "passed", len(failed[case]), "failed", sorted(failed[case]))
    assert not any(worse.values()), worse
