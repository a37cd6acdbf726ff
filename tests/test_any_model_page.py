"""The pieces of code in docs/any-model.md print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "any-model.md"


def outputs(text: str) -> list[tuple[str, str]]:
    """What the page says and what its code prints, piece by piece, in the working directory."""
    names, found = {}, []
    for code, said in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        found.append((said, printed.getvalue()))
    return found


def test_the_page_shows_what_its_code_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = outputs(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 3
    for said, printed in found:
        assert printed == said
