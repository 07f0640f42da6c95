"""Batched greedy decoding against one prompt at a time without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from dsv41_serving.embedded.decoding import decode_greedily

if TYPE_CHECKING:
    from transformers import LlamaModel

STOP = 3


def decode_one(
    network: LlamaModel, embeddings: torch.Tensor, prompt: list[int], max_tokens: int
) -> tuple[list[int], list[torch.Tensor]]:
    """The definition: run the whole sequence again for every new token."""
    sequence, states = list(prompt), []
    for _ in range(max_tokens):
        hidden = network(inputs_embeds=embeddings[sequence][None]).last_hidden_state[0, -1]
        states.append(hidden)
        sequence.append(int((embeddings @ hidden).argmax()))
        if sequence[-1] == STOP:
            break
    return sequence[len(prompt) :], states


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param([[5, 6, 7]], id="one"),
        pytest.param([[5, 6, 7, 8], [5, 6, 9], [5, 6, 10, 11, 12, 13]], id="shared-prefix-and-padding"),
        pytest.param([[4, 6, 7, 8], [5, 6]], id="nothing-shared"),
        pytest.param([[5, 6], [5, 6, 7]], id="one-prompt-is-the-prefix"),
        pytest.param([[5, 6, 7], [5, 6, 7]], id="equal-prompts"),
    ],
)
def test_same_tokens_and_states_as_one_by_one(
    prompts: list[list[int]], tiny_network: LlamaModel, tiny_embeddings: torch.Tensor
) -> None:
    """Batching, the shared prefix, padding and the cache change nothing but rounding."""
    found = decode_greedily(tiny_network, tiny_embeddings, tiny_embeddings, prompts, stop=STOP, max_tokens=8)
    for prompt, continuation in zip(prompts, found, strict=True):
        tokens, states = decode_one(tiny_network, tiny_embeddings, prompt, 8)
        assert continuation.tokens == tokens
        assert continuation.ended == (tokens[-1] == STOP)
        torch.testing.assert_close(continuation.states, torch.stack(states), rtol=1e-4, atol=1e-4)


def test_stops_at_the_stop_token(tiny_network: LlamaModel, tiny_embeddings: torch.Tensor) -> None:
    """A continuation ends with the stop token and counts as ended, while others go on to the limit."""
    free = decode_greedily(tiny_network, tiny_embeddings, tiny_embeddings, [[5, 6, 7], [8, 9]], stop=-1, max_tokens=6)
    stop = free[0].tokens[2]
    assert stop not in free[0].tokens[:2]
    stopped = decode_greedily(tiny_network, tiny_embeddings, tiny_embeddings, [[5, 6, 7]], stop=stop, max_tokens=6)[0]
    assert stopped.tokens == free[0].tokens[:3]
    assert stopped.ended
    assert not free[0].ended
    assert len(free[0].tokens) == 6
