"""Chat messages to prompt text through the model's own template, in a sandbox. Refuses anything but text content."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qwenmtp.errors import InvalidRequest, ModelFormatError
from qwenmtp.text_files import TextFiles

if TYPE_CHECKING:
    import jinja2
    import jinja2.sandbox

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """A model's chat templates: the default one and named ones, compiled at first use.

    Args:
        files: The model folder's text files. chat_template.jinja is the default before tokenizer_config.json's.

    Attributes:
        names: Names of the templates, `default` among them unless the model has none.

    Raises:
        ModelFormatError: `chat_template` in tokenizer_config.json is neither text nor a list of named texts.
    """

    def __init__(self, files: TextFiles):
        self._sources = _sources(files)
        self._special = {name: text for name in _SPECIAL if (text := files.special_token(name)) is not None}
        self._compiled: dict[str, jinja2.Template] = {}
        self.names = tuple(self._sources)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """Prompt text of a conversation.

        Args:
            messages: Each with a `role`, and `content`: text, or `{"type": "text", "text": ...}` parts, which
                are joined. Other keys (`tool_calls`, `reasoning_content`, `name`) reach the template as they are.
            tools: JSON schemas of the tools on offer.
            add_generation_prompt: Whether to open the assistant's turn.
            template: Name of a template; None is `tool_use` when there are tools and such a template, else `default`.
            **variables: Further variables of the template, such as `enable_thinking=False`.

        Raises:
            InvalidRequest: A message is malformed, there is no such template, or the template refused or failed.
            ModelFormatError: The template does not compile.
        """
        import jinja2

        checked = _checked_messages(messages)
        if template is None:
            template = "tool_use" if tools and "tool_use" in self._sources else "default"
        compiled = self._template(template)
        context = {**self._special, **variables, "messages": checked, "tools": tools}
        try:
            return compiled.render({**context, "add_generation_prompt": add_generation_prompt})
        except jinja2.TemplateError as error:
            reason = error.message or type(error).__name__
        except Exception as error:  # template code runs on the caller's data: any exception is a fault of the two
            reason = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"[chat.render] the chat template refused: {reason}", details={"template": template})

    def _template(self, name: str) -> jinja2.Template:
        import jinja2

        if name not in self._sources:
            have = ", ".join(self._sources) or "none"
            raise InvalidRequest(
                f"[chat.render] the model has no chat template {name!r}, it has {have}", details={"template": name}
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self._sources[name])
            except jinja2.TemplateSyntaxError as error:
                raise ModelFormatError(
                    f"[chat.template] {name} line {error.lineno}: {error.message}", details={"template": name}
                ) from None
        return self._compiled[name]


def _sources(files: TextFiles) -> dict[str, str]:
    value = files.tokenizer_config.get("chat_template")
    if value is None:
        named: dict[str, Any] = {}
    elif isinstance(value, str):
        named = {"default": value}
    elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        named = {str(item.get("name")): item.get("template") for item in value}
    else:
        named = {"default": value}
    if files.chat_template is not None:
        named["default"] = files.chat_template
    for name, text in named.items():
        if not isinstance(text, str):
            raise ModelFormatError(f"[chat.template] {name} is a {type(text).__name__}, expected text")
    return named


def _checked_messages(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest("[chat.messages] expected a sequence of messages", details={"field": "messages"})
    if not messages:
        raise InvalidRequest("[chat.messages] no message, expected at least one", details={"field": "messages"})
    return [_checked_message(i, message) for i, message in enumerate(messages)]


def _checked_message(i: int, message: Any) -> dict[str, Any]:
    def wrong(field: str, expected: str) -> InvalidRequest:
        where = f"messages[{i}]{field}"
        return InvalidRequest(f"[chat.messages] {where}: expected {expected}", details={"field": where})

    if not isinstance(message, Mapping):
        raise wrong("", "an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise wrong(".role", "non-empty text")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        for part in content:
            if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                raise wrong(".content", 'text parts {"type": "text", "text": ...} only')
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise wrong(".content", "text or a list of text parts")
    return {**message, "content": content}


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """What Hugging Face templates rely on: block trimming, break and continue, tojson as plain JSON, two functions."""
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class GenerationTag(jinja2.ext.Extension):
        """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is its body."""

        tags = {"generation"}  # noqa: RUF012 - the base class declares it so

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """Refuses an unsafe attribute when it is looked up; jinja2 alone would print it as nothing."""

        def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
            raise jinja2.exceptions.SecurityError(
                f"access to attribute {attribute!r} of {type(obj).__name__} is unsafe"
            )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment
