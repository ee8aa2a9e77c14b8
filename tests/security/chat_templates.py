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
    "product at the left": "{{ 2000000000 * 'a' }}",
    "list product": "{{ ([0] * 2000000000) | length }}",
    "product of a product": "{{ ('a' * 100000) * 100000 }}",
    "power": "{{ 10 ** 1000000000 }}",
    "long product": _doubled("3", "ns.x * ns.x"),
    "long power": "{% set n = 2 ** 16000 %}{{ n ** n }}",
    "sum of texts": _doubled("'ab'", "ns.x + ns.x"),
    "concatenation": _doubled("'ab'", "ns.x ~ ns.x"),
    "sum of lists": _doubled("[1]", "ns.x + ns.x"),
    "shared lists": _doubled("[1]", "[ns.x, ns.x]"),
    "shared lists compared": _doubled("[1]", "[ns.x, ns.x]", "{{ ns.x == [ns.x] }}"),
    "shared tuples": _doubled("(1,)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "shared dicts": _doubled("1", "{'a': ns.x, 'b': ns.x}"),
    "dicts by name": _doubled("1", "dict(a=ns.x, b=ns.x)"),
    "shared namespaces": _doubled("1", "namespace(a=ns.x, b=ns.x)"),
    "namespaces in lists": _doubled("1", "[namespace(a=ns.x, b=ns.x)]"),
    "shared lists as JSON": _doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered range": "{% for a in range(99999) if range(99999) | sum %}{% endfor %}",
    "filtered loops": "{% for a in range(99999) if false %}{% endfor %}" * 50,
    "ranges by methods": ("{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}"),
    "range of ranges": "{% for a in range(99999) | map('string') %}{{ range(99999) | sum }}{% endfor %}",
    "huge range": "{{ range(10 ** 12) | length }}",
    "recursive macro": (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": ("{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}"),
    "recursive blocks": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "macro doubles": (
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='ab') %}"
        "{% for i in range(60) %}{% set ns.x = m(ns.x) %}{% endfor %}"
    ),
    "set block doubles": (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"
    ),
    "center": "{{ 'x' | center(2000000000) }}",
    "indent": "{{ '\\n\\n' | indent(1000000000) }}",
    "indent by text": "{% set w = 'a' * 4000000 %}{{ ('\\n' * 100000) | indent(w) }}",
    "format filter": "{{ '%2000000000d' | format(1) }}",
    "percent": "{{ '%2000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (2000000000, 1) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 10000) }}",
    "replace folded": "{{ 'aaaaaaaaaa'" + " | replace('a', 'aaaaaaaaaaaaaaaa')" * 12 + " }}",
    "replace method": "{{ ('a' * 1000000).replace('a', 'b' * 10000) }}",
    "replace nothing": "{{ ('a' * 1000000).replace('', 'b' * 10000) }}",
    "join filter": "{% set s = 'a' * 1000000 %}{{ ([s] * 5000) | join }}",
    "join by a separator": "{% set s = 'a' * 1000000 %}{{ range(5000) | join(s) }}",
    "join method": "{% set s = 'a' * 1000000 %}{{ s.join(['b'] * 5000) }}",
    "join a text": "{% set s = 'a' * 1000000 %}{{ s | join(s) }}",
    "batch": "{{ 'x' | batch(2000000000, 'y') | list }}",
    "slice": "{{ 'x' | slice(2000000000, 'y') | list }}",
    "wordwrap": "{{ ('a' * 1000000) | wordwrap(1, wrapstring='b' * 1000000) }}",
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "rjust": "{{ 'x'.rjust(2000000000) }}",
    "center method": "{{ 'x'.center(2000000000) }}",
    "zfill": "{{ 'x'.zfill(2000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(2000000000) }}",
    "format method": "{{ '{:2000000000}'.format(1) }}",
    "format width": "{{ '{:{w}}'.format(1, w=2000000000) }}",
    "format repeats": "{% set s = 'a' * 1000000 %}{{ ('{0}' * 5000).format(s) }}",
    "format map": "{{ '{x:2000000000}'.format_map({'x': 1}) }}",
    "method by name": "{{ ('x' | attr('ljust'))(2000000000) }}",
    "method in a list": "{{ ['x'.ljust] | map('string') | list }}",
    "bytes": "{{ 'x'.encode().ljust(2000000000) }}",
    "integer to bytes": "{{ (1).to_bytes(2000000000, 'big') }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 100000}) }}",
    "urlencode": "{{ (('\\u4e00' * 4000000) | urlencode) | length }}",
    "escape": "{% set s = ('&' * 4000000) %}{% for i in range(99) %}{{ s | e }}{% endfor %}",
    "JSON indent": "{{ range(9999) | list | tojson(indent=1000000) }}",
    "JSON separators": "{{ range(9999) | list | tojson(separators=('a' * 100000, ':')) }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "a search in every turn": (
        "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in s %}{% endif %}{% endfor %}"
    ),
    "a sort in every turn": "{% for i in range(99999) %}{% set x = range(999) | sort %}{% endfor %}",
    "map of maps": (
        "{% for a in range(99999) | map('string') | map('length') | select %}{% for b in range(99999) %}"
        "{% endfor %}{% endfor %}"
    ),
    "a generator in every turn": (
        "{% set g = range(99999) %}{% for i in range(99999) %}{{ g | map('string') | list | length }}"
        "{% endfor %}"
    ),
    "cycler": "{% set c = cycler('a' * 4000000) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}",
    "deep brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep conditions": "{% if a %}" * 4_000 + "{% endif %}" * 4_000,
    "deep loops": "{% for a in messages %}" * 60 + "{% endfor %}" * 60,
    "long chain": "{{ 1" + " + 1" * 30_000 + " }}",
    "long text": "a" * 10_000_000,
    "output in every turn": "{% for i in range(99999) %}{{ 'abcdefghijklmnop' * 64 }}{% endfor %}",
    "a template of its own": "{% include 'x' %}",
}
"""By what they do: each would take minutes or gigabytes, or is endless."""

SLOWEST = "{% set s = 'a' * 4000000 %}" + "{% if 'b' in s %}{% endif %}" * 4000
"""Rendered, as it loops over nothing: the most that the longest template can do without a step."""
