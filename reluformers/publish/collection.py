"""Adds a release to a collection of the Hub."""

import re

from huggingface_hub import HfApi

from .hub_errors import hub_errors

_SLUG = re.compile(r"[\w.-]+/[\w.-]+-[0-9a-f]{16,24}")


def add_to_collection(api: HfApi, collection: str, repo_id: str, *, private: bool = False) -> str:
    """Add a model to a collection, which is made if there is none of that title.

    Args:
        api: the client.
        collection: slug, as it stands in the address of a collection, OWNER/TITLE-ID; or the title of one that belongs
            to the owner of the model.
        repo_id: of the model, "ORG/NAME"; one that is there already stays.
        private: whether a new collection is private.

    Returns:
        Address of the collection.

    Raises:
        ValueError: the Hub cannot be reached or refuses.
    """
    with hub_errors(api, f"the collection {collection!r}"):
        slug = collection
        if not _SLUG.fullmatch(collection):
            owner = repo_id.partition("/")[0]
            slug = api.create_collection(collection, namespace=owner, private=private, exists_ok=True).slug
        return api.add_collection_item(slug, repo_id, "model", exists_ok=True).url
