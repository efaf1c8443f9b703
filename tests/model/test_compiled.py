"""An unwatched pass is one graph to the compiler: a watcher that is off breaks nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_examples import base, with_attention, with_block

from glassformer.model.attention import LinearAttentionSpec
from glassformer.model.block import PostNormSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec
from glassformer.model.mask import WindowSpec
from glassformer.model.norm import LayerNormSpec, RMSNormSpec
from glassformer.model.position import AlibiSpec, LearnedSpec, RotarySpec

SPECS = {
    "rotary, q/k norm, squared ReLU": with_attention(
        with_block(base(), feedforward=MLPSpec(hidden=24, activation="relu_squared")),
        position=RotarySpec(),
        qk_norm=RMSNormSpec(gain=False),
    ),
    "learned, LayerNorm, after": with_block(base(), norm=LayerNormSpec(), wiring=PostNormSpec()).replace(
        position=LearnedSpec(length=12)
    ),
    "ALiBi, window, gated": with_attention(
        with_block(base(), feedforward=GatedSpec(hidden=24)), position=AlibiSpec(), mask=WindowSpec(size=3)
    ),
    "linear, fading": with_block(base(), attention=LinearAttentionSpec(heads=4, decay=True)),
}


@pytest.mark.slow
def test_an_unwatched_pass_and_its_gradients_compile_without_a_graph_break():
    specs = json.dumps([spec.model_dump(mode="json") for spec in SPECS.values()])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "compiled.py")],
        input=specs,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == len(SPECS)
