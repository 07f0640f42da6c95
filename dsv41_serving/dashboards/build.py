"""Turn a board into Grafana's JSON with Grafana's own typed builders. The only module that knows the SDK.

The text is the same every time: keys sorted, panels numbered in reading order, queries lettered.
"""

from __future__ import annotations

import json
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dsv41_serving.dashboards.panel import GRID_WIDTH, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41_serving.dashboards.panel import Board, Panel, Query

TAG = "dsv41"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEADING_HEIGHT = 1
RUNBOOK = "${runbook:raw}"
# Where a runbook entry is read when nobody says otherwise; provisioning and push replace it with `monitoring.runbook_url`.
RUNBOOK_URL = "/runbook"


def dashboard_json(board: Board) -> str:
    """Return the text of the board's JSON file."""
    made = json.loads(JSONEncoder(sort_keys=True).encode(_dashboard(board)))
    made["panels"] = [_placed(item, place, number) for number, (item, place) in enumerate(lay_out(board), start=1)]
    for annotation in made["annotations"]["list"]:
        # The types of the SDK lack the format of an event's text.
        annotation["titleFormat"] = next(event.text for event in board.annotations if event.name == annotation["name"])
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def lay_out(board: Board) -> Iterator[tuple[Row | Panel, dict[str, int]]]:
    """Yield every heading and panel with its place on the grid; panels wrap when a line is full."""
    y = 0
    for row in board.rows:
        yield row, {"x": 0, "y": y, "w": GRID_WIDTH, "h": HEADING_HEIGHT}
        y += HEADING_HEIGHT
        x = line_height = 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                x, y, line_height = 0, y + line_height, 0
            height = panel.height or row.height
            yield panel, {"x": x, "y": y, "w": panel.width, "h": height}
            x += panel.width
            line_height = max(line_height, height)
        y += line_height


def _dashboard(board: Board) -> Any:
    builder = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .refresh("10s")
        .time(board.range, "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Boards")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
        )
        .link(dashboard.DashboardLink("Alerts").type(DashboardLinkType.LINK).url("/alerting/list?queryString=dsv41"))
        .link(dashboard.DashboardLink("Runbook").type(DashboardLinkType.LINK).url(RUNBOOK).target_blank(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("node")
            .label("Node")
            .query("label_values(up, node)")
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        )
        .with_variable(dashboard.ConstantVariable("runbook").value(RUNBOOK_URL))
    )
    for event in board.annotations:
        builder = builder.annotation(
            dashboard.AnnotationQuery()
            .name(event.name)
            .datasource(SOURCE)
            .enable(True)
            .icon_color(event.color)
            .expr(event.expr)
        )
    return builder.build()


def _placed(item: Row | Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    builder = dashboard.Row(item.title) if isinstance(item, Row) else _panel(item)
    made: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    made["id"], made["gridPos"] = number, place
    for letter, target in zip(ascii_uppercase, made.get("targets", []), strict=False):
        target["refId"] = letter
    return made


def _panel(panel: Panel) -> Any:
    builder: Any = _BUILDERS[panel.kind](panel)
    builder = (
        builder.title(panel.title)
        .description(_describe(panel))
        .unit(panel.unit)
        .datasource(SOURCE)
        .thresholds(_thresholds(panel))
        .no_value(panel.empty)
    )
    if panel.decimals is not None:
        builder = builder.decimals(panel.decimals)
    if panel.words:
        builder = builder.mappings(
            [
                ValueMap(
                    {
                        str(word.value): ValueMappingResult(text=word.text, color=word.color, index=index)
                        for index, word in enumerate(panel.words)
                    }
                )
            ]
        )
    for query in panel.queries:
        builder = builder.with_target(_target(panel, query))
        if own := _own_options(query):
            builder = builder.override_by_name(query.legend, own)
    if panel.alerts:
        builder = builder.links([_runbook_link(alert) for alert in panel.alerts])
    return builder


def _own_options(query: Query) -> list[DynamicConfigValue]:
    """Return what one curve does differently from its panel."""
    own = []
    if query.color:
        shade = _SHADES.get(query.color, query.color)
        own.append(DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": shade}))
    if query.right:
        own.append(DynamicConfigValue(id_val="custom.axisPlacement", value="right"))
        own.append(DynamicConfigValue(id_val="unit", value="short"))
    return own


def _runbook_link(alert: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(f"Runbook: {alert}")
        .type(DashboardLinkType.LINK)
        .url(f"{RUNBOOK}#{alert.lower()}")
        .target_blank(True)
    )


def _describe(panel: Panel) -> str:
    parts = [panel.question, panel.reading]
    if panel.alerts:
        parts.append(f"Watched by {', '.join(panel.alerts)}: `dsv41 explain {panel.alerts[0]}` gathers the evidence.")
    return "\n\n".join(part for part in parts if part)


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color=panel.base)]
    steps += [Threshold(value=step.value, color=step.color) for step in panel.steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _target(panel: Panel, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).datasource(SOURCE)
    if panel.kind == "heatmap":
        return target.range().format(PromQueryFormat.HEATMAP)
    if panel.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    if panel.kind in {"stat", "state", "bars"}:
        # Only what is true now: the last value of a range would show a metric that has stopped as if it lived.
        return target.instant()
    return target.range()


def _bound(builder: Any, panel: Panel) -> Any:
    low, high = panel.bounds
    builder = builder if low is None else builder.min(low)
    return builder if high is None else builder.max(high)


def _stat(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        # Names below one another, numbers side by side.
        .orientation(VizOrientation.HORIZONTAL if panel.says == "name" else VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.BACKGROUND if panel.kind == "state" else BigValueColorMode.VALUE)
        .text_mode(_TEXT_MODES[panel.says])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    )


def _lines(panel: Panel) -> timeseries.Panel:
    builder: timeseries.Panel = _bound(
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(60 if panel.kind == "stack" else 8)
        .show_points(VisibilityMode.NEVER)
        .span_nulls(False)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)),
        panel,
    )
    if panel.kind == "stack":
        builder = builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if panel.reach is not None:
        builder = builder.axis_soft_max(panel.reach)
    if panel.logarithmic:
        scale = common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10)
        builder = builder.scale_distribution(scale)
    if panel.steps:
        builder = builder.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    return builder


def _heatmap(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .calculate(calculate=False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Turbo").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .show_legend()
        .cell_gap(1)
    )


def _bars(panel: Panel) -> bargauge.Panel:
    builder: bargauge.Panel = _bound(
        bargauge.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .show_unfilled(True),
        panel,
    )
    return builder


def _table(_: Panel) -> table.Panel:
    return table.Panel().show_header(True)


# What is of no concern stays in the background.
_SHADES = {"text": "#44464f"}
_TEXT_MODES = {
    "value": BigValueTextMode.VALUE,
    "name": BigValueTextMode.NAME,
    "both": BigValueTextMode.VALUE_AND_NAME,
}
_BUILDERS = {
    "stat": _stat,
    "state": _stat,
    "lines": _lines,
    "stack": _lines,
    "heatmap": _heatmap,
    "bars": _bars,
    "table": _table,
}
