"""The commands of `reluformers`, a file each."""

import argparse
import re

from reluformers.errors import UserError

SECTION_CHANGE = re.compile(r"\w+(\.\w+)+=.*", re.DOTALL)  # section.key=value
FIELD_CHANGE = re.compile(r"\w+(\.\w+)*=.*", re.DOTALL)  # field=value


def take_changes(options: argparse.Namespace, changes: str, form: re.Pattern, *lists: str) -> None:
    """Move changes from behind an option of several values to the list that they are meant for.

    `--seeds 1 2 data.train=FILE` has argparse think that the file is a seed.

    Args:
        options: of a command.
        changes: name of the list of changes.
        form: of a change.
        lists: names of the options of several values, none of which are of that form.

    Raises:
        UserError: there is nothing but changes behind such an option.
    """
    for name in lists:
        values = getattr(options, name) or []
        taken = [text for text in values if form.fullmatch(text)]
        if taken:
            if len(taken) == len(values):
                raise UserError(f"--{name} is followed by {taken[0]} and by no value of its own")
            setattr(options, name, [text for text in values if text not in taken])
            setattr(options, changes, [*getattr(options, changes), *taken])
