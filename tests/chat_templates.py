"""Small chat templates of the kinds that pretrained models have, and a tokenizer for each.

Each template does only what its kind is known for; comments state it. None is a copy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "You are given functions. Where was the author of the book born, and who reigned there? Ada Kern was born in Zug.",
    '{"type": "function", "function": {"name": "search", "description": "Find passages.", "parameters": {"type": "object", '
    '"properties": {"query": {"type": "string"}}, "required": ["query"]}}}',
    '{"name": "search", "arguments": {"query": "the town"}} {"name": "add", "parameters": {"a": 1, "b": 2.5}}',
)

# -- ChatML and its relatives -------------------------------------------------------------------------------------------

_CHATML_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "These are your functions:\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_CHATML_RESULT = (  # the results of one turn share one message of the user
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
_HERMES_CALLS = (
    "{% for call in m.tool_calls %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_XML_CALLS = (
    "{% for call in m.tool_calls %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    "<function={{ call.function.name }}>\n{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
)
# Strings have quotes; they are escaped or left unchanged.
_PYTHON_CALLS = (
    "{%% if m.tool_calls %%}<|tool_call_start|>[{%% for call in m.tool_calls %%}{{ call.function.name }}("
    "{%% for name, value in call.function.arguments | items %%}{{ name }}="
    "{%% if value is string %%}'{{ %s }}'{%% elif value is boolean %%}{{ value }}{%% else %%}{{ value | tojson }}{%% endif %%}"
    "{%% if not loop.last %%}, {%% endif %%}{%% endfor %%}){%% if not loop.last %%}, {%% endif %%}{%% endfor %%}"
    "]<|tool_call_end|>{%% endif %%}"
)
_ESCAPED = r"value | replace('\\', '\\\\') | replace('\'', '\\\'') | replace('\n', '\\n')"
_LAST_USER = (
    "{% set at = namespace(user=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set at.user = loop.index0 %}{% endif %}{% endfor %}"
)


def _chatml(turn: str, prompt: str = "", before: str = "") -> str:
    return (
        f"{before}{_CHATML_TOOLS}{{% for m in messages %}}"
        "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        f"{{% elif m.role == 'assistant' %}}<|im_start|>assistant\n{turn}<|im_end|>\n"
        f"{{% elif m.role == 'tool' %}}{_CHATML_RESULT}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{prompt}{{% endif %}}"
    )


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The prompt opens a thought; messages contain none.
R1 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set content = m.content %}{% if m.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
HERMES = _chatml("{{ m.content or '' }}" + _HERMES_CALLS)
# Turns after the last message of the user keep their thoughts; the last turn has an empty one if it has none.
QWEN3 = _chatml(
    "{% if loop.index0 > at.user and (loop.last or m.reasoning_content) %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content or '' }}" + _HERMES_CALLS,
    prompt="{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
    before=_LAST_USER,
)
QWEN35 = _chatml(
    "{% if loop.index0 > at.user %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}" + _XML_CALLS,
    prompt="<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}",
    before=_LAST_USER,
)
# Drops every thought except that of the last message, also if it is text in the content.
DROPS = _chatml(
    "{% set content = m.content or '' %}{% if not loop.last and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ content }}"
    + _HERMES_CALLS
)

_MAY_THINK = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
LFM2 = _chatml("{{ m.content or '' }}" + _PYTHON_CALLS % _ESCAPED)
LFM25 = _chatml(_MAY_THINK + _PYTHON_CALLS % "value")

# -- others ----------------------------------------------------------------------------------------------------------

LLAMA31 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set task = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set task = '' %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\n{% if tools is not none and tools is defined %}Environment: ipython\n"
    "{% endif %}{{ task }}<|eot_id|>"
    "{% if tools is not none and tools is defined %}<|start_header_id|>user<|end_header_id|>\n\nCall one of these with "
    '{"name": its name, "parameters": its arguments}.\n\n{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n'
    "{% endfor %}{{ messages[0].content | trim }}<|eot_id|>{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n"
    "{{ m.content | tojson }}<|eot_id|>{% elif 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('This model calls one tool at a time.') }}{% endif %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# The functions come before the last message of the user; ids of calls have nine letters or digits.
MISTRAL = (
    f"{_LAST_USER}{{{{ bos_token }}}}"
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools is not none and tools is defined and loop.index0 == at.user %}"
    "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {% if loop.index0 == at.user and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}"
    "[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('The id of a call has 9 letters or digits.') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# Turns have no end token: the model writes <|user|> or <|observation|>.
GLM = (
    f"{_LAST_USER}[gMASK]<sop>{{% if tools %}}<|system|>\nThese are your functions:\n<tools>\n{{% for tool in tools %}}"
    "{{ tool | tojson }}\n{% endfor %}</tools>{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% elif m.role == 'assistant' %}<|assistant|>\n<think>"
    "{% if loop.index0 > at.user %}{{ m.reasoning_content or '' }}{% endif %}</think>"
    "{% if m.content %}\n{{ m.content }}{% endif %}{% for call in m.tool_calls or [] %}\n<tool_call>"
    "{{ call.function.name }}\n{% for name, value in call.function.arguments | items %}<arg_key>{{ name }}</arg_key>\n"
    "<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}\n<think></think>{% endif %}{% endif %}"
)
# Writes only the first of several calls; thoughts only before calls and in the last message.
GPT_OSS = (
    "<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>"
    "{% if messages[0].role in ('system', 'developer') %}{% set task = messages[0].content %}"
    "{% set messages = messages[1:] %}{% else %}{% set task = '' %}{% endif %}"
    "<|start|>developer<|message|>{{ task }}{% if tools %}\n\n# Tools\n\n{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}{% endif %}<|end|>{% set called = namespace(name='') %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|start|>functions.{{ called.name }} to=assistant<|channel|>commentary<|message|>"
    "{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'assistant' and m.tool_calls %}{% set call = m.tool_calls[0].function %}"
    "{% set called.name = call.name %}{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>"
    "{{ call.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' and loop.last and not add_generation_prompt %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Messages have recipients; the last message of a turn has another end token.
MUSE = (
    "<|start|>system<|message|>{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}{% for tool in tools or [] %}\n{{ tool | tojson }}{% endfor %}<|eot|>"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>tool {{ m.name }}<|message|>{{ m.content }}<|eot|>"
    "{% elif m.role == 'assistant' %}"
    "{% if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}"
    "{% for call in m.tool_calls or [] %}<|start|>assistant to={{ call.function.name }}<|message|><atem:function_calls>\n"
    '<atem:invoke name="{{ call.function.name }}">\n{% for name, value in call.function.arguments | items %}'
    '<atem:parameter name="{{ name }}">{{ value if value is string else value | tojson }}</atem:parameter>\n{% endfor %}'
    "</atem:invoke>\n</atem:function_calls>{{ '<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}"
    "{% if not m.tool_calls %}<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>{% endif %}"
    "{% else %}<|start|>user<|message|>{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# Results have their own end token, and the next turn follows directly.
DEEPSEEK = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
    "{% for tool in tools or [] %}\n{{ tool | tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}"
    "<｜User｜>{{ m.content }}<｜Assistant｜>{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<｜tool▁outputs▁begin｜>{% endif %}"
    "<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<｜tool▁outputs▁end｜>{% endif %}"
    "{% else %}{{ m.content or '' }}{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for call in m.tool_calls %}"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name }}\n```json\n{{ call.function.arguments | tojson }}\n```"
    "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
)
# No system role, and no functions.
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('There is no role ' + m.role) }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_FUNCTIONS_OF_GEMMA4 = (
    "{% macro quoted(value) %}{% if value is string %}<|\"|>{{ value }}<|\"|>{% elif value is mapping %}{{ '{' }}"
    "{% for name, inner in value | items %}{{ name }}:{{ quoted(inner) }}{% if not loop.last %},{% endif %}{% endfor %}}"
    "{% elif value is sequence %}[{% for inner in value %}{{ quoted(inner) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
)
# Results follow the calls within one turn of the model; strings are enclosed in a special token.
GEMMA4 = (
    f"{_FUNCTIONS_OF_GEMMA4}{{{{ bos_token }}}}"
    "{% if tools or messages[0].role == 'system' %}<|turn>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
    "{% for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{{ quoted(tool.function.parameters) }}<tool|>"
    "{% endfor %}<turn|>\n{% endif %}{% set last = namespace(role='') %}{% for m in messages %}"
    "{% if m.role == 'tool' %}<|tool_response>response:{{ m.name }}{value:{{ quoted(m.content) }}}<tool_response|>"
    "{% else %}{% if m.role == 'user' %}<|turn>user\n{{ m.content }}<turn|>\n"
    "{% else %}{% if last.role != 'tool' %}<|turn>model\n{% endif %}"
    "{% if m.reasoning_content and m.tool_calls %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}"
    "{% for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{{ quoted(call.function.arguments) }}"
    "<tool_call|>{% endfor %}{{ m.content or '' }}{% if not m.tool_calls %}<turn|>\n{% endif %}{% endif %}{% endif %}"
    "{% set last.role = m.role %}{% endfor %}"
    "{% if add_generation_prompt and last.role != 'tool' %}<|turn>model\n{% endif %}"
)
# Drops the system message without an error; a conversation ends with a token that no sampled turn has.
PHI3 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}<|end|>\n<|assistant|>\n"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
)
# A space and the end token follow a turn; no other mark is a token.
LLAMA2 = (
    "{% set task = '' %}{% if messages[0].role == 'system' %}"
    "{% set task = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}{{ bos_token }}[INST] {{ task if loop.first }}{{ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Turns have no end, and no mark is a token.
VICUNA = (
    "{% for m in messages %}{{ {'system': 'TASK', 'user': 'USER', 'assistant': 'ASSISTANT'}[m.role] }}: {{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


@dataclass(frozen=True)
class Kind:
    """A template with its tokens.

    Attributes:
        specials: the tokens that the tokenizer flags as special.
        added: further tokens of the template, which the tokenizer does not flag.
        ends: end tokens that `generation_config.json` names in addition to eos.
        spaces: whether a space is put before every text between special tokens, as by SentencePiece.
    """

    template: str
    specials: Sequence[str]
    eos: str
    bos: str = ""
    added: Sequence[str] = ()
    ends: Sequence[str] = ()
    spaces: bool = False


_CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
KINDS = {
    "plain": Kind(PLAIN, _CHATML_TOKENS, "<|im_end|>"),  # no functions
    "r1": Kind(R1, _CHATML_TOKENS, "<|im_end|>", added=_TAGS[-2:]),  # no functions
    "unflagged": Kind(PLAIN, _CHATML_TOKENS[:1], "<|endoftext|>", added=_CHATML_TOKENS[1:]),
    "flagged": Kind(HERMES, (*_CHATML_TOKENS, *_TAGS, "<search>", "</search>", "<image>"), "<|im_end|>"),
    "hermes": Kind(HERMES, _CHATML_TOKENS, "<|im_end|>", added=_TAGS[:2]),  # Qwen 2.5
    "qwen3": Kind(QWEN3, _CHATML_TOKENS, "<|im_end|>", added=_TAGS),
    "qwen3.5": Kind(QWEN35, _CHATML_TOKENS, "<|im_end|>", added=_TAGS),  # opens the thought itself
    "drops": Kind(DROPS, _CHATML_TOKENS, "<|im_end|>", added=_TAGS),
    "lfm2": Kind(LFM2, (*_CHATML_TOKENS, "<|tool_call_start|>", "<|tool_call_end|>"), "<|im_end|>"),
    "lfm2.5": Kind(LFM25, (*_CHATML_TOKENS, "<|tool_call_start|>", "<|tool_call_end|>"), "<|im_end|>"),
    "deepseek": Kind(
        DEEPSEEK,
        (
            "<｜begin▁of▁sentence｜>",
            "<｜end▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            *(f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
            *(f"<｜tool▁{name}｜>" for name in ("outputs▁begin", "outputs▁end", "output▁begin", "output▁end")),
        ),
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
    ),
    "muse": Kind(MUSE, ("<|endoftext|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), "<|eot|>"),
    "llama3.1": Kind(
        LLAMA31,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
        ends=("<|eom_id|>",),
    ),
    "mistral": Kind(
        MISTRAL,
        (
            "<s>",
            "</s>",
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
            "[THINK]",
            "[/THINK]",
        ),
        "</s>",
        "<s>",
    ),
    "glm": Kind(
        GLM,
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "<|endoftext|>",
        added=(*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ends=("<|user|>", "<|observation|>"),
    ),
    "gpt-oss": Kind(
        GPT_OSS,
        (
            "<|endoftext|>",
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
            "<|constrain|>",
            "<|return|>",
            "<|call|>",
        ),
        "<|return|>",
        ends=("<|call|>",),
    ),
    "gemma": Kind(
        GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<bos>", ends=("<end_of_turn>",)
    ),
    "gemma4": Kind(
        GEMMA4,
        (
            "<bos>",
            "<eos>",
            "<|turn>",
            "<turn|>",
            "<|tool>",
            "<tool|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            "<|channel>",
            "<channel|>",
            '<|"|>',
        ),
        "<eos>",
        "<bos>",
        ends=("<turn|>", "<|tool_response>"),
    ),
    "phi3": Kind(
        PHI3,
        ("<s>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "<|endoftext|>",
        "<s>",
        ends=("<|end|>",),
    ),
    "llama2": Kind(LLAMA2, ("<unk>", "<s>", "</s>"), "</s>", "<s>", spaces=True),
    "zephyr": Kind(ZEPHYR, ("<unk>", "<s>", "</s>"), "</s>", "<s>", spaces=True),
    "vicuna": Kind(VICUNA, ("<unk>", "<s>", "</s>"), "</s>", "<s>", spaces=True),
}


@lru_cache
def make_tokenizer(kind: str, merges: int = 120, texts: Iterable[str] = TEXT) -> PreTrainedTokenizerFast:
    """Make a BPE tokenizer with the template and the tokens of ``KINDS[kind]``; repeated calls return the same object."""
    of = KINDS[kind]
    tokenizer = Tokenizer(models.BPE(unk_token=of.specials[0] if of.spaces else None))
    if of.spaces:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
        alphabet = ["▁", "\n", "ü", "\u2060", "\u2063", *map(chr, range(33, 127))]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(of.specials) + len(alphabet) + merges,
        special_tokens=list(of.specials),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts] * 20, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in of.specials])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in of.added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=of.eos, bos_token=of.bos or None, pad_token=of.specials[0],
        chat_template=of.template.replace("%}\n", "%}{{ '\n' }}"),  # jinja drops a line break after a block
    )  # fmt: skip


def end_ids(kind: str) -> list[int]:
    """Return the ids of `Kind.ends`, with which a model of that kind may end a turn in addition to eos."""
    return make_tokenizer(kind).convert_tokens_to_ids(list(KINDS[kind].ends))
