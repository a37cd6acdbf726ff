"""Lint the code that goes to the Hub with transformers' own linter, but for what pyproject.toml exempts with a reason.

    python scripts/lint_payload.py

mlinter knows exemptions for models inside of transformers and comments beside the code, and no list of a project.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where mlinter needs it too
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("configuration", "modeling")


def main() -> int:
    exempt = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["payload-lint"]["exempt"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "findings.json"
        command = ["-m", "mlinter", "--no-progress", "--no-cache", "--output-json", str(report), *FOLDERS]
        process = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        if not report.is_file():
            raise SystemExit(process.stdout + process.stderr)
        findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    unused = set(exempt)
    wrong = 0
    for finding in findings:
        # the key is a rule, or a rule and a word of the message
        keys = [key for key in exempt if all(word in finding["message"] for word in key.split())]
        unused -= set(keys)
        if not keys:
            wrong += 1
            print(f"{finding['path']}:{finding['line']}: {finding['message']}")
    for key in sorted(unused):
        print(f"pyproject.toml: payload-lint exempts {key!r}, but nothing is found")
    return int(wrong > 0 or bool(unused))


if __name__ == "__main__":
    sys.exit(main())
