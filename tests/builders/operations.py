"""Operations that a step dispatches, as launches on a GPU are counted where there is none."""

from torch.utils._python_dispatch import TorchDispatchMode


class CountOperations(TorchDispatchMode):
    """Collect the `names` of operations in a block that are no views."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        aliases = [returned.alias_info for returned in function._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):
            self.names.append(function._schema.name)
        return function(*arguments, **(keywords or {}))
