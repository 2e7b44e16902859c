"""chat.py: messages to prompt text, templates of every source, and templates that misbehave."""

import datetime
from pathlib import Path

import pytest

from qwenmtp import chat
from qwenmtp.chat import ChatTemplate
from qwenmtp.errors import InvalidRequest, ModelFormatError
from qwenmtp.text_files import TextFiles

DEMO = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
HELLO = [{"role": "user", "content": "hi"}]


def chat_template(source: str | None, **config: object) -> ChatTemplate:
    return ChatTemplate(
        TextFiles(
            folder=Path("model"),
            tokenizer=b"",
            tokenizer_config=config,
            generation_config={},
            runtime={},
            chat_template=source,
        )
    )


def rendered(source: str, **arguments: object) -> str:
    return chat_template(source).render(arguments.pop("messages", HELLO), **arguments)


def test_the_demo_template() -> None:
    messages = [{"role": "system", "content": "be brief"}, *HELLO]
    turns = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert rendered(DEMO, messages=messages) == turns + "<|im_start|>assistant\n"
    assert rendered(DEMO, messages=messages, add_generation_prompt=False) == turns


@pytest.mark.parametrize(
    ("source", "config", "expected"),
    [
        ("file", {}, "file"),
        (None, {"chat_template": "config"}, "config"),
        ("file", {"chat_template": "config"}, "file"),
        (None, {"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}, "a"),
        ("file", {"chat_template": [{"name": "default", "template": "a"}]}, "file"),
        ("file", {"chat_template": None}, "file"),
    ],
)
def test_where_the_default_template_comes_from(source: str | None, config: dict, expected: str) -> None:
    assert chat_template(source, **config).render(HELLO) == expected


def test_named_templates() -> None:
    named = [{"name": n, "template": n} for n in ("default", "tool_use", "rag")]
    template = chat_template(None, chat_template=named)
    assert template.names == ("default", "tool_use", "rag")
    assert template.render(HELLO) == "default"
    assert template.render(HELLO, tools=[{"name": "f"}]) == "tool_use"
    assert template.render(HELLO, tools=[]) == "default"
    assert template.render(HELLO, template="rag", tools=[{"name": "f"}]) == "rag"
    assert chat_template("only", chat_template=None).render(HELLO, tools=[{"name": "f"}]) == "only"


def test_a_model_without_templates_says_so() -> None:
    with pytest.raises(InvalidRequest, match="no chat template 'default', it has none"):
        chat_template(None).render(HELLO)
    with pytest.raises(InvalidRequest, match="no chat template 'rag', it has default") as caught:
        chat_template("x").render(HELLO, template="rag")
    assert caught.value.details == {"template": "rag"}


@pytest.mark.parametrize(
    "value", [5, {"default": "x"}, ["x"], [{"name": "default"}], [{"name": "default", "template": 5}]]
)
def test_a_template_of_another_kind_is_the_models_fault(value: object) -> None:
    with pytest.raises(ModelFormatError, match=r"^\[chat.template\] default is a "):
        chat_template(None, chat_template=value)


def test_a_template_that_does_not_compile_is_the_models_fault() -> None:
    template = chat_template("a\n{% if %}")
    with pytest.raises(ModelFormatError, match=r"^\[chat.template\] default line 2: "):
        template.render(HELLO)


def test_special_tokens_tools_and_further_variables_reach_the_template() -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ tools[0].name }}|{{ enable_thinking }}"
    template = chat_template(source, bos_token="<b>", eos_token={"content": "<e>"}, pad_token=None)
    assert template.render(HELLO, tools=[{"name": "f"}], enable_thinking=False) == "<b>|<e>|False|f|False"
    assert template.render(HELLO, tools=[{"name": "f"}], bos_token="<x>", enable_thinking=1) == "<x>|<e>|False|f|1"


def test_blocks_are_trimmed_and_loops_can_break() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.index == 2 %}\n{% break %}\n  {% endif %}\n{{ m.content }}\n{% endfor %}"
    )
    assert rendered(source, messages=HELLO * 3) == "hi\n"


def test_tojson_is_plain_json() -> None:
    messages = [{"role": "user", "content": "<é&'>"}]
    assert rendered("{{ messages[0].content | tojson }}", messages=messages) == '"<é&\'>"'
    assert rendered("{{ {'b': 1, 'a': [1]} | tojson }}") == '{"b": 1, "a": [1]}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }}") == '{"b":1,"a":2}'
    assert rendered("{{ 'é' | tojson(ensure_ascii=true) }}") == '"\\u00e9"'


def test_text_is_not_html_escaped() -> None:
    assert rendered("{{ messages[0].content }}", messages=[{"role": "user", "content": "<a & b>"}]) == "<a & b>"


def test_strftime_now_is_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime(2026, 11, 30, 17, 5, tzinfo=tz)

    monkeypatch.setattr(chat.datetime, "datetime", Clock)
    assert rendered("{{ strftime_now('%d %b %Y %H:%M') }}") == "30 Nov 2026 17:05"


def test_the_generation_tag_is_its_body() -> None:
    assert rendered("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__ }}", "attribute '__class__' of str is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "attribute '__class__' of str is unsafe"),
        ("{{ raise_exception.__globals__ }}", "attribute '__globals__' of function"),
        ("{{ ''['__class__'] }}", "attribute '__class__' of str is unsafe"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].update({'a': 1}) }}", "update"),
        ("{{ '%s'.__init__ }}", "__init__"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
        ("{% include 'other' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_template_that_misbehaves_is_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[chat.render\] the chat template refused: ") as caught:
        rendered(source)
    assert reason in str(caught.value)
    assert caught.value.details == {"template": "default"}


def test_a_refusal_keeps_no_frames_of_the_template() -> None:
    with pytest.raises(InvalidRequest) as caught:
        rendered("{{ 1 / 0 }}")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_content_parts_are_joined_and_other_keys_kept() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts, "name": "n"}]
    assert rendered("{{ messages[0].content }}{{ messages[0].name }}", messages=messages) == "abn"
    assert messages == [{"role": "user", "content": parts, "name": "n"}]


def test_a_call_of_tools_may_have_no_content() -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}]
    source = "{{ messages[0].content is string }}{{ messages[0].tool_calls[0].function.name }}"
    assert rendered(source, messages=[{"role": "assistant", "tool_calls": calls}]) == "Truef"
    assert rendered(source, messages=[{"role": "assistant", "content": None, "tool_calls": calls}]) == "Truef"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ({"role": "user", "content": "hi"}, "messages"),
        (None, "messages"),
        (iter(HELLO), "messages"),
        ([*HELLO, "hi"], "messages[1]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "", "content": "hi"}], "messages[0].role"),
        ([{"role": 5, "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": b"hi"}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image", "text": "x"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ],
)
def test_a_malformed_message_is_named(messages: object, field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[chat.messages\] ") as caught:
        rendered("{{ messages }}", messages=messages)
    assert caught.value.details == {"field": field}
