// Buckets over time as coloured cells. Grafana's own heatmap is not published as a package; this one reads the same frames.
import { getValueFormat } from '@grafana/data';
import { useMemo } from 'react';

const LEFT = 64;
const BOTTOM = 22;
// Blue to red through green and yellow, as the scheme the boards ask for.
const color = (share: number) => `hsl(${240 - 240 * share} 85% ${30 + 25 * share}%)`;

function differences(series: any[]) {
  const rows = series
    .map((frame) => {
      const field = frame.fields[1];
      return { bound: Number(field.labels.le.replace('+Inf', 'Infinity')), times: frame.fields[0].values, counts: field.values };
    })
    .sort((a, b) => a.bound - b.bound);
  return rows.map((row, index) => {
    const below = new Map<number, number>(index ? rows[index - 1].times.map((t: number, i: number) => [t, rows[index - 1].counts[i]]) : []);
    return { ...row, counts: row.counts.map((count: number, i: number) => Math.max(count - (below.get(row.times[i]) ?? 0), 0)) };
  });
}

export function Heatmap({ data, fieldConfig, width, height, timeRange }: any) {
  const rows = useMemo(() => {
    const all = differences(data.series);
    const used = all.map((row) => row.counts.some((count: number) => count > 0));
    return all.slice(Math.max(used.indexOf(true) - 1, 0), used.lastIndexOf(true) + 2);
  }, [data]);
  const most = Math.max(...rows.flatMap((row) => row.counts), 1e-9);
  const from = timeRange.from.valueOf();
  const span = timeRange.to.valueOf() - from;
  const times = rows[0]?.times ?? [];
  const step = times.length > 1 ? times[1] - times[0] : span;
  const cellHeight = (height - BOTTOM) / Math.max(rows.length, 1);
  const cellWidth = Math.max(((width - LEFT) * step) / span, 1);
  const format = (bound: number) => {
    if (!Number.isFinite(bound)) { return 'more'; }
    const { text, suffix } = getValueFormat(fieldConfig.defaults.unit)(bound);
    return `${text}${suffix ?? ''}`;
  };
  const labelEvery = Math.ceil(14 / cellHeight);
  const text = { fill: '#ccccdc', fontSize: 11 };
  return (
    <svg width={width} height={height}>
      {rows.map((row, index) => {
        const y = height - BOTTOM - (index + 1) * cellHeight;
        return (
          <g key={row.bound}>
            {index % labelEvery === 0 && <text x={LEFT - 6} y={y + cellHeight / 2 + 4} textAnchor="end" {...text}>{format(row.bound)}</text>}
            {row.counts.map((count: number, i: number) => count > 0 && (
              <rect key={row.times[i]} x={LEFT + ((row.times[i] - from) / span) * (width - LEFT)} y={y}
                width={cellWidth} height={Math.max(cellHeight - 1, 1)} fill={color(Math.sqrt(count / most))} />
            ))}
          </g>
        );
      })}
      {[0, 0.25, 0.5, 0.75].map((share) => (
        <text key={share} x={LEFT + share * (width - LEFT)} y={height - 6} {...text}>
          {new Date(from + share * span).toISOString().slice(11, 19)}
        </text>
      ))}
    </svg>
  );
}
