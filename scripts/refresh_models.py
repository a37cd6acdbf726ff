"""Write the code and the answers of the models in models/ anew, after a change of configuration/ or modeling/.

    python scripts/refresh_models.py

Weights, cards and tokenizers stay; it fails where a model no longer gives the answers stored in its check.json.
"""

import sys
from pathlib import Path

from transformers import AutoConfig

from reluformers.errors import run_main
from reluformers.files import read_json, write_json
from reluformers.publish.folder_check import check_folder
from reluformers.saved_code.registry import save_payload

MODELS = Path(__file__).resolve().parents[1] / "models"


def main() -> None:
    for path in sorted(MODELS.glob("*/config.json")):
        folder = path.parent
        config = AutoConfig.from_pretrained(path.parent, trust_remote_code=False)
        for code in folder.glob("*.py"):  # A file that the code no longer has must not stay.
            code.unlink()
        save_payload(config, folder)
        names = {name: getattr(config, name) for name in ("auto_map", "custom_pipelines") if hasattr(config, name)}
        write_json(path, read_json(path) | names)
        check = check_folder(folder, store=True)
        print(f"{folder.name}: logits of the folder's code differ from the library's by {check.difference:.1e}")


if __name__ == "__main__":
    sys.exit(run_main(main))
