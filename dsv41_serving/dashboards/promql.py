"""The query idioms of the boards: a renamed metric or label is one edit.

Every selector is bound to the node that the board shows. Rates use Grafana's `$__rate_interval`, which is never shorter than
four scrapes.
"""

from __future__ import annotations

WINDOW = "$__rate_interval"
NODE = 'node=~"$node"'

PREFILL = 'role=~"prefill|aggregated"'
DECODE = 'role=~"decode|aggregated"'
# The first token of an answer that is not streamed is its last: SGLang observes the whole request there.
STREAMED = 'is_streaming="true"'
ROUTER = 'role="router"'
ENGINE = 'role=~"prefill|decode|aggregated"'


def select(metric: str, *matchers: str) -> str:
    """Return the series of `metric` on the board's node, narrowed by `matchers` such as `role="decode"`."""
    return f"{metric}{{{','.join((NODE, *matchers))}}}"


def equals(label: str, value: str) -> str:
    """Return the matcher `label="value"`."""
    return f'{label}="{value}"'


def rate(metric: str, *matchers: str) -> str:
    """Return what a counter gains per second."""
    return f"rate({select(metric, *matchers)}[{WINDOW}])"


def total(expr: str, *by: str) -> str:
    """Sum `expr`, keeping the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def total_rate(metric: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return what a counter gains per second over all its series, keeping the labels `by`."""
    return total(rate(metric, *matchers), *by)


def quantile(q: float, histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return the `q` quantile of a histogram over the window."""
    return f"histogram_quantile({q}, {total_rate(f'{histogram}_bucket', *matchers, by=('le', *by))})"


def buckets(histogram: str, *matchers: str) -> str:
    """Return how many observations fell into each bucket during the window, for a heatmap."""
    return total(f"increase({select(f'{histogram}_bucket', *matchers)}[{WINDOW}])", "le")


def mean(histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return the mean observation of a histogram over the window."""
    return ratio(
        total_rate(f"{histogram}_sum", *matchers, by=by),
        total_rate(f"{histogram}_count", *matchers, by=by),
    )


def share_below(bound: str, histogram: str, *matchers: str) -> str:
    """Return the share of observations at or below `bound`, which must be a bucket's own `le`."""
    return ratio(
        total_rate(f"{histogram}_bucket", *matchers, equals("le", bound)),
        total_rate(f"{histogram}_count", *matchers),
    )


def ratio(part: str, whole: str) -> str:
    """Divide; where `whole` is zero there is no answer rather than NaN."""
    return f"{part} / ({whole} > 0)"


def or_zero(expr: str, *, like: str) -> str:
    """Return `expr`, and 0 for every series of `like` that has no answer.

    SGLang creates some counters with their first event: until then a rate of nothing is a rate of zero. `like` keeps the
    zero honest: no engine, no zero.
    """
    return f"({expr}) or (0 * ({like}))"
