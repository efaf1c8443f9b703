"""Run by test_compiled.py in a process of its own, where no shape check stands between the model and the compiler."""

import json
import sys

import torch

from glassformer.model import Step, TransformerSpec
from glassformer.spec import check

graphs = []


def backend(graph, inputs):
    graphs.append(sum(node.op == "call_function" or node.op == "call_method" for node in graph.graph.nodes))
    return graph


for text in json.load(sys.stdin):
    torch.manual_seed(0)
    torch.compiler.reset()
    graphs.clear()
    model = check(TransformerSpec, text).build()
    tokens = torch.randint(model.spec.vocabulary, (2, 7))

    def loss(tokens, model=model):
        return model(tokens, Step.whole(tokens)).logsumexp(-1).mean()

    plain = loss(tokens)
    plain.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)(tokens)
    compiled.backward()
    torch.testing.assert_close(compiled, plain)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert len(graphs) == 1, graphs
    print(json.dumps(graphs[0]))
