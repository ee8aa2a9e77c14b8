"""Chat templates: such as publishers ship, written for these tests, and hostile ones."""

from __future__ import annotations

from collections.abc import Mapping

LLAMA_LIKE = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Cutting Knowledge Date: December 2023\\n' }}
{{- system_message }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
QWEN_LIKE = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == 'user' and not message.content.startswith('<tool>') %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == 'user') or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
MISTRAL_LIKE = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] in ["assistant", "model"] %}
        {{- " " ~ message["content"] ~ eos_token }}
    {%- endif %}
{%- endfor %}
"""
REAL: Mapping[str, str] = {"llama": LLAMA_LIKE, "qwen": QWEN_LIKE, "mistral": MISTRAL_LIKE}

_DOUBLED = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = DOUBLE %}{% endfor %}END"


def _doubled(start: str, double: str, end: str = "{{ ns.x }}") -> str:
    return _DOUBLED.replace("START", start).replace("DOUBLE", double).replace("END", end)


HOSTILE: Mapping[str, str] = {
    "product": "{{ 'a' * 2000000000 }}",
    "list product": "{{ ([0] * 2000000000) | length }}",
    "power": "{{ 10 ** 1000000000 }}",
    "sum of texts": _doubled("'ab'", "ns.x + ns.x"),
    "shared lists as JSON": _doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "huge range": "{{ range(10 ** 12) | length }}",
    "recursive macro": (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": ("{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}"),
    "percent with a star": "{{ '%*d' % (2000000000, 1) }}",
    "replace folded": "{{ 'aaaaaaaaaa'" + " | replace('a', 'aaaaaaaaaaaaaaaa')" * 12 + " }}",
    "join by a separator": "{% set s = 'a' * 1000000 %}{{ range(5000) | join(s) }}",
    "expandtabs": "{{ '\\t'.expandtabs(2000000000) }}",
    "format method": "{{ '{:2000000000}'.format(1) }}",
    "method in a list": "{{ ['x'.ljust] | map('string') | list }}",
    "JSON indent": "{{ range(9999) | list | tojson(indent=1000000) }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "a search in every turn": (
        "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in s %}{% endif %}{% endfor %}"
    ),
    "a sort in every turn": "{% for i in range(99999) %}{% set x = range(999) | sort %}{% endfor %}",
    "deep brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep loops": "{% for a in messages %}" * 60 + "{% endfor %}" * 60,
    "long chain": "{{ 1" + " + 1" * 30_000 + " }}",
    "output in every turn": "{% for i in range(99999) %}{{ 'abcdefghijklmnop' * 64 }}{% endfor %}",
    "a template of its own": "{% include 'x' %}",
    "format with other digits": "{{ '{:٩٩٩٩٩٩٩٩٩}'.format(1) }}",
    "a method in every turn": (
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% if s | upper %}{% endif %}{% endfor %}{% endfor %}"
    ),
}
"""By what they do: each would take minutes or gigabytes, is endless, or differs from run to run."""
