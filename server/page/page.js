// SPDX-License-Identifier: Apache-2.0
//
// The page: one job at a time, as server-sent events bring its state. Texts come from workers, so
// they reach the document as text nodes only, never as markup. Nothing is asked of another server.

'use strict';

const FEW_RANKS = 32; // Up to so many, all are rows; above, a map shows all and rows some.
const JOBS_MS = 2000;
const LISTEN_POLLS = 15;
const CHART_S = 300;
const SVG = 'http://www.w3.org/2000/svg';
const FLAGS = ['paused', 'traced', 'throttled', 'disk', 'first steps'];
const STATES = {
  outside: 'in the trainer\'s own code', in_call: 'in a call of a module', inside: 'in the library',
  waiting: 'waits for others', paused: 'declared a pause', frozen: 'not heard of',
  stopped: 'process is stopped', lost: 'lost', left: 'left', opening: 'opening',
  starting: 'starting',
};
const KINDS = {
  outside: 'outside the library', in_call: 'in a call', frozen: 'not heard of', stopped: 'stopped',
  lost: 'lost', link: 'link does not move', unknown: 'unknown',
  device: 'its device does not finish',
};

const SILENT = ['frozen', 'stopped', 'lost']; // Kinds that a rank may be without being in the way.

const at = id => document.getElementById(id);

// ---- making things -----------------------------------------------------------------------------

const make = (name, className, ...content) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...content.filter(part => part !== null && part !== undefined));
  return element;
};

const draw = (name, attributes, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// Changes a node only where it differs, so that a selection or a scrolled place stays.
const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const setClass = (element, name) => {
  if (element.className !== name) element.className = name;
};

// ---- words -------------------------------------------------------------------------------------

const two = number => String(number).padStart(2, '0');

const time = ms => {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 100) return `${s.toFixed(1)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} m ${two(Math.floor(s % 60))} s`;
  return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} m`;
};

const shortTime = us => us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toPrecision(3)} ms` : time(us / 1000);

const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + '…' : text;

const percent = share => `${(100 * share).toFixed(share < .1 ? 1 : 0)} %`;

const called = row => {
  if (!row.api) return '';
  const module = row.module ? ` ${row.module}#${row.call}` : '';
  return row.inside ? `in ${row.api}${module}` : `after ${row.api}${module}`;
};

// ---- the verdict -------------------------------------------------------------------------------

const lastRate = state => {
  const rate = state.rates.find(([, step]) => step > 0);
  return rate && rate[0] < 10 ? {step: rate[1], exposed: rate[2]} : null;
};

const verdict = (state, rows) => {
  const {job, stall} = state;
  const slow = rows.filter(row => row.slow);
  if (stall) return ['bad', `Stalled for ${time(stall.age_ms)}`, stall.sentence];
  if (job.halt_text && job.state === 'halted') return ['bad', 'Halted', job.halt_text];
  if (job.state === 'gathering') {
    return ['', 'Gathering', `${job.joined} of ${job.world_size} workers have joined.`];
  }
  if (job.state === 'starting') return ['', 'Starting', 'The ranks compare what they will train.'];
  if (job.state === 'finished') return ['', 'Finished', `Every rank left in good order after step ${job.step_max}.`];
  if (slow.length) {
    const names = slow.slice(0, 4).map(row => `rank ${row.rank}`).join(', ');
    return ['warn', 'Slow', `${names}${slow.length > 4 ? ` and ${slow.length - 4} more` : ''} ` +
      `stayed longer in one place than is usual there, but not yet too long.`];
  }
  const rate = lastRate(state);
  return ['good', 'Running', rate
    ? `Step ${job.step_max}; one takes ${shortTime(rate.step)}, of which ${percent(rate.exposed / rate.step)} is spent waiting for results.`
    : `Step ${job.step_max}.`];
};

const culpritCard = culprit => {
  const list = make('dl');
  const say = (name, value) => {
    if (value) list.append(make('dt', '', name), make('dd', '', value));
  };
  const names = culprit.missing.map(name => cut(name, 60)).join(', ');
  const more = culprit.missing_total - culprit.missing.length;
  const button = make('button', '', 'Stack');
  button.type = 'button';
  button.addEventListener('click', () => showStack(culprit.rank));
  say('for', time(culprit.age_ms) + (culprit.bound_ms ? `, bound ${time(culprit.bound_ms)}` : ''));
  say('because', culprit.why);
  say('last call', called(culprit));
  say('now in', culprit.top);
  say('awaited', culprit.awaited && `${culprit.awaited} on stream ${culprit.stream}`);
  say('missing', names && names + (more > 0 ? ` and ${more} more` : ''));
  say('mark', culprit.mark);
  say('but', culprit.flags.join(', '));
  say('asleep in', culprit.sleeps);
  return make('div', 'culprit',
    make('div', 'bar', make('h2', '', `Rank ${culprit.rank} `, make('small', '', `${culprit.host}, pid ${culprit.pid}`)),
      make('span', 'tag bad', KINDS[culprit.kind] ?? culprit.kind), button), list);
};

let shownCulprits = '';
const showVerdict = (state, rows) => {
  const [look, word, sentence] = verdict(state, rows);
  setClass(at('verdict'), look);
  setText(at('word'), word);
  setText(at('sentence'), sentence);
  document.title = `${look === 'bad' ? '⚠ ' : ''}${state.job.name} · Lockstep`;
  const culprits = state.stall?.culprits ?? [];
  const key = JSON.stringify(culprits);
  if (key === shownCulprits) return;
  shownCulprits = key;
  at('culprits').replaceChildren(...culprits.map(culpritCard));
};

// ---- numbers -----------------------------------------------------------------------------------

const showFacts = state => {
  const {job} = state;
  const rate = lastRate(state);
  const step = job.step_min === job.step_max ? `${job.step_max}` : `${job.step_min} – ${job.step_max}`;
  const facts = [
    [step, 'step'],
    [rate ? shortTime(rate.step) : '–', 'a step'],
    [rate ? shortTime(rate.exposed) : '–', 'of it waiting'],
    [job.totals.in_flight_us ? percent(job.totals.overlap_us / job.totals.in_flight_us) : '–', 'overlap'],
    [`${job.joined} of ${job.world_size}`, job.hosts ? `ranks on ${job.hosts} host${job.hosts > 1 ? 's' : ''}` : 'ranks'],
    [job.generation.number, 'generation'],
    [job.plan_number || '–', job.plan_number ? 'plan' : 'no plan yet'],
    [job.device_classes.join(', ') || '–', 'devices'],
  ];
  const place = at('facts');
  while (place.children.length < facts.length) place.append(make('div', '', make('b'), make('span')));
  facts.forEach(([value, name], i) => {
    setText(place.children[i].children[0], String(value));
    setText(place.children[i].children[1], name);
  });
};

// ---- step times --------------------------------------------------------------------------------

const nice = value => {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 5, 10].find(n => n * unit >= value);
};

const key = (name, text) => make('span', 'key', make('i', name), text);

// Seconds of one kind that follow each other.
const runs = (rates, kind) => {
  const found = [];
  let run = [];
  for (const rate of rates) {
    if (kind(rate)) {
      run.push(rate);
    } else if (run.length) {
      found.push(run);
      run = [];
    }
  }
  if (run.length) found.push(run);
  return found;
};

const showChart = rates => {
  const place = at('chart');
  const steps = rates.map(([, step]) => step).filter(step => step > 0).sort((a, b) => a - b);
  if (!steps.length) {
    place.replaceChildren(make('p', 'empty', 'No time of a step is known.'));
    return;
  }
  // One step that took minutes would flatten all others: the scale ends above nearly all of them.
  const top = nice(Math.max(steps[Math.floor(steps.length * .98)] * 1.15, 1));
  const [left, right, height, bottom] = [56, 594, 170, 150];
  const span = Math.min(Math.max(rates.at(-1)[0], 60), CHART_S); // A young job need not look at emptiness.
  const x = age => right - age / span * (right - left);
  const y = us => bottom - Math.min(us, top) / top * (bottom - 10);
  const svg = draw('svg', {viewBox: `0 0 600 ${height}`, role: 'img', 'aria-label': 'Time of one step'});
  for (const share of [0, .5, 1]) {
    svg.append(draw('line', {class: 'grid', x1: left, x2: right, y1: y(top * share), y2: y(top * share)}),
      draw('text', {x: left - 6, y: y(top * share) + 4, 'text-anchor': 'end'}, share ? shortTime(top * share) : '0'));
  }
  for (let minute = 0; 60 * minute <= span; minute++) {
    svg.append(draw('text', {x: x(60 * minute), y: bottom + 16, 'text-anchor': minute ? 'middle' : 'end'},
      minute ? `−${minute} min` : 'now'));
  }
  const recent = rates.filter(([age]) => age < span);
  for (const gap of runs(recent, ([, step]) => step === 0)) {
    const [begin, end] = [x(gap.at(-1)[0] + 1), x(gap[0][0])];
    svg.append(draw('rect', {class: 'gap', x: begin, y: 10, width: end - begin, height: bottom - 10}));
  }
  for (const run of runs(recent, ([, step]) => step > 0)) {
    const line = run.map(([age, step]) => `${x(age).toFixed(1)},${y(step).toFixed(1)}`).join(' ');
    const area = run.map(([age, , exposed]) => `${x(age).toFixed(1)},${y(exposed).toFixed(1)}`).join(' ');
    svg.append(draw('polygon', {class: 'exposed', points: `${x(run[0][0]).toFixed(1)},${bottom} ${area} ${x(run.at(-1)[0]).toFixed(1)},${bottom}`}),
      draw('polyline', {class: 'steps', points: line}));
  }
  place.replaceChildren(svg, make('div', '', key('steps', 'one step'), key('exposed', 'of it waiting for results'),
    key('gap', 'no step ended')));
};

// ---- who waits for whom ------------------------------------------------------------------------

const MOST_GROUPS = 9;

const groupName = group => group.members === 1 ? `rank ${group.from}` : `${group.members} ranks`;
const groupNote = group => group.members === 1 ? '' : `from rank ${group.from}`;

// The groups of ranks that wait, the largest first, each with those it waits for; one for the rest.
const groups = edges => {
  const found = new Map();
  for (const {from, members, to} of edges) {
    const id = `${from} ${members}`;
    if (!found.has(id)) found.set(id, {from, members, to: new Set()});
    found.get(id).to.add(to);
  }
  const sorted = [...found.values()].sort((a, b) => b.members - a.members || a.from - b.from);
  if (sorted.length <= MOST_GROUPS) return sorted;
  const rest = sorted.slice(MOST_GROUPS - 1);
  const members = rest.reduce((sum, group) => sum + group.members, 0);
  const to = new Set(rest.flatMap(group => [...group.to]));
  return [...sorted.slice(0, MOST_GROUPS - 1), {from: rest[0].from, members, to}];
};

const drawNode = (svg, {x, y, width, look, title, note, rank}) => {
  const group = draw('g', rank === undefined ? {} : {class: 'press'});
  group.append(draw('rect', {class: `node ${look}`, x, y: y - 17, width, height: 34, rx: 7}),
    draw('text', {class: 'strong', x: x + 10, y: note ? y - 2 : y + 4}, cut(title, 26)));
  if (note) group.append(draw('text', {x: x + 10, y: y + 12}, cut(note, Math.floor(width / 6.2))));
  if (rank !== undefined) group.addEventListener('click', () => showStack(rank));
  svg.append(group);
};

const drawArrow = (svg, look, path) => {
  svg.append(draw('path', {class: `edge ${look}`, 'marker-end': 'url(#arrow)', d: path}));
};

const drawPicture = (stall, rows) => {
  const hosts = new Map(rows.map(row => [row.rank, row.host]));
  const kinds = new Map(stall.culprits.map(culprit => [culprit.rank, KINDS[culprit.kind] ?? culprit.kind]));
  const targets = [...new Set([...kinds.keys(), ...stall.edges.map(edge => edge.to)])].slice(0, MOST_GROUPS);
  // Ranks that wait and are waited for stand on the right, and what is between them is a circle.
  const circle = edge => edge.members === 1 && targets.includes(edge.from);
  const waiting = groups(stall.edges.filter(edge => !circle(edge) && targets.includes(edge.to)));
  const gap = 46;
  const height = Math.max(Math.max(waiting.length, targets.length) * gap + 10, 170);
  const middle = (i, count) => height / 2 + (i - (count - 1) / 2) * gap;
  const right = rank => middle(targets.indexOf(rank), targets.length);
  const svg = draw('svg', {viewBox: `0 0 600 ${height}`, role: 'img', 'aria-label': stall.sentence});
  const marker = draw('marker', {id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7,
    markerHeight: 7, orient: 'auto'});
  marker.append(draw('path', {class: 'head', d: 'M0 0 8 4 0 8z'}));
  svg.append(marker);
  waiting.forEach((group, i) => {
    const y = middle(i, waiting.length);
    for (const to of group.to) drawArrow(svg, '', `M160 ${y} C 250 ${y} 260 ${right(to)} 348 ${right(to)}`);
    drawNode(svg, {x: 10, y, width: 150, look: '', title: groupName(group), note: groupNote(group),
      rank: group.members === 1 ? group.from : undefined});
  });
  for (const {from, to} of stall.edges.filter(circle)) {
    const [begin, end] = [right(from), right(to) + (to > from ? -6 : 6)];
    drawArrow(svg, 'circle', `M560 ${begin} C 604 ${begin} 604 ${end} 561 ${end}`);
  }
  for (const rank of targets) {
    const note = [kinds.get(rank), hosts.get(rank)].filter(Boolean).join(', ');
    drawNode(svg, {x: 350, y: right(rank), width: 210, look: kinds.has(rank) ? 'bad' : '',
      title: `rank ${rank}`, note, rank});
  }
  return svg;
};

const showPicture = (stall, rows) => {
  const place = at('picture');
  if (!stall || !stall.culprits.length && !stall.edges.length) {
    const text = stall ? 'No rank is in the way of the others.' : 'Nobody has to wait for long.';
    if (place.textContent !== text) place.replaceChildren(make('p', 'empty', text));
    return;
  }
  const more = stall.culprits_total - stall.culprits.length;
  place.replaceChildren(drawPicture(stall, rows),
    ...more > 0 ? [make('p', 'empty', `and ${more} more in the way`)] : []);
};

// ---- ranks -------------------------------------------------------------------------------------

let order = {by: 'trouble', down: true};
let showAll = false;

const trouble = row => (row.culprit ? 9000 : 0) + (row.kind ? 4000 : 0) + (row.slow ? 2000 : 0) + Math.min(row.lag, 999) + (row.flags ? 1000 : 0);

const columns = [
  {name: 'Rank', by: 'rank', number: true, text: row => row.rank ?? '–'},
  {name: 'State', by: 'state', state: true, text: row => row.state},
  {name: 'Host', by: 'host', wide: true, text: row => row.host},
  {name: 'Pid', by: 'pid', number: true, text: row => row.pid},
  {name: 'Device', by: 'device', text: row => row.device},
  {name: 'Step', by: 'step', number: true, text: row => row.step},
  {name: 'Behind', by: 'lag', number: true, text: row => row.lag || ''},
  {name: 'Exchanged', by: 'position', number: true, text: row => row.count ? `${Math.min(row.position, row.count)} of ${row.count}` : ''},
  {name: 'Last call', by: 'api', wide: true, text: called},
  {name: 'For', by: 'age_ms', number: true, text: row => time(row.age_ms)},
  {name: 'Gradients', by: 'ready', number: true, text: row => row.state === 'in_call' && row.gradients ? `${row.ready} / ${row.gradients}` : ''},
  {name: 'Mark', by: 'mark', wide: true, text: row => row.mark},
];

const compare = (a, b) => {
  const [x, y] = order.by === 'trouble' ? [trouble(a), trouble(b)] : [a[order.by] ?? '', b[order.by] ?? ''];
  const way = order.down ? -1 : 1;
  if (x !== y) return (x < y ? -1 : 1) * way;
  return (a.rank ?? 0) - (b.rank ?? 0);
};

const matches = (row, wanted) => !wanted || [`rank ${row.rank}`, row.host, row.state, row.module, row.mark, row.api, row.device]
  .some(text => String(text ?? '').toLowerCase().includes(wanted));

const makeHead = () => {
  const head = make('tr');
  for (const column of columns) {
    const button = make('button', '', column.name);
    button.type = 'button';
    button.addEventListener('click', () => {
      order = {by: column.by, down: order.by === column.by ? !order.down : column.by !== 'rank'};
      refresh();
    });
    head.append(make('th', column.number ? 'number' : '', button));
  }
  at('table').tHead.append(head);
};

const makeRow = () => {
  const line = make('tr');
  for (const column of columns) {
    const cell = make('td', column.number ? 'number' : column.wide ? 'wide' : '');
    if (column.state) cell.append(make('span', 'state', make('i'), make('span')), make('span'));
    line.append(cell);
  }
  line.addEventListener('click', () => {
    if (line.dataset.rank) showStack(Number(line.dataset.rank));
  });
  return line;
};

const tags = row => [row.culprit && ['tag bad', 'culprit'], row.slow && ['tag warn', 'slow'],
  ...FLAGS.map((name, bit) => row.flags >> bit & 1 && name !== row.state && ['tag', name])].filter(Boolean);

const fillState = (cell, row) => {
  const [state, place] = cell.children;
  setClass(state.children[0], `s-${row.state}`);
  setText(state.children[1], row.state.replace('_', ' '));
  const wanted = tags(row);
  if (place.textContent !== wanted.map(([, text]) => text).join('')) {
    place.replaceChildren(...wanted.map(([look, text]) => make('span', look, text)));
  }
};

const look = row => row.culprit ? 'blamed' : row.slow ? 'slow' : '';

const showTable = shown => {
  const body = at('table').tBodies[0];
  while (body.rows.length > shown.length) body.lastChild.remove();
  while (body.rows.length < shown.length) body.append(makeRow());
  shown.forEach((row, i) => {
    const line = body.rows[i];
    setClass(line, look(row));
    line.dataset.rank = row.rank ?? '';
    columns.forEach((column, c) => {
      const cell = line.cells[c];
      if (column.state) {
        fillState(cell, row);
        return;
      }
      const text = String(column.text(row) ?? '');
      setText(cell, text);
      if (column.wide && cell.title !== text) cell.title = text;
    });
  });
  [...at('table').tHead.rows[0].cells].forEach((cell, c) => {
    const button = cell.firstChild;
    if (columns[c].by !== order.by) button.removeAttribute('aria-sort');
    else button.setAttribute('aria-sort', order.down ? 'descending' : 'ascending');
  });
};

const showMap = (rows, wanted) => {
  const map = at('map');
  map.hidden = rows.length <= FEW_RANKS;
  if (map.hidden) return;
  while (map.children.length > rows.length) map.lastChild.remove();
  while (map.children.length < rows.length) {
    const cell = make('button');
    cell.type = 'button';
    cell.addEventListener('click', () => {
      if (cell.dataset.rank) showStack(Number(cell.dataset.rank));
    });
    map.append(cell);
  }
  rows.forEach((row, i) => {
    const cell = map.children[i];
    const title = `rank ${row.rank}, ${row.host}: ${row.state.replace('_', ' ')} for ${time(row.age_ms)}, step ${row.step}`;
    cell.dataset.rank = row.rank ?? '';
    if (cell.title !== title) cell.title = title;
    cell.setAttribute('aria-label', title);
    setClass(cell, `s-${row.state} ${look(row)}${matches(row, wanted) ? '' : ' hidden'}`);
  });
};

const showLegend = rows => {
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]);
  const text = parts.map(([state, count]) => `${count} ${STATES[state] ?? state}`).join('');
  if (at('legend').textContent === text) return;
  at('legend').replaceChildren(...parts.map(([state, count]) => key(`s-${state}`, `${count} ${STATES[state] ?? state}`)));
};

const showRanks = rows => {
  const wanted = at('filter').value.trim().toLowerCase();
  const found = rows.filter(row => matches(row, wanted)).sort(compare);
  const few = found.slice(0, showAll ? found.length : FEW_RANKS);
  showLegend(rows);
  showMap(rows, wanted);
  showTable(few);
  const more = at('more');
  more.hidden = found.length <= FEW_RANKS;
  setText(more, showAll ? `Show ${FEW_RANKS} rows` : `Show all ${found.length} rows`);
};

// ---- lists -------------------------------------------------------------------------------------

const meterLine = (look, name, share, text) => {
  const meter = make('meter');
  meter.max = 1;
  meter.value = share;
  return make('div', `meter ${look}`, make('span', '', name), meter, make('span', '', text));
};

const shown = {};
const replace = (id, value, children) => {
  const text = JSON.stringify(value);
  if (shown[id] === text) return;
  shown[id] = text;
  at(id).replaceChildren(...children());
};

const showLists = state => {
  replace('stragglers', state.stragglers, () => state.stragglers.length
    ? state.stragglers.map(({rank, score}) => meterLine('', `rank ${rank}`, score, percent(score)))
    : [make('p', 'empty', 'No rank in particular.')]);
  replace('modules', [state.modules, state.rows.length], () => state.modules.length
    ? state.modules.map(({name, ranks}) => meterLine('name', name, ranks / Math.max(state.rows.length, 1), ranks === 1 ? '1 rank' : `${ranks} ranks`))
    : [make('p', 'empty', 'No names are known yet.')]);
  replace('log', state.log.map(([age, text]) => [Math.floor(age / 1000), text]), () => state.log.length
    ? state.log.map(([age, text]) => make('li', '', make('time', '', time(age)), make('span', '', text)))
    : [make('li', 'empty', 'Nothing yet.')]);
};

// ---- the stack of a rank -----------------------------------------------------------------------

let asked = 0; // Answers to earlier questions come too late.
let stackRank = null; // Null: the dialog is there for the token alone.

// A printed address may hold the token. It is kept for this tab, and leaves the address at once, so
// that it is neither copied with the address nor kept in bookmarks.
const takeToken = () => {
  const token = new URLSearchParams(location.search).get('token');
  if (!token) return;
  sessionStorage.setItem('token', token);
  history.replaceState(null, '', location.pathname + location.hash);
};

const credentials = () => {
  const token = sessionStorage.getItem('token');
  return token ? {Authorization: `Bearer ${token}`} : {};
};

const ask = async path => {
  const response = await fetch(path, {headers: credentials()});
  const body = await response.json();
  return {status: response.status, body};
};

const frameLine = frame => frame.function !== undefined
  ? make('li', '', frame.function, make('span', '', `  ${frame.file}:${frame.line}`))
  : make('li', '', frame.symbol ?? '?',
    make('span', '', `  ${frame.module} + ${frame.offset}${frame.guessed ? ' (guessed)' : ''}`));

const HOW = {blocked: 'It blocks the signal.', silent: 'It did not answer the signal.',
  disk: 'It sleeps in the kernel and cannot be interrupted.', taken: 'The program uses all signals.',
  no_room: 'It runs, and its stack may have no room for a signal.',
  left_alone: 'It sleeps where a signal would disturb it.', not_asked: 'It runs, and does not use Lockstep.',
  cut: 'What has called the last of these frames is not known.'};
const AWAITS = {lock: 'waits for a lock of', end: 'waits for the end of'};

const threadPart = thread => {
  const facts = [thread.trainer ? 'the trainer' : null, thread.state && `state ${thread.state}`,
    thread.syscall >= 0 ? `system call ${thread.syscall}` : null, thread.wchan,
    AWAITS[thread.awaits] ? `${AWAITS[thread.awaits]} ${thread.owner_name} ${thread.owner}` : null].filter(Boolean).join(', ');
  const part = make('div', 'thread', make('h3', '', `${thread.name} ${thread.tid} `, make('small', '', facts)));
  if (HOW[thread.how]) part.append(make('p', 'empty', HOW[thread.how]));
  for (const frames of [thread.python, thread.native]) {
    if (frames.length) part.append(make('ol', '', ...frames.map(frameLine)));
  }
  return part;
};

const showAnswer = ({status, body}) => {
  at('token').hidden = status !== 401;
  if (status !== 200) {
    at('stack-body').replaceChildren(make('p', 'empty', body.error.message));
    return;
  }
  const intro = `${body.host}, pid ${body.pid}, taken ${time(body.age_ms)} ago` +
    (body.phase ? `, phase '${body.phase}'` : '') + (body.doing ? `, ${body.doing}` : '');
  at('stack-body').replaceChildren(make('p', 'empty', intro), ...body.threads.map(threadPart));
};

const loadStack = async () => {
  const mine = ++asked;
  const path = `/api/v1/jobs/${encodeURIComponent(chosen)}/ranks/${stackRank}/stack?fresh=1`;
  at('stack-body').replaceChildren(make('p', 'empty', 'Asking the worker.'));
  try {
    const answer = await ask(path);
    if (mine === asked) showAnswer(answer);
  } catch (error) {
    if (mine === asked) at('stack-body').replaceChildren(make('p', 'empty', error.message));
  }
};

const askToken = message => {
  if (at('stack').open) return;
  stackRank = null;
  setText(at('stack-title'), 'Token');
  at('stack-again').hidden = true;
  at('token').hidden = false;
  at('stack-body').replaceChildren(make('p', 'empty', message));
  at('stack').showModal();
};

const showStack = rank => {
  stackRank = rank;
  at('stack-again').hidden = false;
  setText(at('stack-title'), `Rank ${rank}`);
  if (!at('stack').open) at('stack').showModal();
  loadStack();
};

// ---- what comes --------------------------------------------------------------------------------

let chosen = null; // Name of a job.
let jobs = []; // The latest of each name.
let stream = null;
let polls = 0; // Since the stream was opened.
let state = null;

const rowsOf = ({columns: names, rows}) => rows.map(row => Object.fromEntries(names.map((name, i) => [name, row[i]])));

const refresh = () => {
  if (!state) return;
  const rows = rowsOf(state);
  const named = new Set(state.stall?.culprits.map(culprit => culprit.rank));
  for (const row of rows) row.culprit = named.has(row.rank) || Boolean(state.stall && row.kind && !SILENT.includes(row.kind));
  showVerdict(state, rows);
  showFacts(state);
  showChart(state.rates);
  showPicture(state.stall, rows);
  showRanks(rows);
  showLists(state);
};

const say = (text, lost) => {
  setText(at('link'), text);
  setClass(at('link'), lost ? 'lost' : '');
};

const take = (newest, text) => {
  state = newest;
  jobs = jobs.map(job => job.name === state.job.name ? state.job : job);
  say(text);
  showJobs();
  refresh();
};

// EventSource cannot show a token. With one the events are read by hand, and look the same.
const readEvents = path => {
  const abort = new AbortController();
  const events = new EventTarget();
  const read = async () => {
    const response = await fetch(path, {headers: credentials(), signal: abort.signal});
    if (!response.ok) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ''; ;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (text + value).split('\n\n');
      text = parts.pop();
      for (const part of parts) {
        const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(part) ?? [];
        if (name) events.dispatchEvent(new MessageEvent(name, {data}));
      }
    }
  };
  events.readyState = EventSource.OPEN;
  events.close = () => {
    events.readyState = EventSource.CLOSED;
    abort.abort();
  };
  read().catch(() => {}).finally(() => {
    if (events.readyState === EventSource.CLOSED) return; // By us.
    events.readyState = EventSource.CLOSED;
    events.dispatchEvent(new Event('error'));
  });
  return events;
};

const listen = name => {
  stream?.close();
  chosen = name;
  const path = `/api/v1/jobs/${encodeURIComponent(name)}/events`;
  stream = sessionStorage.getItem('token') ? readEvents(path) : new EventSource(path);
  polls = 0;
  stream.addEventListener('state', event => take(JSON.parse(event.data), 'Live'));
  stream.addEventListener('error', () => say('No answer from the coordinator', true));
};

// The server takes so many listeners and no more. Who is one too many asks instead, and tries again.
const poll = async () => {
  if (++polls % LISTEN_POLLS === 0) {
    listen(chosen);
    return;
  }
  const {status, body} = await ask(`/api/v1/jobs/${encodeURIComponent(chosen)}/state`);
  if (status === 200) take(body, `Asking every ${JOBS_MS / 1000} s`);
};

const showJobs = () => {
  const links = jobs.map(job => {
    const link = make('a', job.name === chosen ? 'chosen' : '',
      make('span', `dot ${job.stalled ? 'stalled' : job.state}`), make('span', '', job.name));
    link.href = `#${encodeURIComponent(job.name)}`;
    link.title = job.verdict ?? job.state;
    return link;
  });
  replace('jobs', jobs.map(job => [job.name, job.state, job.stalled, job.verdict, chosen]), () => links);
};

const loadJobs = async () => {
  let all;
  try {
    const {status, body} = await ask('/api/v1/jobs');
    if (status === 401) {
      say('A token is needed', true);
      askToken(body.error.message);
      return;
    }
    all = body.jobs;
  } catch {
    say('No answer from the coordinator', true);
    return;
  }
  const latest = new Map(all.map(job => [job.name, job]));
  let wanted = null;
  try {
    wanted = decodeURIComponent(location.hash.slice(1));
  } catch {} // Typed by hand.
  if (!latest.has(wanted)) wanted = latest.has(chosen) ? chosen : all.at(-1)?.name;
  if (!wanted) {
    say('No jobs yet');
    setText(at('sentence'), 'No job has come yet. Start one with: lockstep run -n 4 -- ./train');
  } else if (wanted !== chosen) {
    listen(wanted);
  } else if (stream.readyState === EventSource.CLOSED) {
    await poll().catch(() => say('No answer from the coordinator', true));
  }
  jobs = [...latest.values()];
  showJobs();
};

makeHead();
at('filter').addEventListener('input', refresh);
at('more').addEventListener('click', () => {
  showAll = !showAll;
  refresh();
});
at('stack-close').addEventListener('click', () => at('stack').close());
at('stack-again').addEventListener('click', () => loadStack());
at('token').addEventListener('submit', () => {
  sessionStorage.setItem('token', at('token-text').value);
  if (stackRank === null) loadJobs();
  else showStack(stackRank);
});
addEventListener('hashchange', loadJobs);
takeToken();
loadJobs();
setInterval(loadJobs, JOBS_MS);
