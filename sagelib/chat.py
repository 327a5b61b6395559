"""The chat format of a pre-trained LLM: its tokenizer's own template, token-exact over many turns.

What the policy sampled stays as it is: after a reply only what the template puts between two replies is appended. Some
templates rewrite history (they drop the thoughts of earlier replies). Then the sequence so far ends as one training sequence
and a new one begins with the template's own rendering: `Dialogue.earlier` keeps the former, and `Dialogue.splits` counts them.

The prompt follows the paper's skill-library agent: rules, one worked demonstration in the model's own turns (`worked.py`
plays it), then the library, each skill with signature, docstring and source, and the task.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jinja2.exceptions import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sagelib.prompts import ChatFormat
from sagelib.types import Episode, Segment

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
RULES = """You solve tasks for your supervisor by writing \
Python that runs in a shell where `apis.<app>.<api>(...)` calls an app on the supervisor's behalf.

1. Each reply is one short thought and exactly one ```python block. It is run, you see what it prints, then you reply again.
2. You do not know the apis by heart. Look them up before you use them:
   print(apis.api_docs.show_app_descriptions())
   print(apis.api_docs.show_api_descriptions(app_name="..."))
   print(apis.api_docs.show_api_doc(app_name="...", api_name="..."))
3. Variables and functions stay between your blocks. Names, mails and passwords of the supervisor are in the app `supervisor`.
4. Write what you do as functions that are abstract, reusable, typed and documented, and combine several api calls; call them
   in the same block. A function whose block runs without error joins your skill library and is there in later tasks.
5. If the library holds a function that fits, call it; judge first whether it does. Do not write one again that is there.
6. If a function fails, correct it, define it again and call it.
7. When the task is done call apis.supervisor.complete_task(); if it asks a question, with answer=... (a number, a name, ...)."""
REPLY = "SAGELIB-REPLY"  # stands for a reply where the text around it is asked for


def message_parts(message: str) -> tuple[str, dict[str, str] | None] | None:
    """(instruction, skills) of a message that `prompts.user_message` made; None for any other text.

    Skills are None where the agent has no library. The first cut at which the listing is valid Python is the right one.
    """
    if message.startswith("Task: "):
        return message.removeprefix("Task: "), None
    if not message.startswith("Skills:\n"):
        return None
    body = message.removeprefix("Skills:\n")
    for cut in re.finditer("\n\nTask: ", body):
        listing, instruction = body[: cut.start()], body[cut.end() :]
        skills = {} if listing == "none" else listed_skills(listing)
        if skills is not None:
            return instruction, skills
    return None


def listed_skills(listing: str) -> dict[str, str] | None:
    """Name -> source of functions one below the other, each with the lines above it; None when that is no Python."""
    try:
        tree = ast.parse(listing)
    except (SyntaxError, ValueError):
        return None
    lines, skills, start = listing.split("\n"), {}, 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            skills[node.name] = "\n".join(lines[start : node.end_lineno])
            start = node.end_lineno
    return skills


def describe_skill(name: str, source: str) -> str:
    """A skill as the prompt shows it: signature, docstring, source."""
    function = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    says = (ast.get_docstring(function) or "no description").strip().split("\n")[0]
    return f"{name}({ast.unparse(function.args)}){returns}: {says}\n```python\n{source}\n```"


def llm_message(message: str) -> str:
    """What a pre-trained LLM reads in place of the laptop policy's short message; other text stays as it is."""
    parts = message_parts(message)
    if parts is None:
        return message
    instruction, skills = parts
    task = f"My task: {instruction}"
    if skills is None:
        return task
    if not skills:
        return f"The skill library is empty.\n\n{task}"
    described = "\n\n".join(describe_skill(name, source) for name, source in skills.items())
    return f"The skill library holds these functions; they are defined in your shell:\n\n{described}\n\n{task}"


class LLMFormat(ChatFormat):
    """Messages to ids with a tokenizer's own template. ``demo``: turns of a worked demonstration, user first.

    ``keep_history``: True keeps replies as they were sampled even where the template would rewrite them (never splits).
    ``base``: name of the pre-trained model (see `pretrained.find`), kept with a saved policy.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Iterable[int] = (),
        rules: str = RULES,
        demo: Sequence[Message] = (),
        keep_history: bool = False,
        base: str = "",
    ) -> None:
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use an instruct model")
        super().__init__(tokenizer)
        self.rules, self.demo, self.keep_history, self.base = rules, list(demo), keep_history, base
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is always masked, so that the end token can serve
        added = {t for t in tokenizer.get_added_vocab() if len(t.strip()) > 2}
        self._special = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")
        self._system = self._has_system_role()
        closing = self.encode(self._after_reply(self._render([*self.opening("x"), _assistant(REPLY)], False)))
        special = set(tokenizer.added_tokens_decoder)
        self.end_id = closing[0] if closing and closing[0] in special else tokenizer.eos_token_id
        self.end_ids = frozenset({self.end_id, tokenizer.eos_token_id, *end_ids})

    @classmethod
    def of_model(cls, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, **settings: object) -> LLMFormat:
        """With every end token that the model's generation config names."""
        ends = model.generation_config.eos_token_id if model.generation_config else None
        return cls(tokenizer, [] if ends is None else [ends] if isinstance(ends, int) else ends, **settings)

    def _has_system_role(self) -> bool:
        try:
            return "RULES" in self._render([{"role": "system", "content": "RULES"}, _user("x")], True)
        except TemplateError:
            return False

    def _render(self, messages: Sequence[Message], reply_next: bool) -> str:
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=reply_next)

    @staticmethod
    def _after_reply(text: str) -> str:
        return text[text.rindex(REPLY) + len(REPLY) :]

    def plain(self, text: str) -> str:
        """Text of the world or of a skill in which no special token of this model is left (`<|im_end|>`, `</s>`, `<think>`)."""
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)

    def opening(self, message: str) -> list[Message]:
        """Rules, worked demonstration and the first message, as messages."""
        turns = [*self.demo, _user(self.plain(message))]
        if not self.rules:
            return turns
        if self._system:
            return [{"role": "system", "content": self.rules}, *turns]
        return [_user(f"{self.rules}\n\n{turns[0]['content']}"), *turns[1:]]

    def prompt_ids(self, message: str, role: str = "user") -> list[int]:
        """Ids up to and including the header of the first reply; ``message`` as `prompts.user_message` writes it."""
        if role != "user":
            raise ValueError(f"role {role!r}: a pre-trained model is not trained on pairs; use whole demonstrations")
        return self.encode(self._render(self.opening(llm_message(message)), True))

    def observation_text(self, text: str) -> str:
        """What the template puts between a reply and the next: end of the reply, the observation, the next header."""
        turns = [_user("x"), _assistant(REPLY), _user(self.plain(text))]
        return self._after_reply(self._render(turns, True))

    def observation_ids(self, text: str, *, closed: bool) -> list[int]:
        ids = self.encode(self.observation_text(text))
        return ids[1:] if closed and ids[0] == self.end_id else ids

    def begin(self, message: str, position: int) -> Dialogue:
        """The sequence of a new episode."""
        messages = self.opening(llm_message(message))
        text = self._render(messages, True)
        dialogue = Dialogue(self.encode(text), position=position)
        dialogue.messages, dialogue.text = messages, text
        return dialogue

    def rewritten(self, episode: Episode) -> list[int] | None:
        """Notes the last turn in the episode's messages. Where the template then rewrites what was there, the new prompt's
        ids; None where it only appends (outer white space of a reply does not count)."""
        dialogue, turn = episode.segment, episode.turns[-1]
        opener = self._render(dialogue.messages, True)[len(self._render(dialogue.messages, False)) :]
        said = turn.text.strip()
        if opener.endswith(("<think>\n", "<think>")):  # such templates open the thought themselves
            said = f"<think>\n{said}"
        dialogue.text += turn.text.strip() + self.observation_text(turn.observation)
        dialogue.messages += [_assistant(said), _user(self.plain(turn.observation))]
        if self.keep_history:
            return None
        text = self._render(dialogue.messages, True)
        if text == dialogue.text:
            return None
        dialogue.text = text
        return self.encode(text)


@dataclass
class Dialogue(Segment):
    """The sequence of an LLM's episode, and the sequences that ended where history was rewritten.

    ``messages`` and ``text`` (the whole sequence as the template has it) are no fields: records of a run do without them.
    """

    earlier: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages: list[Message] = []
        self.text = ""

    @property
    def splits(self) -> int:
        """How often the template broke the prefix."""
        return len(self.earlier)

    @property
    def generated(self) -> int:
        """Sampled tokens of the whole episode, those of the earlier sequences included."""
        return sum(self.own_mask_T) + sum(segment.generated for segment in self.earlier)

    def split(self, prompt_ids: list[int]) -> None:
        """What there is becomes a finished sequence; the episode goes on with this prompt."""
        self.earlier.append(Segment(self.prompt_ids, self.completion_ids, self.own_mask_T, self.logprobs_T, self.position))
        self.prompt_ids, self.completion_ids, self.own_mask_T, self.logprobs_T = prompt_ids, [], [], []


def begin(format: ChatFormat, message: str, position: int) -> Segment:
    """The sequence of a new episode, whatever the format."""
    if isinstance(format, LLMFormat):
        return format.begin(message, position)
    return Segment(format.prompt_ids(message), position=position)


def rewritten(format: ChatFormat, episode: Episode) -> list[int] | None:
    """A new prompt's ids where the last turn makes the template rewrite history, else None."""
    return format.rewritten(episode) if isinstance(format, LLMFormat) and isinstance(episode.segment, Dialogue) else None


def sequences(segment: Segment) -> list[Segment]:
    """All training sequences of an episode, in order; most have one."""
    return [*getattr(segment, "earlier", ()), segment]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
