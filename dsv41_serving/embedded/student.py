"""The model with V4.1's tokens: a frozen network and the few rows that learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import LlamaModel

    from dsv41_serving.embedded.decoding import Continuation
    from dsv41_serving.embedded.teacher import Lesson


@dataclass(frozen=True)
class Sample:
    """A V4.1 prompt and what the student should write after it: the lesson's thought (if thinking) and answer."""

    prompt: Sequence[int]
    lesson: Lesson
    thinking: bool


@dataclass(frozen=True)
class Divergence:
    """Mean KL divergence of the student from the teacher, nats per token (scalars). `thought` is 0 without thinking."""

    answer: torch.Tensor
    thought: torch.Tensor


class Student:
    """Embeddings and head over a frozen network, where some input rows and one output row are parameters."""

    def __init__(
        self,
        network: LlamaModel,
        embeddings: torch.Tensor,
        *,
        initial_rows: Mapping[int, torch.Tensor],
        end: int,
        think_end: int,
    ) -> None:
        """Extend the teacher.

        `embeddings` is [vocabulary, hidden] fp32, input rows and head alike, the appended tokens included. The input
        rows named in `initial_rows` (token id → [hidden]) and the output row of `think_end` learn. The latter starts as
        half the row of `end`, which the teacher writes where the student is to close its thought.
        """
        self._network = network
        self._head = embeddings
        self._row_ids = list(initial_rows)
        self._frozen = embeddings.index_fill(0, torch.tensor(self._row_ids), 0.0)
        self._end, self._think_end = end, think_end
        self.rows = torch.nn.Parameter(torch.stack([initial_rows[each] for each in self._row_ids]))
        self.think_end_row = torch.nn.Parameter(embeddings[end] / 2)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return what learns."""
        return [self.rows, self.think_end_row]

    @torch.no_grad()
    def round_rows(self) -> None:
        """Round what was learned to bf16, as it is stored; what is measured afterwards is the stored model."""
        for parameter in self.parameters():
            parameter.copy_(parameter.bfloat16())

    @torch.no_grad()
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings and head with the learned rows in place, each [vocabulary, hidden] fp32."""
        embeddings, head = self._frozen.clone(), self._head.clone()
        embeddings[self._row_ids] = self.rows
        head[self._think_end] = self.think_end_row
        return embeddings, head

    def compare(self, sample: Sample) -> Divergence:
        """Return how far the student is from the teacher along the teacher's own words. Differentiable."""
        answer, thought = sample.lesson.answer, sample.lesson.thought
        sequence = list(sample.prompt)
        thought_start = len(sequence)
        if sample.thinking:
            sequence += [self._think_end if token == self._end else token for token in thought.tokens]
        answer_start = len(sequence)
        sequence += answer.tokens
        # The state at a position predicts the next token, so every text begins one position early.
        states = self._network(inputs_embeds=self._embed(sequence)).last_hidden_state[0, :-1]
        thought_loss = torch.zeros(())
        if sample.thinking:
            target = self._target(thought)
            # Where the teacher would end, the student is to close its thought.
            target[:, self._think_end] += target[:, self._end]
            target[:, self._end] = 0
            thought_loss = self._divergence(states[thought_start - 1 : answer_start - 1], target)
        return Divergence(self._divergence(states[answer_start - 1 :], self._target(answer)), thought_loss)

    def _embed(self, sequence: Sequence[int]) -> torch.Tensor:
        """Return [1, len(sequence), hidden]."""
        ids = torch.tensor(sequence)
        # A product with one-hot rows instead of indexing: its gradient is summed in a fixed order.
        chosen = (ids[:, None] == torch.tensor(self._row_ids)).float()
        return (self._frozen[ids] + chosen @ self.rows)[None]

    @torch.no_grad()
    def _target(self, text: Continuation) -> torch.Tensor:
        """Return the teacher's distribution at each token of `text`, [len(text.tokens), vocabulary]."""
        return (text.states @ self._head.T).softmax(-1)

    def _divergence(self, states: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean over rows of KL(target ‖ student); `states` is [n, hidden], `target` [n, vocabulary]."""
        logits = states @ self._head.T
        column = (states @ self.think_end_row)[:, None]
        student = logits.index_copy(1, torch.tensor([self._think_end]), column).log_softmax(-1)
        return (torch.xlogy(target, target) - target * student).sum(-1).mean()
