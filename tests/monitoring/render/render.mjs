// render.mjs --prometheus URL --out DIR [--range SECONDS] [--scrape SECONDS] BOARD.json...
// Draws each board at kiosk and laptop size, writes pictures to DIR and a report (JSON) to stdout.
// CHROMIUM names the browser (default chromium). Build the page first: npm run build.
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { execFileSync } from 'node:child_process';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';

const SIZES = { kiosk: { width: 1920, height: 1080 }, laptop: { width: 1440, height: 900 } };
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json' };
const DRAW_TIMEOUT_MS = 120_000;
const QUIET_MS = 1500;

const { values: options, positionals: boards } = parseArgs({
  allowPositionals: true,
  options: {
    prometheus: { type: 'string' }, out: { type: 'string' }, range: { type: 'string', default: '300' }, scrape: { type: 'string', default: '5' },
  },
});
const dist = path.join(import.meta.dirname, 'dist');
let board = boards[0];

function forward(request, response) {
  http.get(options.prometheus + request.url.slice('/prometheus'.length), (answer) => {
    response.writeHead(answer.statusCode, { 'content-type': 'application/json' });
    answer.pipe(response);
  }).on('error', (error) => {
    response.writeHead(502, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ status: 'error', error: String(error) }));
  });
}

function serve(request, response) {
  const { pathname } = new URL(request.url, 'http://page');
  if (pathname.startsWith('/prometheus/')) { forward(request, response); return; }
  const file = pathname === '/board.json' ? board : path.join(dist, path.posix.normalize(pathname === '/' ? '/index.html' : pathname));
  fs.readFile(file, (error, body) => {
    response.writeHead(error ? 404 : 200, { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream' });
    response.end(error ? '' : body);
  });
}

// Runs in the page: what a person would complain about.
function lookAt() {
  const boxes = [...document.querySelectorAll('.react-grid-item')].map((item) => ({ item, box: item.getBoundingClientRect() }));
  const titles = [...document.querySelectorAll('[data-testid*="Panel header"] h2, [data-testid="header-container"] h2')];
  const overlaps = [];
  for (const [index, one] of boxes.entries()) {
    for (const other of boxes.slice(index + 1)) {
      const apart = one.box.right <= other.box.left + 1 || other.box.right <= one.box.left + 1
        || one.box.bottom <= other.box.top + 1 || other.box.bottom <= one.box.top + 1;
      if (!apart) { overlaps.push(`${one.item.innerText.slice(0, 30)} overlaps ${other.item.innerText.slice(0, 30)}`); }
    }
  }
  return {
    panels: titles.map((title) => title.innerText),
    cut: titles.filter((title) => title.scrollWidth > title.clientWidth).map((title) => title.innerText),
    overlaps,
    unresolved: document.body.innerText.match(/\$\{?\w+\}?|\{\{\w+\}\}/g) ?? [],
    ...window.boardReport,
  };
}

async function drawOne(browser, size, origin) {
  const page = await browser.newPage({ viewport: SIZES[size] });
  const crashes = [];
  page.on('pageerror', (error) => crashes.push(String(error.stack ?? error).slice(0, 500)));
  await page.goto(`${origin}/?from=now-${options.range}s&scrape=${options.scrape}`);
  const expected = JSON.parse(fs.readFileSync(board)).panels.filter((panel) => panel.type !== 'row').length;
  await page.waitForFunction(
    (count) => window.boardReport?.problems.length
      || (window.boardReport?.started && window.boardReport.pending === 0 && Object.keys(window.boardReport.drawn).length >= count),
    expected, { timeout: DRAW_TIMEOUT_MS },
  ).catch(() => crashes.push('not every panel drew in time'));
  await page.waitForTimeout(QUIET_MS);
  const name = path.basename(board, '.json');
  await page.screenshot({ path: path.join(options.out, `${name}-${size}.png`) });
  if (size === 'kiosk') {
    const bottom = await page.evaluate(() => Math.ceil(document.querySelector('main').getBoundingClientRect().bottom));
    await page.setViewportSize({ ...SIZES[size], height: Math.max(bottom, SIZES[size].height) });
    await page.waitForTimeout(QUIET_MS);
    await page.screenshot({ path: path.join(options.out, `${name}-whole.png`) });
  }
  const seen = await page.evaluate(lookAt);
  await page.close();
  return { board: name, size, crashes, ...seen };
}

fs.mkdirSync(options.out, { recursive: true });
const server = http.createServer(serve).listen(0, '127.0.0.1');
const wanted = process.env.CHROMIUM ?? 'chromium';
const browser = await chromium.launch({
  executablePath: wanted.includes('/') ? wanted : execFileSync('which', [wanted]).toString().trim(),
  args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update'],
});
const origin = `http://127.0.0.1:${server.address().port}`;
const reports = [];
for (const file of boards) {
  board = file;
  for (const size of Object.keys(SIZES)) { reports.push(await drawOne(browser, size, origin)); }
}
await browser.close();
server.close();
console.log(JSON.stringify(reports, null, 1));
