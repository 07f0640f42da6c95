"""How far rounding carries in a small model of V4.1's structure: `python -m dsv41_kernels.serve.study [GAINS ...]`.

    python -m dsv41_kernels.serve.study attention=0.25 attention=0.5,family=4

Six layers of every kind (window, pair-pooled and single entries, source, reuse, consumer), four residual streams, FP8 products and entries,
FP4 index, 6 of 16 experts, on the CPU, with the gains of `weights.py`. One line for each argument, a mean over three models, says which share of
greedy tokens changes when the outputs of attention and index scores are disturbed by a rounding error of bfloat16 (it should be small), and when
attention, the selection or the experts are taken away (it should be large).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu, softplus

from dsv41_kernels.console import complain, say
from dsv41_kernels.serve.weights import Gains

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDING = 2.0**-9
"""Half a unit in the last place of a bfloat16."""
_RATIOS = (0, 0, 2, 2, 1, 1)
_SOURCES, _SELECTORS = (2, 4), (2, 4, 5)
_SEEDS = (1, 2, 3)
_STREAMS = 4
_EXPERTS, _CHOSEN, _WIDTH = 16, 6, 256
_HEADS, _DIM, _ROPE, _LORA = 8, 128, 32, 192
_INDEX_HEADS, _INDEX_DIM = 8, 32
_CARRIED, _HEADS_AGREE = 2.0, 4.0
_FOCUS_SCALE = (448 / math.sqrt(512)) / ((_DIM - _ROPE) / math.sqrt(_DIM))
"""The salient channels of V4.1's heads over those of these: the same gain then has the same weight in the logits."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model and its one prompt."""

    hidden: int = 512
    vocabulary: int = 4096
    tokens: int = 768
    window: int = 32
    topk: int = 64


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What one run does differently: a relative error on the replaced ops' outputs, and a part taken away."""

    error: float = 0.0
    without: str = ""


def _grouped(x: torch.Tensor, largest: float, rounded: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`x` rounded in groups of 32 that share a power-of-two scale."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp_min(1e-10) / largest)))
    return (rounded(groups / scale) * scale).reshape(x.shape)


def _fp8(x: torch.Tensor) -> torch.Tensor:
    return _grouped(x, 448, lambda codes: codes.to(torch.float8_e4m3fn).float())


def _fp4(x: torch.Tensor) -> torch.Tensor:
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middles = (values[1:] + values[:-1]) / 2
    return _grouped(x, 6, lambda codes: values[torch.bucketize(codes.abs(), middles)] * codes.sign())


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def _norm(x: torch.Tensor) -> torch.Tensor:
    return _bf16(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Model:
    """Weights of one seed; `logits` runs it."""

    def __init__(self, seed: int, gains: Gains, size: Size) -> None:
        self.size, self.gains = size, gains
        self.generator = torch.Generator().manual_seed(seed)
        hidden, salient = size.hidden, 1 - 2.0 * (torch.arange(size.hidden) % 2)
        own = self._draw(size.vocabulary, hidden)
        self.embedding = own + gains.common + gains.salience * self._draw(size.vocabulary, 1) * salient
        count = size.vocabulary // gains.family
        succeeded = torch.randperm(count * gains.family, generator=self.generator) % count
        classes = own[: count * gains.family].view(gains.family, count, hidden).sum(0)
        rows = self._draw(len(succeeded), hidden) / math.sqrt(hidden)
        self.output = gains.certainty * (rows + gains.kinship / hidden * classes[succeeded])
        self.layers = [self._layer(salient) for _ in _RATIOS]
        self.head = self._matrix(_STREAMS, _STREAMS * hidden)
        angle = torch.arange(size.tokens)[:, None] * 10000 ** (-torch.arange(0, _ROPE, 2) / _ROPE)
        self.cos, self.sin = angle.cos(), angle.sin()

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _matrix(self, *shape: int, gain: float = 1.0) -> torch.Tensor:
        return self._draw(*shape) * (gain / math.sqrt(shape[-1]))

    def _layer(self, salient: torch.Tensor) -> dict[str, torch.Tensor]:
        gains, hidden = self.gains, self.size.hidden
        latent = (torch.arange(_DIM) < _DIM - _ROPE).float()
        index = (torch.arange(_INDEX_DIM) < _INDEX_DIM // 2).float()
        ways = {
            "wq_a": (_CARRIED, torch.ones(_LORA), torch.ones(hidden)),
            "wq_b": (gains.focus * _FOCUS_SCALE, latent.repeat(_HEADS), torch.ones(_LORA)),
            "wkv": (_CARRIED, latent, salient),
            "compress": (_CARRIED, latent, salient),
            "index_q": (gains.index, index.repeat(_INDEX_HEADS), torch.ones(_LORA)),
            "index_k": (gains.index, index, latent),
            "index_w": (_HEADS_AGREE, torch.ones(_INDEX_HEADS), torch.ones(hidden)),
        }
        made = {
            name: self._matrix(len(out), len(into)) + gain / len(into) * torch.outer(out, into)
            for name, (gain, out, into) in ways.items()
        }
        return made | {
            "pool": self._matrix(_DIM, hidden),
            "wo_a": self._matrix(2, _DIM, _HEADS * _DIM // 2),
            "wo_b": self._matrix(hidden, 2 * _DIM, gain=gains.attention),
            "sink": 0.1 * self._draw(_HEADS),
            "gate": self._matrix(_EXPERTS, hidden),
            "bias": gains.routing * self._draw(_EXPERTS),
            "w13": self._matrix(_EXPERTS + 1, 2 * _WIDTH, hidden),
            "w2": self._matrix(_EXPERTS + 1, hidden, _WIDTH, gain=gains.experts),
            "mix": self._matrix(2, _STREAMS * (2 + _STREAMS), _STREAMS * hidden, gain=gains.mixing),
        }

    def _rotate(self, x: torch.Tensor, step: int = 1, sign: int = 1) -> torch.Tensor:
        shape = (len(x), *(1 for _ in x.shape[2:]), _ROPE // 2)
        cos, sin = self.cos[::step].view(shape), sign * self.sin[::step].view(shape)
        even, odd = x[..., -_ROPE::2], x[..., -_ROPE + 1 :: 2]
        return torch.cat(
            [x[..., :-_ROPE], torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)], -1
        )

    def _entry(self, latent: torch.Tensor, step: int = 1) -> torch.Tensor:
        """A cache entry: rotated, its other channels in FP8."""
        rotated = _bf16(self._rotate(latent, step))
        return torch.cat([_fp8(rotated[:, :-_ROPE]), rotated[:, -_ROPE:]], 1)

    def logits(self, ids: torch.Tensor, disturbance: Disturbance) -> torch.Tensor:
        """Of every position of the prompt `ids`, bfloat16 values [tokens, vocabulary]."""
        noise = torch.Generator().manual_seed(1)

        def disturbed(x: torch.Tensor) -> torch.Tensor:
            if disturbance.error:
                x = x * (1 + disturbance.error * (2 * torch.rand(x.shape, generator=noise) - 1))
            return _bf16(x)

        streams = _bf16(self.embedding[ids])[:, None].expand(-1, _STREAMS, -1)
        pre = torch.full((len(ids), _STREAMS), 1 / _STREAMS)
        shared: dict[str, torch.Tensor] = {}
        for number, layer in enumerate(self.layers):
            for part in range(2):
                x = _norm((pre[:, :, None] * streams).sum(1))
                pre, post, combination = _mix(streams, layer["mix"][part])
                y = (
                    self._attend(x, number, layer, shared, disturbed, disturbance.without)
                    if part == 0
                    else _experts(x, layer)
                )
                if disturbance.without == ("attention", "experts")[part]:
                    y = torch.zeros_like(y)
                streams = _bf16(post[:, :, None] * y[:, None] + torch.einsum("tji,tjh->tih", combination, streams))
        flat = streams.flatten(1)
        weight = torch.sigmoid((flat @ self.head.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6))
        return _bf16(_norm((weight[:, :, None] * streams).sum(1)) @ self.output.T)

    def _attend(
        self,
        x: torch.Tensor,
        number: int,
        layer: dict[str, torch.Tensor],
        shared: dict[str, torch.Tensor],
        disturbed: Callable[[torch.Tensor], torch.Tensor],
        without: str,
    ) -> torch.Tensor:
        """Attention of one layer; `shared` carries entries, index keys and the selection to the layers that reuse them."""
        tokens, ratio = len(x), _RATIOS[number]
        query_low = _fp8(_norm(_bf16(_fp8(x) @ layer["wq_a"].T)))
        query = _bf16(self._rotate(_bf16(query_low @ layer["wq_b"].T).view(tokens, _HEADS, _DIM)))
        values = self._entry(_norm(_bf16(_fp8(x) @ layer["wkv"].T)))
        place = torch.arange(tokens)
        distance = place[:, None] - place[None, :]
        seen = (distance >= 0) & (distance < self.size.window)
        if ratio:
            if number in _SOURCES:
                latent = _bf16(x @ layer["compress"].T).view(-1, ratio, _DIM)
                share = torch.softmax(_bf16(x @ layer["pool"].T).view(-1, ratio, _DIM), 1)
                latent = _norm((latent * share).sum(1))
                shared["keys"] = _fp4(_norm(_bf16(latent @ layer["index_k"].T)))
                shared["entries"] = self._entry(latent, ratio)
            if number in _SELECTORS:
                index = _fp4(_bf16(query_low @ layer["index_q"].T)).view(tokens, _INDEX_HEADS, _INDEX_DIM)
                products = torch.einsum("thd,sd->ths", index, shared["keys"]).relu()
                scores = disturbed((products * _bf16(x @ layer["index_w"].T)[:, :, None]).sum(1))
                column = torch.arange(scores.shape[1])
                if without == "selection":
                    scores = -column.float().expand_as(scores)  # the oldest entries, whatever they say
                visible = (place[:, None] + 1) // ratio > column
                chosen = scores.masked_fill(~visible, -torch.inf).topk(min(self.size.topk, len(column)), 1).indices
                shared["selected"] = torch.zeros_like(visible).scatter_(1, chosen, value=True) & visible
            values = torch.cat([values, shared["entries"]])
            seen = torch.cat([seen, shared["selected"]], 1)
        logits = torch.einsum("thd,sd->ths", query, values) / math.sqrt(_DIM)
        logits = logits.masked_fill(~seen[:, None], -torch.inf)
        sink = layer["sink"][None, :, None].expand(tokens, -1, 1)
        weight = torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]
        out = disturbed(torch.einsum("ths,sd->thd", weight, values))
        out = _bf16(self._rotate(out, sign=-1)).reshape(tokens, 2, -1)
        return _bf16(_fp8(_bf16(torch.einsum("tgk,gok->tgo", out, layer["wo_a"])).flatten(1)) @ layer["wo_b"].T)


def _mix(streams: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How the streams are read, written and combined: [tokens, 4], [tokens, 4], [tokens, 4, 4] with rows and columns of sum 1."""
    flat = streams.flatten(1)
    mix = (flat @ matrix.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    read, write, combine = mix.split([_STREAMS, _STREAMS, _STREAMS**2], 1)  # type: ignore[no-untyped-call]
    combination = torch.softmax(combine.view(-1, _STREAMS, _STREAMS), -1)
    for _ in range(20):
        combination = combination / combination.sum(1, keepdim=True)
        combination = combination / combination.sum(2, keepdim=True)
    return torch.sigmoid(read), 2 * torch.sigmoid(write), combination / combination.sum(1, keepdim=True)


def _experts(x: torch.Tensor, layer: dict[str, torch.Tensor]) -> torch.Tensor:
    score = softplus(x @ layer["gate"].T).sqrt()
    chosen = (score + layer["bias"]).topk(_CHOSEN, -1).indices
    weight = torch.zeros_like(score).scatter_(1, chosen, score.gather(1, chosen))
    weight = torch.cat(
        [1.5 * weight / weight.sum(1, keepdim=True), torch.ones(len(x), 1)], 1
    )  # the last one is shared by all
    total, inputs = torch.zeros_like(x), _fp8(x)
    for number in range(_EXPERTS + 1):
        rows = weight[:, number].nonzero().squeeze(1)
        gate, up = _bf16(inputs[rows] @ layer["w13"][number].T).chunk(2, 1)
        total[rows] += weight[rows, number, None] * _bf16(_fp8(_bf16(silu(gate) * up)) @ layer["w2"][number].T)
    return _bf16(total)


def examine(gains: Gains, seed: int, size: Size) -> dict[str, float]:
    """Shares of greedy tokens that change (`rounding`, `attention`, `selection`, `experts`), and of those that are distinct."""
    model = Model(seed, gains, size)
    ids = torch.randint(len(model.output), (size.tokens,), generator=torch.Generator().manual_seed(seed + 1))
    late = slice(size.tokens // 4, None)  # positions that select and do not see everything
    greedy = model.logits(ids, Disturbance()).argmax(1)[late]
    runs = {"rounding": Disturbance(error=_ROUNDING)}
    runs |= {part: Disturbance(without=part) for part in ("attention", "selection", "experts")}
    changed = {name: (model.logits(ids, run).argmax(1)[late] != greedy).float().mean() for name, run in runs.items()}
    changed["distinct"] = torch.tensor(len(set(greedy.tolist())) / len(greedy))
    return {name: round(float(share), 4) for name, share in changed.items()}


def main(arguments: list[str]) -> int:
    """One line for each set of gains; 2 for one that cannot be read."""
    for text in arguments or [""]:
        try:
            gains = Gains.read(text)
        except ValueError as error:
            complain(str(error))
            return 2
        found = [examine(gains, seed, Size()) for seed in _SEEDS]
        means = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
        say(f"{text or 'defaults'}: " + ", ".join(f"{name} {share:.1%}" for name, share in means.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
