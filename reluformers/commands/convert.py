r"""Convert a model of transformers or timm to a model of this library, convert one back, or exchange an attention.

SOURCE is a MarianMT, BART, mBART, ViT or DeiT model, a Vision Transformer of timm, or a model of this library.
Without --preset the new model has softmax, and computes the same as SOURCE.

Any other model of transformers keeps its class, and gets the attention of --preset: see docs/any-model.md.

Examples:
    reluformers convert Helsinki-NLP/opus-mt-en-de opus-en-de
    reluformers convert Helsinki-NLP/opus-mt-en-de relu-en-de --preset reluformer --sites cross
    reluformers convert opus-en-de marian-en-de --back
    reluformers convert HuggingFaceTB/SmolLM2-135M smol-rela --preset rela-g --adapter
"""

import argparse
from pathlib import Path

from reluformers.configuration.configuration_attention import ATTENTION_PRESETS
from reluformers.configuration.configuration_seq2seq import Seq2SeqTransformerConfig
from reluformers.configuration.configuration_vision import VisionTransformerConfig
from reluformers.conversion.convert import convert, convert_back, exchange, keeps_its_class
from reluformers.data.checked_fields import read_as
from reluformers.training.checkpoints import check_model
from reluformers.training.yaml_files import read_fields


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("source", help="folder or Hub id of a saved model")
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument(
        "changes", nargs="*", default=[], metavar="FIELD=VALUE", help="field of the new configuration, as in a recipe"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--preset", choices=ATTENTION_PRESETS, help="attention that the new model gets")
    kind.add_argument("--back", action="store_true", help="convert a model of this library to a model of transformers")
    parser.add_argument(
        "--sites",
        nargs="+",
        metavar="SITE",
        help="where to exchange attention: encoder, decoder, cross, …, or names of modules, such as 'model.layers.*'",
    )
    parser.add_argument(
        "--adapter", action="store_true", help="write only the attention's parameters, and the id of SOURCE"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FOLDER if a command wrote it")


def run(options: argparse.Namespace) -> None:
    """Convert."""
    source = options.source
    folder = options.folder
    preset = options.preset
    sites = options.sites
    check_model(source)
    given = read_as(Seq2SeqTransformerConfig | VisionTransformerConfig, read_fields(options.changes, "FIELD=VALUE"))
    keeps_class = not options.back and (options.adapter or keeps_its_class(source))
    if given and (options.back or keeps_class):
        raise ValueError(f"FIELD=VALUE, here {', '.join(given)}, is of models that become one of ours")
    if preset is None and (sites or keeps_class):
        raise ValueError("give --preset: the attention that comes to --sites, or to a model that keeps its class")
    if options.back:
        model = convert_back(source, folder, overwrite=options.overwrite)
    elif keeps_class:
        model = exchange(source, folder, preset, sites, adapter=options.adapter, overwrite=options.overwrite)
    else:
        model = convert(source, folder, preset, sites, overwrite=options.overwrite, **given)
    print(f"{folder}: {type(model).__name__}, {model.num_parameters():,} parameters")
