"""A vLLM server as a policy of `rollout`: token ids go in and come back, no text is tokenised on the way.

vLLM keeps the prefix of an episode itself, so that each turn sends the whole sequence. Equal seeds give equal samples only
while the server batches alike; log-probabilities differ from the trainer's by rounding (`mismatch`, `importance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from sagelib.policy import Sample, WholeSequences


class VllmError(RuntimeError):
    """The server refused a request or answered something else; the text says which."""


class VllmPolicy:
    """The server's model at a fixed temperature. ``parallel``: rows sent at once, which vLLM computes as one batch."""

    def __init__(self, url: str, end_ids: frozenset[int], temperature: float = 1.0, parallel: int = 64) -> None:
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0 (0 = greedy), got {temperature}")
        self.end_ids, self.temperature, self.parallel = end_ids, temperature, parallel
        self.client = httpx.Client(base_url=url, timeout=600.0, trust_env=False,
                                   limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel))

    def start(self, prompts: Sequence[list[int]], seed: int) -> VllmSession:
        return VllmSession(self, prompts, seed)


class VllmSession(WholeSequences):
    def __init__(self, policy: VllmPolicy, prompts: Sequence[list[int]], seed: int) -> None:
        super().__init__(prompts)
        self.policy, self.seed, self.calls = policy, seed, 0

    def generate(self, rows: Sequence[int], max_new_tokens: int) -> list[Sample]:
        self.calls += 1
        with ThreadPoolExecutor(self.policy.parallel) as pool:
            return list(pool.map(lambda row: self._reply(row, max_new_tokens), rows))

    def _reply(self, row: int, max_new_tokens: int) -> Sample:
        prompt = self.sequences[row]
        body = {
            "model": "policy", "prompt": prompt, "max_tokens": max_new_tokens, "temperature": self.policy.temperature,
            "seed": (self.seed * 1_000_003 + self.calls * 10_007 + row) % 2**31,   # rows of one prompt must differ
            "logprobs": 0, "return_token_ids": True, "ignore_eos": True, "stop_token_ids": sorted(self.policy.end_ids),
            "skip_special_tokens": False, "add_special_tokens": False}
        try:
            answer = self.policy.client.post("/v1/completions", json=body)
        except httpx.TransportError as error:
            raise VllmError(f"no answer from vLLM for a prompt of {len(prompt)} tokens: {type(error).__name__}") from None
        if answer.status_code != 200:
            raise VllmError(f"vLLM refused a prompt of {len(prompt)} tokens and {max_new_tokens} more, "
                            f"status {answer.status_code}: {answer.text[:300]}")
        return self._read(answer, row)

    def _read(self, answer: httpx.Response, row: int) -> Sample:
        try:
            [choice] = answer.json()["choices"]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            finish = {"stop": "stop", "length": "length"}[choice["finish_reason"]]
        except (ValueError, KeyError, TypeError) as error:
            raise VllmError(f"not a completion with token ids ({type(error).__name__}): {answer.text[:300]}") from None
        if len(ids) != len(logprobs) or (finish == "stop") != (bool(ids) and ids[-1] in self.policy.end_ids):
            raise VllmError(f"{len(ids)} ids, {len(logprobs)} log-probabilities, finish {finish!r}, last id {ids[-1:]}: "
                            "they do not agree")
        self.sequences[row] += ids
        return Sample(ids, logprobs, finish)
