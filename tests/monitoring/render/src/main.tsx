// Draws /board.json with Grafana's scenes engine: variables, queries, grid, panel frames, units, thresholds, curves are
// Grafana's. Not here: Grafana's server, its panel plugins, annotations, alerting.
import {
  EventBusSrv, LoadingState, standardEditorsRegistry, standardFieldConfigEditorRegistry, standardTransformersRegistry, ThemeContext,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import * as runtime from '@grafana/runtime';
import {
  ConstantVariable, EmbeddedScene, QueryVariable, SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimeRange,
  SceneVariableSet, VariableValueSelectors, VizPanel,
} from '@grafana/scenes';
import { GlobalStyles } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { map } from 'rxjs';
import { plugins, standardOptions, theme } from './panels';
import { PrometheusSource } from './prometheus';
import { report } from './report';

const SOURCE = { type: 'prometheus', uid: 'prometheus' };
const POINTS = 300;

// What Grafana's front end puts into its packages at start.
function startRuntime() {
  const settings: any = { ...SOURCE, id: 1, name: 'prometheus', meta: { id: 'prometheus', info: { logos: {} } }, jsonData: {} };
  const source = new PrometheusSource(settings);
  const grafana = runtime as any;
  grafana.config.theme2 = theme;
  grafana.setDataSourceSrv({
    get: async () => source, getInstanceSettings: () => settings, getList: () => [settings], reload() {}, registerRuntimeDataSource() {},
  });
  grafana.setTemplateSrv?.({ getVariables: () => [], replace: (text: any) => text, containsTemplate: () => false, updateTimeRange() {} });
  grafana.setEchoSrv?.({ addEvent() {}, addBackend() {}, flush() {} });
  grafana.setAppEvents?.(new EventBusSrv());
  grafana.setRunRequest((from: any, request: any) => from.query(request).pipe(map((answer: any) => ({
    ...answer, series: answer.data, annotations: [], request, timeRange: request.range, state: answer.state ?? LoadingState.Done,
  }))));
  grafana.setPluginImportUtils({
    getPanelPluginFromCache: (id: string) => plugins[id],
    importPanelPlugin: async (id: string) => {
      if (!plugins[id]) { report.problems.push(`nothing draws panels of type ${id}`); }
      return plugins[id];
    },
  });
  (standardTransformersRegistry as any).setInit?.(() => []);
  standardEditorsRegistry.setInit(() => []);
  standardFieldConfigEditorRegistry.setInit(standardOptions);
}

function variable(model: any): any {
  const common = { name: model.name, label: model.label, hide: model.hide };
  switch (model.type) {
    case 'query':
      return new QueryVariable({
        ...common, datasource: SOURCE, query: model.query, isMulti: model.multi, includeAll: model.includeAll, defaultToAll: model.includeAll,
      });
    case 'datasource':
      return new ConstantVariable({ ...common, value: SOURCE.uid });
    default:
      return new ConstantVariable({ ...common, value: model.query });
  }
}

function gridItem(panel: any): SceneGridItem {
  const { x, y, w, h } = panel.gridPos;
  return new SceneGridItem({
    x, y, width: w, height: h,
    body: new VizPanel({
      key: `panel-${panel.id}`, title: panel.title, description: panel.description, pluginId: panel.type,
      options: panel.options ?? {}, fieldConfig: panel.fieldConfig,
      $data: new SceneQueryRunner({ datasource: SOURCE, queries: panel.targets, maxDataPoints: POINTS }),
    }),
  });
}

function rows(panels: any[]): SceneGridRow[] {
  const found: SceneGridRow[] = [];
  for (const panel of panels) {
    if (panel.type === 'row') {
      found.push(new SceneGridRow({ key: `row-${panel.id}`, title: panel.title, y: panel.gridPos.y, children: [] }));
    } else {
      const row = found[found.length - 1];
      row.setState({ children: [...row.state.children, gridItem(panel)] });
    }
  }
  return found;
}

async function draw() {
  startRuntime();
  await initPluginTranslations('grafana').catch(() => undefined); // English without it
  const board = await (await fetch('/board.json')).json();
  const from = new URLSearchParams(location.search).get('from') ?? board.time.from;
  const scene = new EmbeddedScene({
    $timeRange: new SceneTimeRange({ from, to: 'now', timeZone: 'utc' }),
    $variables: new SceneVariableSet({ variables: board.templating.list.map(variable) }),
    controls: [new VariableValueSelectors({})],
    body: new SceneGridLayout({ children: rows(board.panels) }),
  });
  scene.activate();
  createRoot(document.getElementById('board')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <MemoryRouter>
        <main style={{ padding: 8 }}>
          <div style={{ fontSize: 16, paddingBottom: 4 }}>{board.title}</div>
          <scene.Component model={scene} />
        </main>
      </MemoryRouter>
    </ThemeContext.Provider>,
  );
  report.started = true;
}

draw().catch((error) => report.problems.push(`page: ${error.stack}`));
