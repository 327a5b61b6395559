"""A model behind an OpenAI-compatible address: as the expert whose play becomes demonstrations, or to be evaluated.

The key is read from an environment variable at each request: it is in no attribute, record, log or error text. A request is
tried again after a dead connection, a rate limit, a fault of the server or a reply that cannot be read; other refusals are final.
Needs the extra `endpoint` (httpx, tenacity).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import tenacity

from sagelib.chat import LLMFormat, Message
from sagelib.policy import Sample, WholeSequences
from sagelib.tiny import train_tokenizer

TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class EndpointError(RuntimeError):
    """The endpoint refused for good, or failed too often; the text says how, without the key."""


class _Again(Exception):
    """A failure that may pass. ``wait``: seconds that the server asked for."""

    def __init__(self, cause: str, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.cause, self.wait = cause, wait


@dataclass(frozen=True)
class Reply:
    """What the model said, and why it stopped ("stop" or "length")."""

    text: str
    finish: str


class Endpoint:
    """One model at one address. ``prices``: of a million tokens in and out; ``per_minute``: most requests begun in a minute.

    Safe to use from several threads. ``costs()`` at any time says what was spent.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str = "OPENAI_API_KEY",
        prices: tuple[float, float] = (0.0, 0.0),
        attempts: int = 8,
        per_minute: float = 600.0,
        timeout_s: float = 120.0,
        first_wait_s: float = 1.0,
        longest_wait_s: float = 60.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url {url!r}: write it with http:// or https://, up to /v1")
        self.url, self.model, self.key_variable, self.prices = url.rstrip("/"), model, key_variable, prices
        self.attempts, self.longest_wait_s = attempts, longest_wait_s
        self.counts: Counter[str] = Counter()
        self._lock, self._next, self._gap = threading.Lock(), 0.0, 60.0 / per_minute
        self._wait = tenacity.wait_exponential_jitter(initial=first_wait_s, max=longest_wait_s, jitter=first_wait_s)
        self._client = httpx.Client(timeout=timeout_s)

    def chat(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int) -> Reply:
        """One reply. EndpointError after a final refusal or ``attempts`` failures; every billed token is counted."""
        body = {"model": self.model, "messages": list(messages), "temperature": temperature, "max_tokens": max_tokens,
                "seed": seed}
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Again), stop=tenacity.stop_after_attempt(self.attempts), wait=self._pause,
            after=self._note, reraise=True)
        try:
            return retrying(self._once, body)
        except _Again as failure:
            raise EndpointError(f"{self.model} at {self.url} failed {self.attempts} times, the last time: {failure}") from None

    def _pause(self, state: tenacity.RetryCallState) -> float:
        asked = state.outcome.exception().wait
        return min(asked, self.longest_wait_s) if asked is not None else self._wait(state)

    def _note(self, state: tenacity.RetryCallState) -> None:
        with self._lock:
            self.counts[f"again: {state.outcome.exception().cause}"] += 1

    def _take_turn(self) -> None:
        with self._lock:
            begin = max(self._next, time.monotonic())
            self._next = begin + self._gap
        time.sleep(max(0.0, begin - time.monotonic()))

    def _once(self, body: dict[str, Any]) -> Reply:
        self._take_turn()
        key = os.environ.get(self.key_variable, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = self._client.post(f"{self.url}/chat/completions", json=body, headers=headers)
        except httpx.TimeoutException:
            raise _Again("timeout", "no answer in time") from None
        except httpx.TransportError as error:   # refused, reset, closed in the middle
            raise _Again("connection", type(error).__name__) from None
        if answer.status_code != 200:
            said = f"status {answer.status_code}: {self._without(key, answer.text)[:300]}"
            if answer.status_code in TRY_AGAIN:
                cause = "rate limit" if answer.status_code == 429 else "server"
                raise _Again(cause, said, _seconds(answer.headers.get("retry-after")))
            hint = f" (is {self.key_variable} set?)" if answer.status_code in (401, 403) else ""
            raise EndpointError(f"{self.model} at {self.url} refused, {said}{hint}")
        return self._read(answer, key)

    @staticmethod
    def _without(key: str, text: str) -> str:
        return text.replace(key, "[key]") if key else text

    def _read(self, answer: httpx.Response, key: str) -> Reply:
        try:
            data = answer.json()
            usage = data.get("usage") or {}
            self._bill(usage.get("prompt_tokens"), usage.get("completion_tokens"))
            choice = data["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason") or "stop"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise _Again("malformed", f"not a chat completion: {self._without(key, answer.text)[:200]!r}") from None
        if not isinstance(text, str):
            raise _Again("malformed", f"its content is {type(text).__name__}, not text")
        with self._lock:
            self.counts["replies"] += 1
        return Reply(self._without(key, text), "length" if finish == "length" else "stop")

    def _bill(self, tokens_in: Any, tokens_out: Any) -> None:
        known = type(tokens_in) is int and type(tokens_out) is int
        with self._lock:
            self.counts["unreported"] += not known
            self.counts["tokens_in"] += tokens_in if known else 0
            self.counts["tokens_out"] += tokens_out if known else 0

    def costs(self) -> dict[str, Any]:
        """{model, replies, tokens_in, tokens_out, unreported (answers without a token count), cost, again: {cause: times}}."""
        with self._lock:
            counts = dict(self.counts)
        again = {name.removeprefix("again: "): n for name, n in sorted(counts.items()) if name.startswith("again: ")}
        tokens = counts.get("tokens_in", 0), counts.get("tokens_out", 0)
        return {"model": self.model, "replies": counts.get("replies", 0), "tokens_in": tokens[0], "tokens_out": tokens[1],
                "unreported": counts.get("unreported", 0), "again": again,
                "cost": round(sum(n * price for n, price in zip(tokens, self.prices, strict=True)) / 1e6, 6)}


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; None for a date or anything else."""
    return float(header) if header and re.fullmatch(r"\d+(\.\d+)?", header.strip()) else None


def text_format(**settings: Any) -> LLMFormat:
    """The format in which `EndpointPolicy` exchanges text with `rollout`: bytes as ids, ChatML around the turns."""
    return LLMFormat(train_tokenizer([], vocab_size=300), **settings)


class EndpointPolicy:
    """The endpoint's model as a policy of `rollout`, through `text_format`; replies have no log-probabilities (zeros)."""

    def __init__(self, endpoint: Endpoint, format: LLMFormat, temperature: float = 0.0, parallel: int = 8) -> None:
        self.endpoint, self.format, self.temperature, self.parallel = endpoint, format, temperature, parallel

    def start(self, prompts: Sequence[list[int]], seed: int) -> EndpointSession:
        return EndpointSession(self, prompts, seed)


class EndpointSession(WholeSequences):
    def __init__(self, policy: EndpointPolicy, sequences: Sequence[list[int]], seed: int) -> None:
        super().__init__(sequences)
        self.policy, self.seed = policy, seed

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        """Replies of all rows, asked for at once; ``max_new_tokens`` counts the model's tokens."""
        with ThreadPoolExecutor(self.policy.parallel) as pool:
            return list(pool.map(lambda row: self._reply(row, max_new_tokens), rows))

    def _reply(self, row: int, max_tokens: int) -> Sample:
        format = self.policy.format
        messages = messages_of(format.tokenizer.decode(self.sequences[row]))
        reply = self.policy.endpoint.chat(
            messages, temperature=self.policy.temperature, max_tokens=max_tokens, seed=self.seed + row)
        ids = format.encode(format.plain(reply.text)) + ([format.end_id] if reply.finish == "stop" else [])
        self.sequences[row] += ids
        return Sample(ids, [0.0] * len(ids), reply.finish)


def messages_of(text: str) -> list[Message]:
    """The messages in ChatML text that ends in the header of the next reply. Contents cannot forge a turn (`LLMFormat.plain`)."""
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
    return [{"role": role, "content": content} for role, content in turns]
