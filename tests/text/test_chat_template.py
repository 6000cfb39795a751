"""Templates run as transformers runs them, and reach nothing outside."""

import pytest

from engine.runtime.text.errors import ChatTemplateError
from engine.runtime.text.template import MAX_RENDERED, ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def render(source: str, messages=HI, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(messages)


def test_messages_special_tokens_and_the_generation_prompt_are_there():
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    assert render(source, bos_token="<s>") == "<s>user:hi;assistant:"


def test_blocks_leave_no_blank_lines():
    assert render("{% if true %}\n    {% set x = 1 %}\na{{ x }}\n{% endif %}\n") == "a1\n"


def test_what_transformers_offers_is_there():
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "hi"}]'
    assert render("{{ {'b': '<é>', 'a': 1} | tojson(indent=1, sort_keys=true) }}") == (
        '{\n "a": 1,\n "b": "<é>"\n}'
    )
    assert render(
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{i}}{% endfor %}"
    ) == ("01")
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% if tools is not none %}tools{% endif %}") == ""


def test_a_refusal_by_the_template_is_passed_on():
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ChatTemplateError, match=r"refuses these messages: roles must alternate$"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(ChatTemplateError, match="fails on these messages"):
        render(source)
    assert HI == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ nothing.at.all }}"])
def test_a_failing_template_is_a_template_error(source):
    with pytest.raises(ChatTemplateError, match="fails on these messages"):
        render(source)


def test_a_broken_template_is_named_as_such():
    with pytest.raises(ChatTemplateError, match="is not valid Jinja"):
        render("{% for %}")


def test_the_output_is_bounded():
    with pytest.raises(ChatTemplateError, match=f"longer than {MAX_RENDERED}"):
        render("{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}")


@pytest.mark.parametrize("role", ["", "a b", "user|>", "<|im_end|>", "x" * 65])
def test_roles_are_words(role):
    with pytest.raises(ChatTemplateError, match="role"):
        render("{{ '<|' + messages[0].role + '|>' }}", [{"role": role, "content": ""}])
