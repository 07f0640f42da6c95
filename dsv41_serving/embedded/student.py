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
    """Mean KL divergence of student from teacher, nats per token, averaged over samples. `thoughts` is 0 without any."""

    answers: torch.Tensor
    thoughts: torch.Tensor


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
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings and head, [vocabulary, hidden] fp32, learned rows rounded to bf16 as they are stored."""
        embeddings, head = self._frozen.clone(), self._head.clone()
        embeddings[self._row_ids] = self.rows.bfloat16().float()
        head[self._think_end] = self.think_end_row.bfloat16().float()
        return embeddings, head

    def compare(self, samples: Sequence[Sample]) -> Divergence:
        """Return how far the student is from the teacher along the teacher's own words. Differentiable."""
        sequences, spans = self._lay_out(samples)
        width = max(map(len, sequences))
        # Padding on the right needs no mask: causal attention never looks there.
        ids = torch.tensor([sequence + [self._end] * (width - len(sequence)) for sequence in sequences])
        hidden = self._network(inputs_embeds=self._embed(ids)).last_hidden_state
        student = torch.cat([hidden[span.row, span.first : span.first + len(span.text.tokens)] for span in spans])
        weights = torch.cat([torch.full((len(span.text.tokens),), 1 / len(span.text.tokens)) for span in spans])
        in_thought = torch.cat([torch.full((len(span.text.tokens),), span.is_thought) for span in spans])
        target = self._target(torch.cat([span.text.states for span in spans]), in_thought)
        divergence = (torch.xlogy(target, target) - target * self._log_probabilities(student)).sum(-1) * weights
        return Divergence(divergence[~in_thought].sum() / len(samples), divergence[in_thought].sum() / len(samples))

    def _lay_out(self, samples: Sequence[Sample]) -> tuple[list[list[int]], list[_Span]]:
        """Return the token sequences and, of each text in them, where the states lie that predict it."""
        sequences: list[list[int]] = []
        spans: list[_Span] = []
        for row, sample in enumerate(samples):
            sequence = list(sample.prompt)
            if sample.thinking:
                thought = sample.lesson.thought
                spans.append(_Span(row, len(sequence) - 1, thought, is_thought=True))
                sequence += [self._think_end if token == self._end else token for token in thought.tokens]
            spans.append(_Span(row, len(sequence) - 1, sample.lesson.answer, is_thought=False))
            sequences.append(sequence + sample.lesson.answer.tokens)
        return sequences, spans

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        # A product with one-hot rows instead of indexing: its gradient is summed in a fixed order.
        chosen = (ids[..., None] == torch.tensor(self._row_ids)).float()
        return self._frozen[ids] + chosen @ self.rows

    def _log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Return [n, vocabulary] from final hidden states [n, hidden]."""
        logits = states @ self._head.T
        column = (states @ self.think_end_row)[:, None]
        return logits.index_copy(1, torch.tensor([self._think_end]), column).log_softmax(-1)

    @torch.no_grad()
    def _target(self, states: torch.Tensor, in_thought: torch.Tensor) -> torch.Tensor:
        """Return the teacher's distribution [n, vocabulary]; in a thought, the mass of the end closes the thought."""
        probabilities = (states @ self._head.T).softmax(-1)
        move = in_thought.float() * probabilities[:, self._end]
        probabilities[:, self._end] -= move
        probabilities[:, self._think_end] += move
        return probabilities


@dataclass(frozen=True)
class _Span:
    row: int
    first: int
    text: Continuation
    is_thought: bool
