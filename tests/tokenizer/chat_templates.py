"""Templates of published families, rewritten for tests: the shapes that a mask has to cope with."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for message in messages %}{% if message.role == 'user' %}{{ bos_token + '[INST] ' + message.content.strip() + "
    "' [/INST]' }}{% else %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
STRIPPING = (
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NO_END = (  # the next turn's mark is what the model stops at
    "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKING = (  # earlier thoughts are dropped
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and '</think>' in content and not loop.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QUIET_END = (  # no end for the last turn
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1]['role'] != 'assistant' %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}\n{% else %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
