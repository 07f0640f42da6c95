// The data source: a real Prometheus behind the page's own address, asked as Grafana's Prometheus data source asks.
import { type DataFrame, DataSourceApi, FieldType, LoadingState, toDataFrame } from '@grafana/data';
import { sceneGraph, VizPanel } from '@grafana/scenes';
import { from } from 'rxjs';
import { report } from './report';

const scrape = Number(new URLSearchParams(location.search).get('scrape') ?? 5);

async function call(path: string, params: Record<string, string | number>): Promise<any> {
  report.pending += 1;
  try {
    const query = new URLSearchParams(Object.entries(params).map(([k, v]) => [k, String(v)]));
    const body = await (await fetch(`/prometheus/api/v1/${path}?${query}`)).json();
    if (body.status !== 'success') { throw new Error(body.error); }
    return body.data;
  } finally {
    report.pending -= 1;
  }
}

function inRegex(value: unknown): string {
  const escape = (text: unknown) => String(text).replace(/[\\^$.*+?()[\]{}|]/g, '\\\\$&');
  return Array.isArray(value) ? `(${value.map(escape).join('|')})` : String(value);
}

function nameOf(format: string, labels: Record<string, string>): string {
  return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

function frame(target: any, row: any, step: number): DataFrame {
  const samples: Array<[number, string]> = row.values ?? [row.value];
  const { __name__, ...labels } = row.metric;
  return toDataFrame({
    refId: target.refId,
    name: nameOf(target.legendFormat, row.metric),
    fields: [
      // With the interval a curve breaks where samples are missing instead of running straight across.
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: samples.map(([at]) => at * 1000) },
      {
        name: 'Value', type: FieldType.number, labels,
        config: { displayNameFromDS: nameOf(target.legendFormat, row.metric) },
        values: samples.map(([, value]) => (value === 'NaN' ? null : Number(value.replace('Inf', 'Infinity')))),
      },
    ],
  });
}

function tableFrame(target: any, rows: any[]): DataFrame {
  const labels = [...new Set(rows.flatMap((row) => Object.keys(row.metric)))].filter((label) => label !== '__name__');
  return toDataFrame({
    refId: target.refId,
    fields: labels.map((label) => ({
      name: label, type: FieldType.string, config: {}, values: rows.map((row) => row.metric[label] ?? ''),
    })),
  });
}

export class PrometheusSource extends DataSourceApi<any> {
  query(request: any): any { return from(this.answer(request)); }

  private async answer(request: any) {
    const scene = request.scopedVars?.__sceneObject?.value?.valueOf?.();
    const panel = scene?.parent instanceof VizPanel ? scene.parent.state.title : '';
    const end = request.range.to.valueOf() / 1000;
    const start = request.range.from.valueOf() / 1000;
    const step = Math.max(Math.ceil((request.intervalMs ?? 1000) / 1000), scrape);
    const builtIn: Record<string, string> = {
      __rate_interval: `${Math.max(step + scrape, 4 * scrape)}s`, __interval: `${step}s`, __range: `${Math.round(end - start)}s`,
    };
    const data: DataFrame[] = [];
    const errors: any[] = [];
    for (const target of request.targets) {
      const known = target.expr.replace(/\$(__\w+)/g, (all: string, name: string) => builtIn[name] ?? all);
      const expr = scene ? sceneGraph.interpolate(scene, known, request.scopedVars, inRegex) : known;
      const asked = { panel, expr, series: 0 };
      report.queries.push(asked);
      try {
        const answer = target.instant
          ? await call('query', { query: expr, time: end })
          : await call('query_range', { query: expr, start, end, step });
        asked.series = answer.result.length;
        if (target.format === 'table') {
          if (answer.result.length) { data.push(tableFrame(target, answer.result)); }
        } else {
          data.push(...answer.result.map((row: any) => frame(target, row, step)));
        }
      } catch (error: any) {
        report.problems.push(`${panel}: ${error.message}: ${expr}`);
        errors.push({ refId: target.refId, message: error.message });
      }
    }
    return { data, errors: errors.length ? errors : undefined, state: errors.length ? LoadingState.Error : LoadingState.Done };
  }

  async metricFindQuery(query: any) {
    const text = typeof query === 'string' ? query : query.query;
    const [, metric, label] = /^label_values\((\w+), (\w+)\)$/.exec(text) ?? [];
    if (!label) { report.problems.push(`variable: the page cannot run ${text}`); return []; }
    const values = await call(`label/${label}/values`, { 'match[]': metric });
    if (!values.length) { report.problems.push(`variable: ${text} has no value`); }
    return values.map((value: string) => ({ text: value }));
  }

  async testDatasource() { return { status: 'success', message: '' }; }
}
