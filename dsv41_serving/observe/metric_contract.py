"""The metric contract: whatever a board, a rule or a document asks for exists, with that label and of that type.

Expressions are parsed, never matched by eye: selectors against the known metrics, grouping and matching labels against what
their operands carry, rates against counters, slopes against gauges.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import promql_parser

from dsv41_serving.observe.known_metrics import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_COUNTER_FUNCTIONS = frozenset({"rate", "irate", "increase", "resets"})
_GAUGE_FUNCTIONS = frozenset({"deriv", "predict_linear", "delta", "idelta"})
_LITERALS = re.compile(r"[\w.\-]+(\|[\w.\-]+)*")
# Grafana's variables in ranges, and what they stand for here.
_RANGES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h", "$__range_s": "3600", "$interval": "5m"}

# Label values that exist in the source and do not show where pages are recorded: a sound machine without a GPU.
UNSEEN = {
    ("mode", "decode_cuda_graph"): "a step as a CUDA graph",
    ("mode", "prefill_cuda_graph"): "a prefill as a CUDA graph",
    ("role", "aggregated"): "another shape than the recorded one",
    ("cache_source", "host"): "hierarchical cache",
    ("cache_source", "storage"): "hierarchical cache",
    ("lane", "tcp"): "measured by the transport proof",
    ("ending", "empty"): "an answer after a failed hand-off",
}


class Contract:
    """Judge expressions against what is known. Recording rules become known as they are added."""

    def __init__(self, known: dict[str, Series]) -> None:
        """Judge against `known`, which grows by `add_rule`."""
        self._known = known

    def add_rule(self, name: str, expression: str, labels: dict[str, str]) -> list[str]:
        """Judge a recording rule and remember what it makes; return the problems."""
        problems: list[str] = []
        carried = self._labels(_parse(expression), problems) if not (problem := _syntax(expression)) else set()
        series = self._known.setdefault(name, Series("gauge", set(), origin="recording rule"))
        series.labels |= {*carried, *labels}
        for label, value in labels.items():
            series.values.setdefault(label, set()).add(value)
        return [problem] if problem else problems

    def judge(self, expression: str) -> list[str]:
        """Return what is wrong with an expression; Grafana's variables may stand in it."""
        for variable, value in _RANGES.items():
            expression = re.sub(rf"{re.escape(variable)}\b", value, expression)
        expression = re.sub(r"\$\{(\w+)(:\w+)?\}", r"$\1", expression)
        if problem := _syntax(expression):
            return [problem]
        problems: list[str] = []
        self._labels(_parse(expression), problems)
        return problems

    def _labels(self, node: Any, problems: list[str]) -> set[str]:
        """Return the labels that the result of `node` carries, none when they are not known; add what is wrong below it to `problems`."""
        visit: dict[type[Any], Callable[[Any, list[str]], set[str]]] = {
            promql_parser.VectorSelector: self._select,
            promql_parser.MatrixSelector: lambda found, into: self._select(found.vector_selector, into),
            promql_parser.SubqueryExpr: lambda found, into: self._labels(found.expr, into),
            promql_parser.ParenExpr: lambda found, into: self._labels(found.expr, into),
            promql_parser.UnaryExpr: lambda found, into: self._labels(found.expr, into),
            promql_parser.AggregateExpr: self._aggregate,
            promql_parser.BinaryExpr: self._combine,
            promql_parser.Call: self._call,
        }
        return visit[type(node)](node, problems) if type(node) in visit else set()  # a literal carries no labels

    def _select(self, selector: Any, problems: list[str]) -> set[str]:
        name = selector.name or next((m.value for m in selector.matchers.matchers if m.name == "__name__"), "")
        series = self._known.get(name)
        if series is None:
            near = difflib.get_close_matches(name, self._known, n=1)
            problems.append(f"there is no metric {name}{f'; did you mean {near[0]}?' if near else ''}")
            return set()
        for matcher in selector.matchers.matchers:
            if matcher.name not in series.labels | {"__name__"} and not series.open_labels:
                problems.append(f"{name} has no label '{matcher.name}'; it has {', '.join(sorted(series.labels))}")
            elif values := _unseen_values(series, matcher):
                seen = ", ".join(sorted(series.values[matcher.name])[:12])
                problems.append(f"{name} was never seen with {matcher.name}={'|'.join(values)}; seen: {seen}")
        return set() if series.open_labels else set(series.labels)

    def _aggregate(self, node: Any, problems: list[str]) -> set[str]:
        inner = self._labels(node.expr, problems)
        if node.modifier is None:
            return set()
        named = set(node.modifier.labels)
        if node.modifier.type == promql_parser.AggModifierType.Without:
            return inner - named
        if inner and (strange := named - inner):
            problems.append(f"by ({', '.join(sorted(strange))}): no such label in {node.expr.prettify().strip()}")
        return named

    def _combine(self, node: Any, problems: list[str]) -> set[str]:
        left, right = self._labels(node.lhs, problems), self._labels(node.rhs, problems)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None and matching.type == promql_parser.LabelModifierType.Include:
            for side, labels in (("left", left), ("right", right)):
                if labels and (strange := set(matching.labels) - labels):
                    problems.append(f"on ({', '.join(sorted(strange))}): no such label on the {side} of {_short(node)}")
        group = set(node.modifier.group_labels or ()) if node.modifier is not None else set()
        if not left or not right:
            return left | right
        many_right = node.modifier is not None and node.modifier.card == promql_parser.VectorMatchCardinality.OneToMany
        return (right if many_right else left) | group

    def _call(self, node: Any, problems: list[str]) -> set[str]:
        function, labels = node.func.name, set[str]()
        for argument in node.args:
            labels |= self._labels(argument, problems)
        for name in _ranged(node.args):
            kind = self._known[name].kind if name in self._known else None
            if function in _COUNTER_FUNCTIONS and kind == "gauge":
                problems.append(f"{function}({name}): it is a gauge")
            if function in _GAUGE_FUNCTIONS and kind == "counter":
                problems.append(f"{function}({name}): it is a counter")
        if function == "histogram_quantile":
            if labels and "le" not in labels:
                problems.append(f"histogram_quantile without le in {_short(node)}")
            labels -= {"le"}
        if function in {"vector", "time", "scalar"}:
            return set()
        if function == "label_replace":
            labels.add(node.args[1].val)
        return labels


def _ranged(arguments: Iterable[Any]) -> Iterator[str]:
    """Yield the metrics that a function sees as they are: a subquery over something computed is no counter any more."""
    for argument in arguments:
        if isinstance(argument, promql_parser.MatrixSelector):
            yield argument.vector_selector.name or ""


def _unseen_values(series: Series, matcher: Any) -> list[str]:
    """Return the literal values a matcher wants that no recorded page had; variables and real patterns pass."""
    pattern = matcher.op == promql_parser.MatchOp.Re
    if not (pattern or matcher.op == promql_parser.MatchOp.Equal) or not series.values.get(matcher.name):
        return []
    if not _LITERALS.fullmatch(matcher.value) or (pattern and "." in matcher.value):
        return []
    seen = series.values[matcher.name]
    return [v for v in matcher.value.split("|") if v not in seen and (matcher.name, v) not in UNSEEN]


def _parse(expression: str) -> Any:
    return promql_parser.parse(expression)


def _syntax(expression: str) -> str:
    try:
        _parse(expression)
    except ValueError as error:
        return f"does not parse: {error}"
    return ""


def _short(node: Any) -> str:
    text = " ".join(node.prettify().split())
    return text if len(text) <= 100 else f"{text[:99]}…"  # noqa: PLR2004 - one line of a report
