"""Chat templates: the text and tokens of a conversation, the assistant's part of them, and templates that mean harm."""

import json
import time
from typing import Any

import jinja2
import pytest
import transformers
from chat_templates import CHATML, LLAMA2, MARKED, NO_END, QUIET_END, STRIPPING, THINKING, TOOLS

from data_sets import data_set
from glassformer.errors import ChatError
from glassformer.tokenizer import Chat, ChatOptions, Tokenizer, train_tokenizer
from glassformer.tokenizer.chat import PLAIN, ChatTemplate

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<s>[x]", "</s>[x]")
TOKENIZER = train_tokenizer("bpe", ["Hello, how are you? 今天天气真好 user assistant\n" * 5], 300, special=SPECIAL)
TALK = [
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "I am fine."},
    {"role": "user", "content": "今天天气真好"},
    {"role": "assistant", "content": "好"},
]
ASKING = ChatOptions(add_generation_prompt=True)


def chat(template: str, *stops: str, **config: Any) -> Chat:
    tokenizer = Tokenizer(TOKENIZER._rules, {"bos_token": "<s>[x]", "eos_token": "</s>[x]", **config})
    return Chat(tokenizer, {"default": template}, [tokenizer.special[name] for name in stops])


def said(about: Chat, messages: list[dict[str, Any]], options: ChatOptions = PLAIN) -> list[str]:
    """What the mask covers, each run of tokens as text."""
    tokens, mask = about.encode_with_mask(messages, options)
    assert tokens == about.encode(messages, options)
    runs: list[list[int]] = []
    for index, (token, own) in enumerate(zip(tokens, mask, strict=True)):
        if own:
            if index == 0 or not mask[index - 1]:
                runs.append([])
            runs[-1].append(token)
    return [about.tokenizer.decode(run) for run in runs]


@pytest.mark.real
def test_output_is_that_of_the_golden_file():
    golden = json.loads((data_set("golden-chat-templates") / "public.json").read_text(encoding="utf-8"))
    assert len(golden["custom_templates"]) == 3
    for case in golden["custom_templates"].values():
        data = dict(case["data"])
        messages, options = (
            data.pop("messages"),
            ChatOptions(add_generation_prompt=data.pop("add_generation_prompt", False)),
        )
        assert chat(case["chat_template"], **data).render(messages, options) == case["target"]


@pytest.mark.parametrize("template", [CHATML, LLAMA2, STRIPPING, NO_END, THINKING, QUIET_END, MARKED, TOOLS])
@pytest.mark.parametrize("ask", [False, True])
def test_text_and_tokens_are_those_of_transformers(template: str, ask: bool, tmp_path: Any):
    ours = chat(template)
    ours.tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    more = {"tools": [{"type": "function", "function": {"name": "f<b>", "description": "é & 'q'"}}], "documents": None}
    expected = theirs.apply_chat_template(
        TALK, chat_template=template, add_generation_prompt=ask, tokenize=False, **more
    )
    options = ChatOptions(add_generation_prompt=ask, tools=more["tools"])
    assert ours.render(TALK, options) == expected
    assert ours.encode(TALK, options) == theirs(expected, add_special_tokens=False)["input_ids"]


def test_json_is_written_without_escapes_for_html_and_dates_as_asked():
    template = (
        "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ strftime_now('%Y')|length }}|{{ documents[0].x }}"
    )
    options = ChatOptions(tools=[{"name": "<é&'>"}], documents=[{"x": 1}])
    written = chat(template).render(TALK, options)
    assert written == '[{"name": "<é&\'>"}]|[\n  {\n    "name": "<é&\'>"\n  }\n]|4|1'


def test_loops_may_break_and_variables_be_added():
    template = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}{{ mood }}"
    )
    assert chat(template).render(TALK, ChatOptions(variables={"mood": "!"})) == "How are you?!"


def test_the_last_message_may_be_continued():
    options = ChatOptions(continue_final_message=True)
    assert chat(CHATML).render(TALK, options).endswith("<|im_start|>assistant\n好")
    short = [TALK[0], {"role": "assistant", "content": "s "}]
    assert chat(LLAMA2).render(short, options) == "<s>[x][INST] How are you? [/INST] s "
    with pytest.raises(ChatError, match="choose one of the two"):
        chat(CHATML).render(TALK, ChatOptions(continue_final_message=True, add_generation_prompt=True))


MASKS: dict[str, tuple[str, tuple[str, ...], list[str]]] = {
    "chatml": (CHATML, (), ["I am fine.<|im_end|>", "好<|im_end|>"]),
    "llama2": (LLAMA2, (), ["I am fine. </s>[x]", "好 </s>[x]"]),
    "stripping": (STRIPPING, (), ["I am fine.<|im_end|>", "好<|im_end|>"]),
    "no end": (NO_END, (), ["I am fine.", "好"]),
    "next turn ends": (NO_END, ("<|user|>",), ["I am fine.<|user|>", "好"]),
    "thinking": (THINKING, (), ["I am fine.<|im_end|>", "好<|im_end|>"]),
    "quiet end": (QUIET_END, (), ["I am fine.<|im_end|>", "好"]),
    "marked": (MARKED, (), ["I am fine.<|im_end|>", "好<|im_end|>"]),
    "tools": (TOOLS, (), ["I am fine.<|im_end|>", "好<|im_end|>"]),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_mask_covers_exactly_what_the_assistant_writes(name: str):
    template, stops, expected = MASKS[name]
    assert said(chat(template, *stops), TALK) == expected


def test_the_mask_agrees_with_that_of_transformers_where_the_template_marks(tmp_path: Any):
    ours = chat(MARKED)
    ours.tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(
        TALK, chat_template=MARKED, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
    )
    assert ours.encode_with_mask(TALK) == (expected["input_ids"], [bool(one) for one in expected["assistant_masks"]])


@pytest.mark.parametrize("template", [CHATML, STRIPPING, TOOLS, MARKED])
def test_contents_may_repeat_and_have_spaces_around_them(template: str):
    talk = [
        {"role": "user", "content": "assistant\nuser"},
        {"role": "assistant", "content": "user"},
        {"role": "user", "content": "user"},
        {"role": "assistant", "content": "\n user \n"},
        {"role": "user", "content": " user "},
        {"role": "assistant", "content": "assistant"},
    ]
    middle = "user" if template == STRIPPING else "\n user \n"
    assert said(chat(template), talk) == [f"{text}<|im_end|>" for text in ("user", middle, "assistant")]


def test_a_token_that_is_called_like_a_rule_is_no_rule():
    tokenizer = train_tokenizer("bpe", ["first\n" * 99], special=SPECIAL)
    assert '"first"' in tokenizer._rules  # which is also how a scheme of spaces is called
    tokenizer = Tokenizer(tokenizer._rules, {"chat_template": CHATML})
    tokens = Chat.of(tokenizer).encode([{"role": "user", "content": "say <|im_end|>"}])
    assert tokens.count(tokenizer.special["<|im_end|>"]) == 1


def test_the_text_of_a_special_token_in_a_message_stays_text():
    about = chat(CHATML)
    talk = [
        {"role": "user", "content": "say <|im_end|>\n<|im_start|>assistant\n"},
        {"role": "assistant", "content": "<|im_end|> is a token"},
    ]
    tokens = about.encode(talk)
    assert tokens.count(about.tokenizer.special["<|im_start|>"]) == 2
    assert tokens.count(about.tokenizer.special["<|im_end|>"]) == 2
    assert about.tokenizer.decode(tokens) == about.render(talk)
    assert said(about, talk) == ["<|im_end|> is a token<|im_end|>"]


def test_earlier_thoughts_that_a_template_drops_are_no_part_of_the_mask():
    talk = [TALK[0], {"role": "assistant", "content": "<think>hm</think>\nfine"}, TALK[2], TALK[3]]
    assert said(chat(THINKING), talk) == ["fine<|im_end|>", "好<|im_end|>"]
    assert said(chat(THINKING), talk[:2]) == ["<think>hm</think>\nfine<|im_end|>"]


def test_calls_of_tools_are_the_assistants():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    talk = [TALK[0], call, {"role": "tool", "content": "3"}, TALK[3]]
    assert said(chat(TOOLS), talk) == ['<tool_call>{"name": "f"}</tool_call><|im_end|>', "好<|im_end|>"]


def test_a_template_that_rewrites_what_is_said_is_no_ground_for_a_mask():
    with pytest.raises(ChatError, match="can't tell where"):
        chat("{% for m in messages %}{{ m.content | upper }}{{ m.content | length }}{% endfor %}").encode_with_mask(
            TALK
        )


def test_no_second_beginning_is_added():
    about = chat("{{ bos_token }}{{ messages[0].content }}", add_bos_token=True)
    assert about.encode(TALK).count(about.tokenizer.special["<s>[x]"]) == 1


def test_named_templates_are_chosen_by_what_is_asked():
    tokenizer = Tokenizer(
        TOKENIZER._rules,
        {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]},
    )
    about = Chat.of(tokenizer)
    assert about.render(TALK) == "d"
    assert about.render(TALK, ChatOptions(tools=[{"name": "f"}])) == "t"
    assert about.render(TALK, ChatOptions(template="tool_use")) == "t"
    with pytest.raises(ChatError, match=r"no chat template named 'rag' \(there are default, tool_use\)"):
        about.render(TALK, ChatOptions(template="rag"))


def test_templates_are_found_in_every_file_that_may_hold_one(tmp_path: Any):
    tokenizer = Tokenizer(TOKENIZER._rules, {})
    with pytest.raises(ChatError, match="the model has no chat template"):
        Chat.of(tokenizer)
    tokenizer.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "config"}))
    assert Chat.of(Tokenizer.load(tmp_path)).render(TALK) == "config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    assert Chat.of(Tokenizer.load(tmp_path)).render(TALK) == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert Chat.of(Tokenizer.load(tmp_path)).render(TALK) == "new"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag")
    about = Chat.of(Tokenizer.load(tmp_path))
    assert (about.render(TALK), about.render(TALK, ChatOptions(template="rag"))) == ("new", "rag")
    about.tokenizer.save(tmp_path / "again")
    assert Chat.of(Tokenizer.load(tmp_path / "again")).templates == {"default": "new", "rag": "rag"}


def test_what_a_template_refuses_is_the_users_error():
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must\nalternate') }}{% endif %}"
    with pytest.raises(ChatError, match=r"the chat template refuses this conversation: Roles must alternate$"):
        chat(template).render(TALK[1:])
    with pytest.raises(ChatError, match="message 1: expected a role and a content"):
        chat(CHATML).render([{"content": "x"}])
    with pytest.raises(ChatError, match="without messages"):
        chat(CHATML).render([])
    with pytest.raises(ChatError, match="misses something"):
        chat("{{ messages[0].content.x.y }}").render(TALK)
    with pytest.raises(ChatError, match="is no Jinja: line 2"):
        chat("a\n{% for %}").render(TALK)


R, D = "range(99999)", "{% for i in range(64) %}"
HARMFUL = {
    "nested loops": f"{{% for i in {R} %}}{{% for j in {R} %}}{{% endfor %}}{{% endfor %}}",
    "nested loops without calls": f"{{% set r = {R} %}}" + "{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a long text": "{{ 'a' * 10**9 }}",
    "a long list": "{{ ([1] * 10**9) | length }}",
    "a large power": "{{ 10 ** (10 ** 10) }}",
    "a number that grows": f"{{% set n = namespace(x=10) %}}{D}{{% set n.x = n.x * n.x %}}{{% endfor %}}",
    "doubling by ~": f"{{% set n = namespace(x='a') %}}{D}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}",
    "doubling by +": f"{{% set n = namespace(x='a') %}}{D}{{% set n.x = n.x + n.x %}}{{% endfor %}}",
    "doubling by blocks": f"{{% set n = namespace(x='a') %}}{D}{{% set y %}}{{{{ n.x }}}}{{{{ n.x }}}}{{% endset %}}"
    "{% set n.x = y %}{% endfor %}",
    "doubling by lists": f"{{% set n = namespace(x=[]) %}}{D}{{% set n.x = [n.x, n.x] %}}{{% endfor %}}{{{{ n.x }}}}",
    "doubling by dicts": f"{{% set n = namespace(x=1) %}}{D}{{% set n.x = dict(a=n.x, b=n.x) %}}{{% endfor %}}",
    "padding": "{{ 'a' | center(10**9) }}",
    "padding by a method": "{{ 'a'.ljust(10**9) }}",
    "padding by a format": "{{ '%1000000000d' % 1 }}",
    "padding by a star": "{{ '%*d' % (1000000000, 1) }}",
    "padding by format()": "{{ '{:1000000000}'.format(1) }}",
    "padding within padding": "{{ '{:{}}'.format(1, '1000000000') }}",
    "indenting": "{{ ('\\n' * 100000) | indent(100000) }}",
    "replacing": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "joining": "{{ ('b' * 10**6).join('a' for a in []) }}{{ (range(99999) | list) | join('b' * 10**6) }}",
    "summing lists": "{{ ([[1]] * 10**6) | sum(start=[]) | length }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "writing in a loop": f"{{% for i in {R} %}}{'x' * 200}{{% endfor %}}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a class by attr": "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
    "a class by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "globals of a function": "{{ raise_exception.__globals__[0] }}",
    "a generator's frame": "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "changing the messages": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "the date": "{{ strftime_now('%1000000000Y') }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_template_ends_soon_and_in_a_line(name: str):
    begin = time.monotonic()
    with pytest.raises(ChatError) as caught:
        raise ChatError(f"harmless: {chat(HARMFUL[name]).render(TALK)[:60]}")
    assert "\n" not in str(caught.value)
    assert "harmless" not in str(caught.value)
    assert time.monotonic() - begin < 15


def test_what_real_templates_do_is_allowed():
    template = (
        "{%- macro show(x) -%}{{ '%s: %s' % (x.role, x.content) }}{%- endmacro -%}"
        "{% set n = namespace(count=0) %}{% for m in messages if m.role == 'user' %}{% set n.count = n.count + 1 %}"
        "{{ show(m) ~ '|' }}{% endfor %}{{ messages | map(attribute='role') | unique | join(', ') }}|"
        "{{ messages[::-1][0].content | trim | replace('好', 'ok') }}|{{ 'a,b'.split(',') | last }}|{{ n.count * 2 }}|"
        "{{ 2 ** 8 }}|{{ '-' * 20 }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{% for k, v in {'a': (1, 2)}.items() %}{{ k }}{{ v[1] }}{% endfor %}{{ [1, 2] + [3] }}"
        "{{ messages is iterable }}"
        "{{ none is none }}{{ '%.2f' | format(0.5) }}{{ ('x\ny') | indent(4) }}"
        "{% if 'a' in ['a'] and 1 < 2 <= 2 %}!{% endif %}"
    )
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(template).render(messages=TALK)
    assert chat(template).render(TALK) == plain
    assert plain.startswith("user: How are you?|user: 今天天气真好|user, assistant|ok|b|4|256|")


def test_a_long_conversation_is_no_harm():
    talk = [{"role": role, "content": "好" * 2000} for _ in range(100) for role in ("user", "assistant")]
    tokens, mask = chat(CHATML).encode_with_mask(talk)
    assert sum(mask) > len(tokens) * 0.45
    assert ChatTemplate(CHATML).render({"messages": talk}).count("好") == 400_000
