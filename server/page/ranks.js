// SPDX-License-Identifier: Apache-2.0
//
// The ranks: a map of all when there are many, a table, who makes the others wait, modules, and events.

'use strict';

const FEW_RANKS = 32; // Up to so many, all are rows; above, a map shows all and rows some.
const MORE_RANKS = 500; // Rows that a press adds.

const SILENT = ['frozen', 'stopped', 'lost']; // Kinds that a rank may be without making others wait.

let order = {by: 'trouble', down: true};
let rowLimit = FEW_RANKS;

const trouble = row => (row.culprit ? 9000 : 0) + (row.kind ? 4000 : 0) + (row.slow ? 2000 : 0) + Math.min(row.lag, 999) + (row.flags ? 1000 : 0);

// A column without `text` is the state.
const columns = [
  {name: 'Rank', by: 'rank', number: true, text: row => row.rank ?? '–'},
  {name: 'State', by: 'state', state: true},
  {name: 'Host', by: 'host', wide: true, text: row => row.host},
  {name: 'Pid', by: 'pid', number: true, text: row => row.pid || ''},
  {name: 'Device', by: 'device', text: row => row.device},
  {name: 'Step', by: 'step', number: true, text: row => row.step},
  {name: 'Heard', by: 'silent_ms', number: true, text: row => row.gone ? '' : `${time(row.silent_ms)} ago`},
  {name: 'Buckets', by: 'position', number: true, text: row => row.count && !row.gone ? `${Math.min(row.position, row.count)} of ${row.count}` : ''},
  {name: 'Last call', by: 'api', wide: true, text: called},
  {name: 'For', by: 'age_ms', number: true, text: row => row.gone ? '' : time(row.age_ms)},
  {name: 'Gradients', by: 'ready', number: true, text: row => row.state === 'in_call' && row.gradients ? `${row.ready} of ${row.gradients}` : ''},
  {name: 'Late', by: 'late', number: true, text: row => row.late >= .01 ? percent(row.late) : ''},
  {name: 'Has waited', by: 'waited_ms', number: true, text: row => row.waited === null ? '' : percent(row.waited)},
  {name: 'Mark', by: 'mark', wide: true, text: row => row.mark},
];

const compare = (a, b) => {
  const [x, y] = order.by === 'trouble' ? [trouble(a), trouble(b)] : [a[order.by] ?? '', b[order.by] ?? ''];
  const way = order.down ? -1 : 1;
  if (x !== y) return (x < y ? -1 : 1) * way;
  return (a.rank ?? 0) - (b.rank ?? 0);
};

const matches = (row, wanted) => !wanted || [`rank ${row.rank}`, row.host, row.state, stateName(row.state), row.module, row.mark, row.api, row.device]
  .some(text => String(text ?? '').toLowerCase().includes(wanted));

const makeHead = () => {
  const head = make('tr');
  for (const column of columns) {
    const button = make('button', '', column.name);
    button.type = 'button';
    button.dataset.help = HELP[column.name];
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

const tags = row => [row.culprit && ['tag bad', 'others wait for it'], row.cause && ['tag strong', 'cause of the end'], row.slow && ['tag warn', 'slow'],
  ...FLAGS.map((name, bit) => row.flags >> bit & 1 && name !== row.state && ['tag', name])].filter(Boolean);

const fillState = (cell, row) => {
  const [state, place] = cell.children;
  setClass(state.children[0], `s-${row.state}`);
  setText(state.children[1], stateName(row.state));
  const wanted = tags(row);
  if (place.textContent !== wanted.map(([, text]) => text).join('')) {
    place.replaceChildren(...wanted.map(([look, text]) => make('span', look, text)));
  }
};

const look = row => row.culprit ? 'blamed' : row.cause ? 'cause' : row.slow ? 'slow' : '';

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

const mapTitle = row => `rank ${row.rank}, ${row.host}: ${stateName(row.state)}${row.gone ? '' : ` for ${time(row.age_ms)}`}, step ${row.step}`;

let mapRows = [];
const rowOf = event => mapRows[[...at('map').children].indexOf(event.target.closest('#map button'))];

const watchMap = () => {
  at('map').addEventListener('click', event => {
    const row = rowOf(event);
    if (row && row.rank !== null) showStack(row.rank);
  });
  // Thousands of titles are not worth writing every second.
  for (const name of ['pointerover', 'focusin']) {
    at('map').addEventListener(name, event => {
      const row = rowOf(event);
      if (!row) return;
      event.target.title = mapTitle(row);
      event.target.setAttribute('aria-label', mapTitle(row));
    });
  }
};

const showMap = (rows, wanted) => {
  const map = at('map');
  map.hidden = rows.length <= FEW_RANKS;
  mapRows = map.hidden ? [] : rows;
  setClass(map, rows.length > 1024 ? 'dense' : '');
  while (map.children.length > mapRows.length) map.lastChild.remove();
  if (map.children.length < mapRows.length) {
    map.append(...Array.from({length: mapRows.length - map.children.length}, (_, i) => {
      const button = make('button');
      button.type = 'button';
      button.setAttribute('aria-label', `rank ${map.children.length + i}`);
      return button;
    }));
  }
  const cells = map.children;
  mapRows.forEach((row, i) => setClass(cells[i], `s-${row.state} ${look(row)}${matches(row, wanted) ? '' : ' hidden'}`));
};

const showLegend = rows => {
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]);
  const text = parts.map(([state, count]) => `${count} ${STATES[state] ?? state}`).join('');
  if (at('legend').textContent === text) return;
  at('legend').replaceChildren(...parts.map(([state, count]) => key(`s-${state}`, `${count} ${STATES[state] ?? state}`)));
};

// A table that is wider than its place says so.
const showScrollHint = () => {
  const place = at('scroll');
  const hidden = place.scrollWidth - place.clientWidth - place.scrollLeft > 4;
  place.classList.toggle('cut', hidden);
  at('scroll-hint').hidden = place.scrollWidth - place.clientWidth <= 4;
};

const showRanks = rows => {
  const wanted = at('filter').value.trim().toLowerCase();
  const found = rows.filter(row => matches(row, wanted)).sort(compare);
  showLegend(rows);
  showMap(rows, wanted);
  showTable(found.slice(0, rowLimit));
  showScrollHint();
  const more = Math.min(MORE_RANKS, found.length - rowLimit);
  at('more').hidden = more <= 0;
  at('fewer').hidden = rowLimit === FEW_RANKS || found.length <= FEW_RANKS;
  if (more > 0) setText(at('more'), `Show ${more} more of ${found.length} rows`);
  setText(at('fewer'), `Show ${FEW_RANKS} rows`);
};

// ---- lists -------------------------------------------------------------------------------------

const MOST_LATE = 8;

const meterLine = (look, name, share, text) => {
  const meter = make('meter');
  meter.max = 1;
  meter.value = share;
  return make('div', `meter ${look}`, make('span', '', name), meter, make('span', '', text));
};

// Of the whole run: what a rank waited less than the median of all, as a share of the time.
const lateOverRun = (rows, ran) => {
  const waits = rows.map(row => row.waited_ms).sort((a, b) => a - b);
  const median = waits[Math.floor(waits.length / 2)] ?? 0;
  return row => ran > 0 ? Math.max(0, Math.min(1, (median - row.waited_ms) / ran)) : 0;
};

const lateLine = ({row, run}) => make('div', 'late', make('span', '', `rank ${row.rank}`),
  make('div', '', meterLine('', 'now', row.late, percent(row.late)), meterLine('', 'whole run', run, percent(run))));

const showLate = (rows, ran, stalled) => {
  const overRun = lateOverRun(rows, ran);
  const late = rows.filter(row => row.rank !== null).map(row => ({row, run: overRun(row)}))
    .filter(({row, run}) => row.late >= .02 || run >= .02)
    .sort((a, b) => b.row.late - a.row.late || b.run - a.run || a.row.rank - b.row.rank).slice(0, MOST_LATE);
  replace('stragglers', [stalled, ...late.map(({row, run}) => [row.rank, row.late, run.toFixed(3)])], () => late.length
    ? late.map(lateLine)
    : [make('p', 'empty', stalled ? 'No rank in particular before the job stood still.' : 'No rank in particular: all wait for each other alike.')]);
};

const showLists = (state, rows, ran) => {
  showLate(rows, ran, Boolean(state.stall));
  replace('modules', [state.modules, rows.length], () => state.modules.length
    ? state.modules.map(({name, ranks}) => meterLine('name', name, ranks / Math.max(rows.length, 1), counted(ranks, 'rank')))
    : [make('p', 'empty', 'No names are known yet.')]);
  replace('log', state.log.map(([age, text]) => [Math.floor(age / 1000), text]), () => state.log.length
    ? state.log.map(([age, text]) => make('li', '', make('time', '', `${time(age)} ago`), make('span', '', text)))
    : [make('li', 'empty', 'Nothing yet.')]);
};
