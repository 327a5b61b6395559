"""What the policy reads and writes: prompt, observation, and their token ids.

One format for every model: chat messages through the tokenizer's own template. The text of a prompt is short here
because the laptop's policy is trained from scratch; a pre-trained model gets the longer `LLM_RULES` in front.
Token ids are only ever appended: what was sampled is what is trained (no decode/encode round trip).
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

LLM_RULES = """You solve tasks for your supervisor by writing Python. Each reply: one short thought, then one ```python block.
`apis.<app>.<api>(...)` calls an app; `apis.api_docs` describes the apis; variables stay between your blocks.
Write reusable, documented functions that combine several api calls, and call them; prefer a stored skill that fits.
When the task is done call `apis.supervisor.complete_task()`, with `answer=...` if the task asks a question."""
MAX_OBSERVATION = 160  # characters the laptop's policy sees of one observation


def user_message(instruction: str, skills: dict[str, str] | None, rules: str = "") -> str:
    """First message of a task. ``skills=None``: the agent has no library (the GRPO baseline); {}: an empty one."""
    head = f"{rules}\n\n" if rules else ""
    if skills is None:
        return f"{head}Task: {instruction}"
    listing = "\n".join(skills.values()) if skills else "none"
    return f"{head}Skills:\n{listing}\n\nTask: {instruction}"


def reply(thought: str, code: str) -> str:
    """The text of a reply, as demonstrations write it and `skills.extract_code` reads it."""
    return f"{thought}\n```python\n{code}\n```"


def observation(output: str, error: str | None, limit: int = MAX_OBSERVATION) -> str:
    """What the policy is shown after a block: the error's last line, else the printed text, cut to ``limit`` characters."""
    text = (error if error is not None else output).strip() or "OK"
    if text == "Execution successful.":
        text = "OK"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plain(text: str) -> str:
    """Text of the world or of a skill in which ``<|im_end|>`` and the like are no longer special tokens."""
    return text.replace("<|", "< |")


class ChatFormat:
    """Turns messages into ids with a ChatML-like template whose turns can be appended one by one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.end_id = tokenizer.eos_token_id
        if self.end_id is None:
            raise ValueError("the tokenizer has no eos token; set tokenizer.eos_token to the token that ends a reply")
        self.end_ids = frozenset({self.end_id})

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt_ids(self, message: str, role: str = "user") -> list[int]:
        """Ids up to and including the header of the policy's reply. The message cannot forge special tokens."""
        message = plain(message)
        ids = self.tokenizer.apply_chat_template(
            [{"role": role, "content": message}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(ids)

    def observation_ids(self, text: str, *, closed: bool) -> list[int]:
        """Ids that follow a reply: (its end token, if it was not sampled), the observation, the next reply's header."""
        tail = f"\n<|im_start|>user\n{plain(text)}<|im_end|>\n<|im_start|>assistant\n"
        return ([] if closed else [self.end_id]) + self.encode(tail)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i not in self.end_ids], skip_special_tokens=False)
