"""A training run under FSDP2 on processors, for `torchrun`: FOLDER RECIPE_SECTIONS.json RESUME.

Accelerate shards on accelerators alone; here it is told that the processes have one each. Everything behind it is as
on a cluster.
"""

import json
import sys

from accelerate import PartialState
from accelerate.utils import DistributedType

from reluformers.errors import run_main
from reluformers.translation.recipe import TranslationRecipe
from reluformers.translation.run import train_translation


def as_accelerators(init):
    def init_and_say(self, *arguments, **options):
        init(self, *arguments, **options)
        self._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    return init_and_say


def main() -> None:
    folder, sections, resume = sys.argv[1:]
    PartialState.__init__ = as_accelerators(PartialState.__init__)
    recipe = TranslationRecipe.from_dict(json.loads(sections))
    train_translation(recipe, folder, resume=resume or None, report=print)
    PartialState().destroy_process_group()


if __name__ == "__main__":
    run_main(main)
