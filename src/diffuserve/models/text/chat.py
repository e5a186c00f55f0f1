"""The turns of a conversation in which language models read a prompt, as their own templates write them.

The model's answer begins where a template ends. A folder's own template is a program, which is not run.
"""

_QWEN_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

QWEN3_CHAT = _QWEN_TURN
"""Qwen3 that may think before it answers."""

QWEN3_CHAT_WITHOUT_THOUGHT = f"{_QWEN_TURN}<think>\n\n</think>\n\n"
"""Qwen3 that answers at once: its thought is there, and empty."""


def qwen_chat(system: str) -> str:
    """Return the template of a Qwen that was told in `system` what to do."""
    return f"<|im_start|>system\n{system}<|im_end|>\n{_QWEN_TURN}"


def mistral_chat(system: str) -> str:
    """Return the template of a Mistral that was told in `system` what to do, and does not answer."""
    return f"<s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][INST]{{}}[/INST]"
