// How each kind of panel is drawn. Curves, numbers, bars and tables are Grafana's own components from @grafana/ui with the
// board's units, thresholds and words; only the plugin code around them is not published.
import {
  booleanOverrideProcessor, createTheme, displayNameOverrideProcessor, getDisplayValueAlignmentFactors, getFieldDisplayValues,
  identityOverrideProcessor, numberOverrideProcessor, PanelPlugin, thresholdsOverrideProcessor, unitOverrideProcessor, valueMappingsOverrideProcessor,
} from '@grafana/data';
import * as grafana from '@grafana/ui';
import type { ComponentType } from 'react';
import { Heatmap } from './heatmap';
import { report } from './report';

const ui = grafana as any;
export const theme = createTheme({ colors: { mode: 'dark' } });
const unchanged = (text: any) => text;

function Curves(panel: any) {
  return <ui.TimeSeries frames={panel.data.series} structureRev={1} timeRange={panel.timeRange} timeZone={['utc']} width={panel.width}
    height={panel.height} options={panel.options} replaceVariables={unchanged} legend={panel.options.legend} />;
}

function shown(panel: any): any[] {
  return getFieldDisplayValues({
    data: panel.data.series, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
    replaceVariables: unchanged, theme, timeZone: 'utc',
  } as any);
}

function Numbers(panel: any) {
  const values = shown(panel);
  const { options } = panel;
  const stacked = options.orientation === 'horizontal';
  const [wide, high] = stacked ? [1, values.length] : [values.length, 1];
  return <div style={{ display: 'flex', flexDirection: stacked ? 'column' : 'row', gap: 4 }}>{values.map((value, index) => (
    <ui.BigValue key={index} value={value.display} theme={theme} width={panel.width / wide - 4} height={panel.height / high - (high > 1 ? 4 : 0)}
      colorMode={options.colorMode} graphMode={options.graphMode} textMode={options.textMode} justifyMode="center" />))}</div>;
}

function Bars(panel: any) {
  const values = shown(panel);
  const alignmentFactors = getDisplayValueAlignmentFactors(values);
  return <>{values.map((value, index) => (
    <ui.BarGauge key={index} value={value.display} field={value.field} theme={theme} width={panel.width}
      height={Math.min(panel.height / values.length - 4, 90)} orientation={panel.options.orientation} itemSpacing={4}
      displayMode={panel.options.displayMode} showUnfilled={panel.options.showUnfilled} alignmentFactors={alignmentFactors}
      text={{ titleSize: 13, valueSize: 16 }} />))}</>;
}

function Rows(panel: any) {
  return <ui.Table data={panel.data.series[0]} width={panel.width} height={panel.height} />;
}

// A panel without data says so and is counted, like one that draws.
const counted = (kind: string, Draw: ComponentType<any>) => function Panel(panel: any) {
  const empty = !panel.data.series.length;
  report.drawn[panel.title] = empty ? 'no data' : kind;
  return empty ? <div style={{ color: '#8e8e9a', textAlign: 'center', paddingTop: panel.height / 2 - 10 }}>{panel.fieldConfig.defaults.noValue}</div> : <Draw {...panel} />;
};

const KINDS: Record<string, ComponentType<any>> = {
  timeseries: Curves, heatmap: Heatmap, stat: Numbers, bargauge: Bars, table: Rows,
};

// A field keeps only options that its plugin has registered.
const curveOptions: any = {
  standardOptions: { color: { defaultValue: { mode: 'palette-classic' } } },
  useCustomConfig: (builder: any) => {
    for (const path of ['axisPlacement', 'axisSoftMax', 'drawStyle', 'fillOpacity', 'lineWidth', 'scaleDistribution', 'showPoints', 'spanNulls', 'stacking', 'thresholdsStyle']) {
      builder.addCustomEditor({
        id: path, path, name: path, editor: () => null, override: () => null, process: identityOverrideProcessor, shouldApply: () => true,
        settings: {},
      });
    }
  },
};

export const plugins: Record<string, PanelPlugin> = Object.fromEntries(Object.entries(KINDS).map(([id, Draw]) => {
  const plugin = new PanelPlugin(counted(id, Draw) as any);
  plugin.meta = { id, name: id, type: 'panel', module: '', baseUrl: '', info: { version: '13', logos: {} } } as any;
  plugin.useFieldConfig(id === 'timeseries' ? curveOptions : {});
  return [id, plugin];
}));

// The options every panel has. Grafana's front end registers them at its start; without them units and colours are dropped.
export function standardOptions(): any[] {
  const option = (id: string, process: any, defaultValue?: any) => ({
    id, path: id, name: id, description: '', defaultValue, process, settings: {}, editor: () => null, override: () => null,
    shouldApply: () => true, getItemsCount: () => 0,
  });
  return [
    option('unit', unitOverrideProcessor), option('min', numberOverrideProcessor), option('max', numberOverrideProcessor),
    option('decimals', numberOverrideProcessor), option('displayName', displayNameOverrideProcessor),
    option('noValue', identityOverrideProcessor), option('links', identityOverrideProcessor),
    option('filterable', booleanOverrideProcessor), option('mappings', valueMappingsOverrideProcessor, []),
    option('color', identityOverrideProcessor, { mode: 'thresholds' }),
    option('thresholds', thresholdsOverrideProcessor, { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }] }),
  ];
}
