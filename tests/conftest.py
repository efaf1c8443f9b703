"""Every test runs with shapes and types checked: the axes that the model floor states hold for all callers."""

import jaxtyping

with jaxtyping.install_import_hook(["glassformer.model", "glassformer.ops"], "checked.checked"):
    import glassformer.model.watch
    from glassformer.model import TransformerSpec

# `points` names this type in quotes (importing it would be a circle); beartype looks the name up in the module.
glassformer.model.watch.TransformerSpec = TransformerSpec
