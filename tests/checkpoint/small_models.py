"""Small models with every weight drawn at random, biases and gains too: nothing is hidden by a zero or a one."""

import torch
from torch import Tensor

from glassformer.model import Step, Transformer, TransformerSpec
from glassformer.model.recipes import gpt2, llama


def random_model(spec: TransformerSpec, seed: int = 0) -> Transformer:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = spec.build().eval()
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model


def tokens_for(spec: TransformerSpec) -> Tensor:
    return torch.randint(spec.vocabulary, (2, spec.context), generator=torch.Generator().manual_seed(1))


def logits_of(model: Transformer, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens, Step.whole(tokens))


def small_gpt2(**changes) -> TransformerSpec:
    return gpt2(**({"vocabulary": 97, "layers": 2, "width": 32, "heads": 4, "context": 24} | changes))


def small_llama(**changes) -> TransformerSpec:
    return llama(**({"vocabulary": 97, "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "context": 24} | changes))
