"""Chat templates after what well-known models use, each written for these tests: the tags, the
checks and the trimming of a family, with a tokenizer that has its special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A family's template. ``source`` is the text, or named templates as (name, text) pairs."""

    source: str | Sequence[tuple[str, str]]
    special: Sequence[str] = ("<|im_start|>", "<|im_end|>")
    bos: str | None = None
    eos: str | None = None
    system: str = "kept"
    """What becomes of a system message: "kept", "refused" by the template, or "lost"."""
    is_typed: bool = False
    """Whether a content is a list of parts."""


_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

_LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

_LLAMA31 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

_MISTRAL_V1 = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

_MISTRAL_V3 = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}{{- tools | tojson }}{{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

_MISTRAL_V3_WITHOUT_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)

_TEKKEN = """{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are a model. Today is " + today + "." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}
        {%- set system_message = messages[0]['content'] %}
    {%- else %}
        {%- set system_message = messages[0]['content'][0]['text'] %}
    {%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}{{- block['text'] }}{%- else %}{{- '[IMG]' }}{%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- (message['content'] if message['content'] is string else message['content'][0]['text']) + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""

_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)

_GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

_PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)

_PHI4 = (
    "{% for message in messages %}{% if (message['role'] == 'system') %}"
    "{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>'}}"
    "{% generation %}{{message['content'] + '<|im_end|>'}}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)

_QWEN2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
        not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

_DEEPSEEK_R1 = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}"
    "{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{'<|User|>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}"
    "{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
    "{% endif %}{{'<|Assistant|>' + content + eos_token}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}"
)

_DEEPSEEK_V3 = (
    "{% set ns = namespace(system_prompt='', is_first_sp=true) %}{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}"
    "{% set ns.system_prompt = ns.system_prompt + message['content'] %}"
    "{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}"
    "{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{{ '<|Assistant|>' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{%- endif %}"
)

_COMMAND_R = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% if system_message != false or tools is not none or documents is not none %}"
    "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' }}{% if system_message != false %}{{ system_message }}{% endif %}"
    "{% if tools is not none %}{{ '\\n## Available Tools\\n' }}{{ tools | tojson(indent=4) }}{% endif %}"
    "{% if documents is not none %}{{ '\\n## Documents\\n' }}{% endif %}{{ '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% for message in loop_messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip()"
    " + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)

_HERMES_TOOLS = (
    "{%- macro json_to_python_type(json_spec) %}"
    "{%- if json_spec.type == 'string' %}{{- 'str' }}{%- else %}{{- 'Any' }}{%- endif %}"
    "{%- endmacro %}{{- bos_token }}{{- '<|im_start|>system\\n' }}{{- 'You are a function calling AI model. ' }}"
    "{%- for tool in tools %}{{- tool | tojson }}{{- json_to_python_type(tool) }}{%- endfor %}{{- '<|im_end|>\\n' }}"
)

_HERMES_PREAMBLE = (
    "{{- bos_token }}{%- if tools is not none %}{{- '<|im_start|>system\\nYou may call these functions: ' }}"
    "{{- tools | tojson }}{{- '<|im_end|>\\n' }}{%- endif %}" + _CHATML
)

_SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM.<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SMOLLM3 = """{# ───── defaults ───── #}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if enable_thinking -%}
  {%- set reasoning_mode = "/think" -%}
{%- else -%}
  {%- set reasoning_mode = "/no_think" -%}
{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "## Metadata\\n\\nToday Date: " ~ strftime_now("%d %B %Y") ~ "\\nReasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}{{- "## Custom Instructions\\n\\n" + custom_instructions + "\\n\\n" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" }}
    {%- endif -%}
{%- endif -%}
"""

_LFM2 = (
    "{{- bos_token -}}{%- set keep_past_thinking = keep_past_thinking | default(false) -%}"
    "{%- set ns = namespace(system_prompt='', last_assistant_index=-1) -%}"
    "{%- if messages[0]['role'] == 'system' -%}{%- set ns.system_prompt = messages[0]['content'] -%}"
    "{%- set messages = messages[1:] -%}{%- endif -%}"
    "{%- if ns.system_prompt -%}{{- '<|im_start|>system\\n' + ns.system_prompt + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}{%- if message['role'] == 'assistant' -%}"
    "{%- set ns.last_assistant_index = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- set content = message['content'] -%}"
    "{%- if message['role'] == 'assistant' and not keep_past_thinking and loop.index0 != ns.last_assistant_index -%}"
    "{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] | trim -%}{%- endif -%}{%- endif -%}"
    "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{- content + '<|im_end|>\\n' -}}{%- endgeneration -%}"
    "{%- else -%}{{- content + '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

_ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

_VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}"
    "{% set system_message = 'A chat between a user and an assistant.' %}{% endif %}"
    "{{ bos_token }}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 %}{{ system_message + ' ' }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' + message['content'].strip() + ' ' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + message['content'].strip() + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)

_ALPACA = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\\n\\n' }}{% endif %}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '### Response:\\n' + message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
)

_LLAMA_GUARD = (
    "{% if messages|length % 2 == 0 %}{% set role = 'Agent' %}{% else %}{% set role = 'User' %}{% endif %}"
    "{{ '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\\n\\nTask: Check \\'' + role + '\\' messages."
    "\\n\\n<BEGIN CONVERSATION>\\n\\n' }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] | trim + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Agent: ' + message['content'] | trim + '\\n\\n' }}{% endif %}{% endfor %}"
    "{{ '<END CONVERSATION>\\n\\nSafe or unsafe?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)

_LLAMA_GUARD_VISION = (
    "{% if messages | length % 2 == 0 %}{% set role = 'Agent' %}{% else %}{% set role = 'User' %}{% endif %}"
    "{{ '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\\n\\nTask: Check ' + role + '.\\n\\n' }}"
    "{% for message in messages %}{% if message['role'] == 'user' %}{% set role = 'User' %}"
    "{% elif message['role'] == 'assistant' %}{% set role = 'Agent' %}{% endif %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<|image|>' }}"
    "{% elif content['type'] == 'text' %}{{ role + ': ' + content['text'] | trim + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% endfor %}{{ 'Safe or unsafe?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)

_SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

_HARMONY = """{#- Macros -#}
{%- macro build_system_message() -%}
    {{- "You are ChatGPT.\\nKnowledge cutoff: 2024-06\\n" }}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {%- if reasoning_effort is not defined %}
        {%- set reasoning_effort = "medium" %}
    {%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\\n\\n" }}
    {{- "# Valid channels: analysis, commentary, final." }}
{%- endmacro -%}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- "<|start|>system<|message|>" }}
{{- build_system_message() }}
{{- "<|end|>" }}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}
        {{- "# Instructions\\n\\n" }}
        {{- developer_message }}
    {%- endif %}
    {{- "<|end|>" }}
{%- endif %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "<|channel|>analysis<|message|>" in message.content %}
            {{- raise_exception("You have passed a message containing <|channel|> tags in the content field.") }}
        {%- endif %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

_LOOP_CONTROLS = (
    "{%- set ns = namespace(count=0) -%}{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}<s>{{ message.content }}</s>{%- continue -%}{%- endif -%}"
    "{%- set ns.count = ns.count + 1 -%}{%- if ns.count > 99 -%}{%- break -%}{%- endif -%}"
    "<s>{{ message.role | upper }}: {{ message.content | trim }}</s>"
    "{%- endfor -%}{{ '<s>ASSISTANT:' if add_generation_prompt }}"
)

_WHITESPACE = """
{% for message in messages %}
    {% if message.role == 'system' %}
        {{ message.content }}

    {% else %}
  {{- message.role }}:    {{ message.content }}
        {%+ if loop.last %} (last) {% endif %}

    {%- endif %}
{% endfor %}

{% if add_generation_prompt %}assistant:{% endif %}
"""

_JSON = (
    "{{ dict(role='header', count=messages|length) | tojson }}\n{% for message in messages %}"
    "{{ message | tojson(indent=2, separators=(',', ': '), sort_keys=true) }}\n{% endfor %}"
)

_GRANITE = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}{%- else %}"
    "{%- set system_message = \"Knowledge Cutoff Date: April 2024.\\nToday's Date: \" + strftime_now('%B %d, %Y') + '.' %}"
    "{%- if tools and documents %}{%- set system_message = system_message + ' Tools.' %}{%- endif %}"
    "{%- set loop_messages = messages %}{%- endif %}"
    "{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}"
    "{%- for message in loop_messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content']"
    " + '<|end_of_text|>\\n' }}{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}"
    "{%- endif %}{%- endfor %}"
)

_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_INST = ("<s>", "</s>", "[INST]", "[/INST]")
_TURNS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_COHERE = (
    "<BOS_TOKEN>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
)
_DEEPSEEK = ("<|bos|>", "<|eos|>", "<|User|>", "<|Assistant|>")

_QWEN_TOOLS = """{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}{%- set ns.system = messages[0].content %}{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + ns.system + '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif ns.system %}
    {{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

TEMPLATES = {
    "chatml": ChatTemplate(_CHATML),
    "llama-2": ChatTemplate(_LLAMA2, _INST, "<s>", "</s>"),
    "llama-3": ChatTemplate(_LLAMA3, _HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "llama-3.1": ChatTemplate(_LLAMA31, _HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral-v0.1": ChatTemplate(_MISTRAL_V1, _INST, "<s>", "</s>", system="refused"),
    "mistral-v0.3": ChatTemplate(_MISTRAL_V3, _INST, "<s>", "</s>"),
    "mistral-without-system": ChatTemplate(_MISTRAL_V3_WITHOUT_SYSTEM, _INST, "<s>", "</s>", system="lost"),
    "tekken": ChatTemplate(_TEKKEN, (*_INST, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]"), "<s>", "</s>"),
    "gemma": ChatTemplate(_GEMMA, _TURNS, "<bos>", "<eos>", system="refused"),
    "gemma-3": ChatTemplate(_GEMMA3, (*_TURNS, "<start_of_image>"), "<bos>", "<eos>"),
    "phi-3": ChatTemplate(_PHI3, ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), None, "<|end|>"),
    "phi-4": ChatTemplate(_PHI4, ("<|im_start|>", "<|im_sep|>", "<|im_end|>"), None, "<|im_end|>"),
    "qwen-2": ChatTemplate(_QWEN2, eos="<|im_end|>"),
    "qwen-3": ChatTemplate(_QWEN3, eos="<|im_end|>"),
    "qwen-tools": ChatTemplate(_QWEN_TOOLS, eos="<|im_end|>"),
    "deepseek-r1": ChatTemplate(_DEEPSEEK_R1, _DEEPSEEK, "<|bos|>", "<|eos|>"),
    "deepseek-v3": ChatTemplate(_DEEPSEEK_V3, _DEEPSEEK, "<|bos|>", "<|eos|>"),
    "command-r": ChatTemplate(
        [("default", _COMMAND_R), ("tool_use", "{{ tools[0] }}"), ("rag", "{{ documents[0] }}")], _COHERE, "<BOS_TOKEN>"
    ),
    "command-r-alone": ChatTemplate(_COMMAND_R, _COHERE, "<BOS_TOKEN>"),
    "hermes-2-pro": ChatTemplate(
        [("default", "{{bos_token}}" + _CHATML), ("tool_use", _HERMES_TOOLS)],
        ("<|begin_of_text|>", "<|im_start|>", "<|im_end|>"),
        "<|begin_of_text|>",
        "<|im_end|>",
    ),
    "hermes-preamble": ChatTemplate(
        _HERMES_PREAMBLE, ("<|begin_of_text|>", "<|im_start|>", "<|im_end|>"), "<|begin_of_text|>"
    ),
    "smollm2": ChatTemplate(_SMOLLM2, eos="<|im_end|>"),
    "smollm3": ChatTemplate(_SMOLLM3, eos="<|im_end|>"),
    "lfm2.5": ChatTemplate(_LFM2, ("<|startoftext|>", "<|im_start|>", "<|im_end|>"), "<|startoftext|>", "<|im_end|>"),
    "zephyr": ChatTemplate(_ZEPHYR, ("<s>", "</s>"), "<s>", "</s>"),
    "vicuna": ChatTemplate(_VICUNA, ("<s>", "</s>"), "<s>", "</s>"),
    "alpaca": ChatTemplate(_ALPACA, ("<s>", "</s>"), "<s>", "</s>"),
    "llama-guard": ChatTemplate(_LLAMA_GUARD, _HEADERS, "<|begin_of_text|>", "<|eot_id|>", system="lost"),
    "llama-guard-vision": ChatTemplate(
        _LLAMA_GUARD_VISION, (*_HEADERS, "<|image|>"), "<|begin_of_text|>", "<|eot_id|>", is_typed=True
    ),
    "smolvlm": ChatTemplate(_SMOLVLM, ("<|im_start|>", "<end_of_utterance>", "<image>"), is_typed=True),
    "harmony": ChatTemplate(
        _HARMONY, ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"), None, "<|return|>"
    ),
    "loop-controls": ChatTemplate(_LOOP_CONTROLS, ("<s>", "</s>"), "<s>", "</s>"),
    "whitespace": ChatTemplate(_WHITESPACE, ("<s>", "</s>"), "<s>", "</s>"),
    "json": ChatTemplate(_JSON, ("<s>", "</s>"), "<s>", "</s>"),
    "granite": ChatTemplate(
        _GRANITE, ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), "<|end_of_text|>", "<|end_of_text|>"
    ),
}


def byte_tokenizer(special: Sequence[str]) -> Tokenizer:
    """A token for each byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def write_model(directory: Path, template: ChatTemplate, where: str = "config") -> None:
    """The files of a model that has the template. ``where`` is "config" for tokenizer_config.json,
    or "files"."""
    byte_tokenizer(template.special).save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if template.bos is not None:
        config["bos_token"] = template.bos
    if template.eos is not None:
        config["eos_token"] = template.eos
    named = [("default", template.source)] if isinstance(template.source, str) else list(template.source)
    if where == "files":
        more = directory / "additional_chat_templates"
        more.mkdir()
        for name, text in named:
            path = directory / "chat_template.jinja" if name == "default" else more / f"{name}.jinja"
            path.write_text(text, encoding="utf-8", newline="")
    elif isinstance(template.source, str):
        config["chat_template"] = template.source
    else:
        config["chat_template"] = [{"name": name, "template": text} for name, text in named]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def read_tools(directory: Path) -> Path:
    """Give a model a chat template that reads tools, and return the model."""
    source = TEMPLATES["qwen-tools"].source
    assert isinstance(source, str)
    (directory / "chat_template.jinja").write_text(source)
    return directory
