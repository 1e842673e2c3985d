// SPDX-License-Identifier: Apache-2.0
//
// Numbers over time. Points are the parts of the whole run that the coordinator keeps, or the seconds of
// the last five minutes. A part in which no step ended belongs to the step that ended next: a step may
// take longer than a second.

'use strict';

const RECENT_MS = 300000;
const GAP_MS = 3000; // No step ended for so long, and for three steps: that is shown.
const CHART = {height: 150, top: 8, bottom: 126, left: 62, right: 10};

const nice = value => {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 2.5, 5, 10].find(n => n * unit >= value * .999);
};

// ---- points ------------------------------------------------------------------------------------

// Parts, oldest first: {at, span, steps, exposed, hidden, bytes, metrics}. `exposed` and `hidden` are of a
// step. Gives points with the time of a step, and the gaps between them.
const pointsOf = parts => {
  const points = [];
  const gaps = [];
  let [waited, bytes] = [0, 0];
  for (const part of parts) {
    waited += part.span;
    bytes += part.bytes * part.span;
    if (!part.steps) {
      points.push({at: part.at, metrics: part.metrics});
      continue;
    }
    const step = waited * 1000 / part.steps;
    const idle = waited - part.span;
    if (idle >= GAP_MS && idle >= 3 * part.span / part.steps) gaps.push([part.at - waited, part.at - part.span]);
    const usual = gaps.at(-1)?.[1] === part.at - part.span ? part.span * 1000 / part.steps : step;
    points.push({at: part.at, step: usual, exposed: part.exposed, hidden: part.hidden, bytes: bytes / waited, metrics: part.metrics});
    [waited, bytes] = [0, 0];
  }
  const last = points.findLast(point => point.step);
  if (last && waited >= GAP_MS && waited * 1000 >= 3 * last.step) gaps.push([parts.at(-1).at - waited, parts.at(-1).at]);
  return {points, gaps};
};

const historyParts = ({rows, columns, metrics}, now) => rows.map(row => ({
  at: now - row[0], span: row[1], steps: row[2], exposed: row[4], hidden: row[5], bytes: row[6],
  metrics: row.slice(columns.length - metrics),
}));

const rateParts = (rates, now) => rates.map(([age, step, exposed, hidden, bytes]) => ({
  at: now - age * 1000, span: 1000, steps: step ? 1e6 / step : 0, exposed, hidden, bytes, metrics: [],
})).reverse();

// The middle one of the last steps, if one has ended lately: the second in which a job stops has few steps.
const lastRate = rates => {
  const steps = pointsOf(rateParts(rates.slice(0, 120), 0)).points.filter(point => point.step).slice(-5);
  const last = steps.at(-1);
  if (!last || -last.at > Math.max(10000, last.step / 1000 * 3)) return null;
  return steps.sort((a, b) => a.step - b.step)[Math.floor((steps.length - 1) / 2)];
};

// ---- one chart ---------------------------------------------------------------------------------

const hovers = {}; // Share of the width, by chart.

const scaleOf = (chart, points) => {
  const values = points.flatMap(point => chart.series.map(({value}) => value(point)))
    .filter(value => Number.isFinite(value)).sort((a, b) => a - b);
  if (!values.length) return null;
  if (chart.free) {
    const [low, high] = [values[0], values.at(-1)];
    const room = (high - low || Math.abs(high) || 1) * .06;
    return {low: low >= 0 && low < high * .4 ? 0 : low - room, high: high + room};
  }
  // One step that took minutes would flatten all others: the scale ends above nearly all of them. Each
  // line counts for itself, so that a line of small values does not cut off the other one.
  const most = chart.series.map(({value}) => {
    const own = points.map(value).filter(Number.isFinite).sort((a, b) => a - b);
    return own.length < 4 ? own.at(-1) ?? 0 : own[Math.floor((own.length - 1) * .98)];
  });
  return {low: 0, high: nice(Math.max(...most.map(value => value * 1.1), 1e-9))};
};

// Points that follow each other and have a value.
const runsOf = (points, value, most) => {
  const runs = [];
  let run = [];
  for (const point of points) {
    const known = Number.isFinite(value(point));
    if (run.length && (!known || point.at - run.at(-1).at > most)) {
      if (known || point.at - run.at(-1).at > most) {
        runs.push(run);
        run = [];
      }
    }
    if (known) run.push(point);
  }
  if (run.length) runs.push(run);
  return runs;
};

// Marks of an axis of time: at most so many, each a round time before the end.
const SPANS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const timeMarks = (span, most) => {
  const each = SPANS.find(seconds => span / 1000 / seconds <= most) ?? span / 1000 / most;
  const marks = [];
  for (let s = each; s * 1000 < span * .97; s += each) marks.push(s);
  return marks;
};

const ago = s => s < 60 ? `−${s} s` : s < 3600 ? `−${s / 60} min` : s < 172800 ? `−${Number((s / 3600).toFixed(1))} h` : `−${Number((s / 86400).toFixed(1))} d`;

const readout = (chart, point) => [clock(point.at), ...chart.series.map(({name, value}) => {
  const number = value(point);
  return Number.isFinite(number) ? `${name} ${chart.text(number)}` : null;
}).filter(Boolean)].join(' · ');

// What the mouse, a finger or an arrow key points at.
const showHover = (chart, place, view) => {
  const share = hovers[chart.title];
  const line = place.querySelector('.reading');
  const group = place.querySelector('.hover');
  group.replaceChildren();
  if (share === undefined) {
    setText(line, '');
    return;
  }
  const wanted = view.from + share * (view.to - view.from);
  const known = view.points.filter(point => chart.series.some(({value}) => Number.isFinite(value(point))));
  if (!known.length) return;
  const nearest = known.reduce((best, point) => Math.abs(point.at - wanted) < Math.abs(best.at - wanted) ? point : best);
  group.append(draw('line', {class: 'cross', x1: view.x(nearest.at), x2: view.x(nearest.at), y1: CHART.top, y2: CHART.bottom}));
  for (const {look, value} of chart.series) {
    if (Number.isFinite(value(nearest))) group.append(draw('circle', {class: `dot-${look}`, cx: view.x(nearest.at), cy: view.y(value(nearest)), r: 3}));
  }
  setText(line, readout(chart, nearest));
};

const drawAxes = (svg, chart, view, width) => {
  const {low, high} = view.scale;
  for (const share of [0, .5, 1]) {
    const value = low + share * (high - low);
    svg.append(draw('line', {class: 'grid', x1: CHART.left, x2: width - CHART.right, y1: view.y(value), y2: view.y(value)}),
      draw('text', {x: CHART.left - 6, y: view.y(value) + 4, 'text-anchor': 'end'}, value === 0 ? '0' : chart.text(value)));
  }
  svg.append(draw('text', {x: width - CHART.right, y: CHART.height - 6, 'text-anchor': 'end'}, view.end));
  for (const s of timeMarks(view.to - view.from, Math.max(1, Math.floor(width / 110)))) {
    const x = view.x(view.to - s * 1000);
    if (x < width - CHART.right - 64) svg.append(draw('text', {x, y: CHART.height - 6, 'text-anchor': x < CHART.left + 24 ? 'start' : 'middle'}, ago(s)));
  }
};

const drawSeries = (svg, chart, view) => {
  for (const {look, value, area} of chart.series) {
    for (const run of runsOf(view.points, value, view.most)) {
      const line = run.map(point => `${view.x(point.at).toFixed(1)},${view.y(value(point)).toFixed(1)}`).join(' ');
      if (run.length === 1) svg.append(draw('circle', {class: `dot-${look}`, cx: view.x(run[0].at), cy: view.y(value(run[0])), r: 2}));
      if (area) svg.append(draw('polygon', {class: `area-${look}`, points: `${view.x(run[0].at).toFixed(1)},${CHART.bottom} ${line} ${view.x(run.at(-1).at).toFixed(1)},${CHART.bottom}`}));
      svg.append(draw('polyline', {class: `line-${look}`, points: line}));
    }
  }
};

const moveHover = (chart, place, share) => {
  if (share === undefined) delete hovers[chart.title];
  else hovers[chart.title] = Math.max(0, Math.min(1, share));
  if (place.view) showHover(chart, place, place.view);
};

const watchChart = (chart, place) => {
  const share = event => {
    const box = place.querySelector('svg').getBoundingClientRect();
    return (event.clientX - box.left - CHART.left) / (box.width - CHART.left - CHART.right);
  };
  const graph = place.querySelector('.graph');
  for (const name of ['pointermove', 'pointerdown']) graph.addEventListener(name, event => moveHover(place.chart, place, share(event)));
  graph.addEventListener('pointerleave', () => moveHover(place.chart, place, undefined));
  graph.tabIndex = 0;
  graph.addEventListener('keydown', event => {
    const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!way) return;
    event.preventDefault();
    moveHover(place.chart, place, (hovers[chart.title] ?? 1) + way / 50);
  });
  graph.addEventListener('blur', () => moveHover(place.chart, place, undefined));
};

const makeChart = chart => {
  const place = make('figure', 'chart', make('figcaption', '', helpWord(chart.title, chart.help), make('span', 'latest')),
    make('div', 'graph'), make('p', 'reading'), make('div', 'keys'));
  place.dataset.title = chart.title;
  place.querySelector('.keys').append(...chart.series.length > 1 ? chart.series.map(({look, name}) => key(`key-${look}`, name)) : []);
  watchChart(chart, place);
  return place;
};

const fillChart = (chart, place, data) => {
  place.chart = chart;
  const graph = place.querySelector('.graph');
  const scale = scaleOf(chart, data.points);
  if (!scale) {
    graph.replaceChildren(make('p', 'empty', 'No values yet.'));
    place.view = null;
    return;
  }
  const width = Math.max(graph.clientWidth, 200);
  const reach = width - CHART.left - CHART.right;
  const view = {...data, scale,
    x: ms => CHART.left + (ms - data.from) / Math.max(data.to - data.from, 1) * reach,
    y: value => CHART.bottom - (Math.max(scale.low, Math.min(value, scale.high)) - scale.low) / (scale.high - scale.low) * (CHART.bottom - CHART.top)};
  const svg = draw('svg', {viewBox: `0 0 ${width} ${CHART.height}`, width, height: CHART.height, role: 'img', 'aria-label': chart.title});
  for (const [begin, end] of chart.gaps ? data.gaps : []) {
    const [x1, x2] = [Math.max(view.x(begin), CHART.left), view.x(end)];
    if (x2 > x1) svg.append(draw('rect', {class: 'gap', x: x1, y: CHART.top, width: x2 - x1, height: CHART.bottom - CHART.top}));
  }
  drawAxes(svg, chart, view, width);
  drawSeries(svg, chart, view);
  svg.append(draw('g', {class: 'hover'}));
  graph.replaceChildren(svg);
  const told = chart.total ?? chart.series[0].value;
  const latest = data.points.findLast(point => Number.isFinite(told(point)));
  setText(place.querySelector('.latest'), latest ? chart.text(told(latest)) : '');
  place.view = view;
  showHover(chart, place, view);
};

// ---- all charts --------------------------------------------------------------------------------

const STEP_CHART = {title: 'Step time', help: HELP['Step time'], text: shortTime, gaps: true, series: [
  {look: 'step', name: 'step', value: point => point.step},
  {look: 'wait', name: 'waiting', value: point => point.exposed, area: true}]};
const WIRE_CHART = {title: 'Communication', help: `${HELP.Hidden} ${HELP.Waiting}`, text: shortTime, total: point => point.hidden + point.exposed, series: [
  {look: 'hidden', name: 'hidden', value: point => point.hidden},
  {look: 'wait', name: 'exposed: waiting', value: point => point.exposed}]};
const SPEED_CHART = {title: 'Network', help: HELP.Network, text: speed, series: [
  {look: 'step', name: 'sent by all ranks', value: point => point.bytes, area: true}]};
const metricChart = (name, index) => ({title: name, free: true, text: plain,
  help: `A metric or counter of the job (lockstep_metric_add, lockstep_counter_add), or the number that the trainer gives as ${name}=… with lockstep_mark; then it is the mean over the ranks that say it.`,
  series: [{look: 'metric', name, value: point => point.metrics[index] ?? undefined}]});

let period = 'run';

// history: what the coordinator keeps of the whole run, and when it said so; null: not known yet.
const showCharts = (state, history) => {
  const now = Date.now();
  const over = isEnded(state.job);
  const names = history ? history.columns.slice(history.columns.length - history.metrics) : [];
  const kept = history ? historyParts(history, history.taken) : [];
  const recent = rateParts(state.rates, now);
  const known = kept.at(-1)?.at ?? 0;
  const run = over || !kept.length ? kept : [...kept, ...recent.filter(part => part.at - known > 900)];
  const whole = period === 'run' && run.length > 0;
  const main = pointsOf(whole ? run : recent);
  const [newest, oldest] = [main.points.at(-1)?.at ?? now, main.points[0]?.at ?? now];
  const to = over ? newest : Math.max(newest, now - 2000);
  const from = whole ? Math.min(oldest, to - 10000) : Math.max(to - RECENT_MS, Math.min(oldest, to - 60000));
  const spacing = Math.max(...kept.slice(-2, -1).map(part => part.span), 1000);
  const data = {...main, from, to, end: over ? 'end' : 'now', most: whole ? Math.max(6 * spacing, 60000) : 30000};
  const metricData = {...data, ...pointsOf(kept.filter(part => part.at >= from)), from, to, gaps: []};
  const charts = [STEP_CHART, WIRE_CHART, ...main.points.some(point => point.bytes > 0) ? [SPEED_CHART] : [], ...names.map(metricChart)];
  const place = at('charts');
  const titles = charts.map(chart => chart.title).join('\n');
  if (place.dataset.titles !== titles) {
    place.dataset.titles = titles;
    place.replaceChildren(...charts.map(makeChart));
  }
  charts.forEach((chart, i) => fillChart(chart, place.children[i], chart.free ? metricData : data));
  at('period-run').setAttribute('aria-pressed', String(period === 'run'));
  at('period-recent').setAttribute('aria-pressed', String(period !== 'run'));
};
