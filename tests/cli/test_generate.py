"""`glassformer generate`, run as a user does."""

import io
import json
import sys

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from decoders import CONTEXT, build, decoder_spec
from glassformer.checkpoint import save_model
from glassformer.cli.complete import interactive, one_completion, printable, shown
from glassformer.cli.generate import generate
from glassformer.engine import Engine, SamplingParams
from glassformer.errors import CheckpointError, DataError, DeviceError, GlassformerError, RequestError, SpecError
from glassformer.model import Step
from glassformer.model.position import LearnedSpec, RotarySpec
from glassformer.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer("char", ["the quick brown fox jumps over the lazy dog, 今天天气真好\n"])
MODEL = build(decoder_spec(RotarySpec(), vocabulary=TOKENIZER.vocabulary))
ENGINE = Engine(MODEL, TOKENIZER)

app = typer.Typer()
app.command()(generate)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    save_model(folder, MODEL, TOKENIZER)
    return folder


def said(*arguments, text=None):
    result = CliRunner().invoke(
        app, list(map(str, arguments)), input=text, catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_json_is_what_the_engine_writes(model):
    options = ["--max-tokens", 12, "--seed", 4, "--top-p", 0.9, "--temperature", 0.7, "--ignore-eos"]
    answer = json.loads(said(model, "the quick", *options, "--json"))
    params = SamplingParams(max_tokens=12, seed=4, top_p=0.9, temperature=0.7, ignore_eos=True)
    (expected,) = ENGINE.generate(["the quick"], params)
    assert answer == {"text": expected.text, "tokens": list(expected.tokens), "finish_reason": "length"}


def test_the_json_has_probabilities_when_asked(model):
    options = ["--max-tokens", 3, "--temperature", 0, "--show-probabilities", 4]
    answer = json.loads(said(model, "the", *options, "--json"))
    row = torch.tensor([TOKENIZER.encode("the")])
    with torch.no_grad():
        best = MODEL(row, Step.whole(row))[0, -1].softmax(-1).topk(4)
    assert len(answer["probabilities"]) == 3
    first = answer["probabilities"][0]
    assert [entry["token"] for entry in first] == best.indices.tolist()
    assert [entry["probability"] for entry in first] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert [entry["text"] for entry in first] == [shown(TOKENIZER, token) for token in best.indices.tolist()]
    assert first[0]["token"] == answer["tokens"][0]


def test_the_text_follows_its_beginning_and_echo_can_be_left_out(model):
    options = ["--max-tokens", 8, "--seed", 1, "--ignore-eos"]
    text = json.loads(said(model, "the", *options, "--json"))["text"]
    assert said(model, "the", *options) == f"the{text}\n"
    assert said(model, "the", *options, "--no-echo") == f"{text}\n"


def test_the_beginning_comes_from_standard_input_or_a_file_to_the_last_character(model, tmp_path):
    options = ["--max-tokens", 6, "--seed", 1, "--json"]
    expected = said(model, "天气 \n", *options)
    assert said(model, "-", *options, text="天气 \n") == expected
    (tmp_path / "beginning.txt").write_text("天气 \n", encoding="utf-8")
    assert said(model, "--file", tmp_path / "beginning.txt", *options) == expected


def test_probabilities_are_a_table_with_percentages(model):
    page = said(model, "the", "--max-tokens", 2, "--temperature", 0, "--show-probabilities", 3)
    entries = json.loads(
        said(model, "the", *["--max-tokens", "2", "--temperature", "0", "--show-probabilities", "3", "--json"])
    )
    for row in entries["probabilities"]:
        listed = "  ".join(f"{entry['text']} {100 * entry['probability']:.1f} %" for entry in row)
        assert listed in page


def test_several_samples_are_those_of_following_seeds(model):
    options = ["--max-tokens", 6, "--json"]
    samples = json.loads(said(model, "the", *options, "--seed", 5, "--num-samples", 3))["samples"]
    singles = [json.loads(said(model, "the", *options, "--seed", seed)) for seed in (5, 6, 7)]
    assert samples == singles
    page = said(model, "the", "--max-tokens", 6, "--seed", 5, "--num-samples", 2)
    assert page.index("1 of 2") < page.index(singles[0]["text"]) < page.index("2 of 2") < page.index(singles[1]["text"])


def test_stop_may_be_given_again(model):
    options = ["--max-tokens", 20, "--seed", 2, "--ignore-eos", "--json"]
    text = json.loads(said(model, "the", *options))["text"]
    stopped = json.loads(said(model, "the", *options, "--stop", text[9:12], "--stop", text[4:6]))
    first = min(text.find(text[4:6]) + 2, text.find(text[9:12]) + 3)
    assert stopped["finish_reason"] == "stop"
    assert text.startswith(stopped["text"])
    assert len(stopped["text"]) < first
    assert text[4:6] not in stopped["text"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["the", "--temperature", "nan"], SpecError, "sampling: temperature: Input should be a finite number, got nan"),
        (["the", "--top-p", "1.5"], SpecError, "sampling: top_p: Input should be less than or equal to 1, got 1.5"),
        (["x" * (CONTEXT + 5)], RequestError, "the prompt has 53 tokens, the model's context holds 48"),
        (["the", "--device", "cuda:99"], DeviceError, "this machine has no device 'cuda:99'"),
        (["the", "--device", "warp"], DeviceError, "this machine has no device 'warp'"),
        ([], DataError, "expected PROMPT or --file, one of the two"),
        (["the", "--file", "x.txt"], DataError, "expected PROMPT or --file, one of the two"),
        (["--file", "missing.txt"], DataError, "missing.txt: can't read it: No such file or directory"),
        (["the", "--stop", ""], SpecError, "sampling: stop: an empty stop string would end every text at once"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_users_mistake_is_one_line(model, arguments, kind, message):
    result = CliRunner().invoke(app, [str(model), *arguments])
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


def test_a_model_that_is_missing_or_has_no_tokenizer_is_one_line(tmp_path):
    save_model(tmp_path / "bare", MODEL)
    for path, message in ((tmp_path / "bare", "has no tokenizer"), (tmp_path / "none", "none")):
        result = CliRunner().invoke(app, [str(path), "the"])
        assert isinstance(result.exception, CheckpointError)
        assert message in str(result.exception)


def test_standard_input_that_is_no_text_is_refused(model):
    result = CliRunner().invoke(app, [str(model), "-"], input=b"\xff\xfe\x00")
    assert isinstance(result.exception, DataError)
    assert "standard input: expected UTF-8 text; byte 0" in str(result.exception)


def test_bfloat16_writes_text_too(model):
    answer = json.loads(said(model, "the", "--max-tokens", 5, "--dtype", "bfloat16", "--ignore-eos", "--json"))
    assert len(answer["tokens"]) == 5


def test_help_has_an_example():
    assert "Example: glassformer generate" in said("--help")


def test_learned_positions_end_with_length(tmp_path):
    spec = decoder_spec(LearnedSpec(length=CONTEXT), vocabulary=TOKENIZER.vocabulary)
    save_model(tmp_path / "learned", build(spec), TOKENIZER)
    answer = json.loads(said(tmp_path / "learned", "the", "--max-tokens", 999, "--ignore-eos", "--json"))
    assert answer["finish_reason"] == "length"
    assert len(answer["tokens"]) == CONTEXT + 1 - 3


def test_a_terminal_is_never_given_control_characters():
    assert printable("a\x1b[31mb\x07\n\tc\x9b") == "a\\x1b[31mb\\x07\n\tc\\x9b"
    escape = next(token for token in range(TOKENIZER.vocabulary) if TOKENIZER.token_bytes(token) == b"\x1b")
    broken = next(token for token in range(TOKENIZER.vocabulary) if TOKENIZER.token_bytes(token) == b"\xe4")
    assert shown(TOKENIZER, escape) == "\\x1b"
    assert shown(TOKENIZER, broken) == "<E4>"
    assert shown(TOKENIZER, TOKENIZER.encode(" ")[0]) == "␣"
    assert shown(TOKENIZER, TOKENIZER.encode("\n")[0]) == "⏎"
    assert shown(TOKENIZER, TOKENIZER.eos) == "<|endoftext|>"


def page():
    return Console(file=io.StringIO(), width=200, highlight=False)


def test_one_completion_prints_the_text_and_its_table():
    console = page()
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    completion = one_completion(ENGINE, "the", params, candidates=3, console=console)
    assert completion == ENGINE.generate(["the"], params.replace(probabilities=3))[0]
    printed = console.file.getvalue()
    assert f"the{printable(completion.text)}" in printed
    for token, p in completion.top[-1]:
        assert f"{shown(TOKENIZER, token)} {100 * p:.1f} %" in printed


def test_interactively_enter_accepts_a_number_picks_and_text_is_added():
    greedy = SamplingParams(temperature=0, ignore_eos=True)
    answers = iter(["", "3", "dog ", "q"])
    text = interactive(ENGINE, "the", greedy, candidates=4, console=page(), read=lambda _: next(answers))
    tokens = TOKENIZER.encode("the")
    tokens += ENGINE.generate([tokens], greedy.replace(max_tokens=1))[0].tokens
    (after,) = ENGINE.generate([tokens], greedy.replace(max_tokens=1, probabilities=4))
    tokens.append(after.top[0][2][0])
    assert text == TOKENIZER.decode(tokens) + "dog "


def test_interactively_each_choice_is_shown_with_its_probability_and_the_end_of_input_ends():
    console, questions = page(), []

    def read(question):
        questions.append(question)
        if len(questions) == 2:
            raise EOFError
        return "the"

    assert interactive(ENGINE, None, SamplingParams(temperature=0), candidates=2, console=console, read=read) == "the"
    (event,) = ENGINE.stream("the", SamplingParams(max_tokens=1, temperature=0, probabilities=2))
    for number, (token, p) in enumerate(event.top, start=1):
        assert any(
            line.split()[:4] == [str(number), shown(TOKENIZER, token), f"{100 * p:.1f}", "%"]
            for line in console.file.getvalue().splitlines()
        )


def test_interactively_a_text_longer_than_the_context_goes_on():
    answers = iter(["", "", "q"])
    text = interactive(
        ENGINE, "x" * (CONTEXT + 9), SamplingParams(seed=1), console=page(), read=lambda _: next(answers)
    )
    assert text.startswith("x" * (CONTEXT + 9))


def test_mistakes_are_of_the_one_hierarchy():
    assert all(issubclass(kind, GlassformerError) for kind in (SpecError, RequestError, DeviceError, DataError))
    assert "glassformer.cli.generate" in sys.modules
