"""The task of image classification, for commands, cards and the Hub."""

from transformers import AutoModelForImageClassification

from reluformers.papers import PAPERS
from reluformers.training.task import Task

from . import card
from .processing import example_pixels
from .recipe import ImageRecipe
from .run import train_image_classification
from .scoring import ImageScorer

TASK = Task(
    name=ImageRecipe.task,
    title="Image Classification",
    auto_class=AutoModelForImageClassification,
    recipe_class=ImageRecipe,
    train=train_image_classification,
    scorer=ImageScorer,
    main_metric="accuracy",
    example_inputs=example_pixels,
    example="picture.png",
    architecture=PAPERS["dosovitskiy2020image"],
    speeds=("images_per_second",),
    speed_unit="images/s",
    card=card,
)
