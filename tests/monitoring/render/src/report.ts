// What the page tells the test: every query with its answer, every panel that drew, everything that went wrong.
export interface Asked { panel: string; expr: string; series: number }

export const report = {
  pending: 0,
  started: false,
  queries: [] as Asked[],
  drawn: {} as Record<string, string>, // panel title -> kind
  problems: [] as string[],
};

(window as any).boardReport = report;
