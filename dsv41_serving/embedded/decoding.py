"""Greedy decoding of many prompts at once over a frozen Llama network, with one KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import LlamaModel


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt."""

    tokens: list[int]
    """Token ids, the stop token included when it came within the limit."""
    states: torch.Tensor
    """[len(tokens), hidden] fp32: the final hidden state from which each token was chosen."""
    ended: bool
    """Whether the stop token came within the limit."""


@torch.no_grad()
def decode_greedily(
    network: LlamaModel,
    embeddings: torch.Tensor,
    head: torch.Tensor,
    prompts: Sequence[Sequence[int]],
    *,
    stop: int,
    max_tokens: int,
) -> list[Continuation]:
    """Return the most likely continuation of each prompt, at most `max_tokens` long, in the order of `prompts`.

    `embeddings` is [vocabulary, hidden], `head` [vocabulary, hidden]. The prefix that all prompts share runs once.
    """
    # At least one token of each prompt stays for the batched pass, whose last state chooses the first new token.
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    shared = min(len(list(alike)), min(map(len, prompts)) - 1)
    rests = [list(prompt[shared:]) for prompt in prompts]
    cache = DynamicCache(config=network.config)
    if shared:
        network(inputs_embeds=embeddings[list(prompts[0][:shared])][None], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(prompts))
    width = max(map(len, rests))
    # Padding stands on the left, between the shared prefix and the rest, and is masked out.
    ids = torch.tensor([[stop] * (width - len(rest)) + rest for rest in rests])
    mask = torch.tensor([[1] * shared + [0] * (width - len(rest)) + [1] * len(rest) for rest in rests])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
    tokens: list[list[int]] = [[] for _ in prompts]
    states: list[list[torch.Tensor]] = [[] for _ in prompts]
    running = [True] * len(prompts)
    for _ in range(max_tokens):
        hidden = network(
            inputs_embeds=embeddings[ids],
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        chosen = (hidden @ head.T).argmax(-1)
        for row, token in enumerate(chosen.tolist()):
            if running[row]:
                tokens[row].append(token)
                states[row].append(hidden[row].float())
                running[row] = token != stop
        if not any(running):
            break
        ids = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return [
        Continuation(row_tokens, torch.stack(row_states), not still_running)
        for row_tokens, row_states, still_running in zip(tokens, states, running, strict=True)
    ]
