// SPDX-License-Identifier: Apache-2.0
//
// What the page says of a job first: the verdict, what is known of each culprit, and who waits for whom.

'use strict';

// ---- the verdict -------------------------------------------------------------------------------

const ENDED = ['halted', 'finished'];
const isEnded = job => ENDED.includes(job.state);

// How a job that ended did so: the word, and the sentence.
const ending = job => {
  if (job.state === 'halted') return ['Ended by a fault', job.halt_text ?? 'A fault has ended the job.'];
  if (job.failed > 0) {
    const more = job.failed > 1 ? ` ${counted(job.failed - 1, 'other rank')} failed as well.` : '';
    return ['Ended after a failure', `Rank ${job.failed_rank} failed, and left: ${job.failed_text}${more}`];
  }
  return ['Finished', `All ${counted(job.left, 'rank')} finished and left in good order.`];
};

const endingDetail = job => {
  const ran = job.formed_age_ms === null ? '' : ` It ran for ${time(job.formed_age_ms - job.ended_age_ms)}`;
  const ago = job.ended_age_ms === null ? '' : `${ran ? ' and' : ' It'} ended ${time(job.ended_age_ms)} ago`;
  return `Step ${job.settled} is the last one that all ranks ${job.state === 'halted' ? 'are known to have finished' : 'finished'}.${ran}${ago}${ran || ago ? '.' : ''}`;
};

const verdict = (state, rows, rate) => {
  const {job, stall} = state;
  const slow = rows.filter(row => row.slow);
  if (isEnded(job)) return [`ended ${job.state === 'finished' && !job.failed ? 'well' : 'fault'}`, ...ending(job), endingDetail(job)];
  if (stall) return ['bad', `Stalled for ${time(stall.age_ms)}`, stall.sentence, `Step ${job.settled} is the last one that all ranks finished.`];
  if (job.recovery.active) return ['warn', 'Recovering', job.recovery.text, 'The other ranks finish the step and go on.'];
  if (job.state === 'gathering') {
    return ['', 'Waiting for ranks', `${job.joined} of ${counted(job.world_size, 'rank')} have joined.`, ''];
  }
  if (job.state === 'resuming') return ['', 'Resuming', `${job.joined} of ${counted(job.world_size, 'rank')} have come back to this coordinator. Training goes on.`, ''];
  if (job.state === 'starting') return ['', 'Starting', 'The ranks compare their modules and parameters.', ''];
  const age = job.settled_age_ms === null ? '' : `All ranks had finished it ${time(job.settled_age_ms)} ago.`;
  if (slow.length) {
    const names = slow.slice(0, 4).map(row => `rank ${row.rank}`).join(', ');
    return ['warn', 'Slow', `${names}${slow.length > 4 ? ` and ${slow.length - 4} more` : ''} ` +
      `take longer than usual, but not yet long enough to be called stalled.`, `Step ${job.settled}. ${age}`];
  }
  return ['good', 'Running', rate
    ? `Step ${job.settled}. A step takes ${shortTime(rate.step)}; ${percent(rate.exposed / rate.step)} of it is spent waiting for gradients.`
    : `Step ${job.settled}.`, age];
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
  say('for', time(culprit.age_ms) + (culprit.bound_ms ? `, longer than its limit of ${time(culprit.bound_ms)}` : ''));
  say('the limit is', culprit.why === 'floor' ? 'the minimum stall time of the coordinator' : culprit.why);
  say('last call', called(culprit));
  say('now in', culprit.top);
  say('waits for', culprit.awaited && `${culprit.awaited} on stream ${culprit.stream}`);
  say('missing gradients', names && names + (more > 0 ? ` and ${more} more` : ''));
  say('mark', culprit.mark);
  say('note', culprit.flags.join(', '));
  say('asleep in', culprit.sleeps);
  return make('div', 'culprit',
    make('div', 'bar', make('h2', '', `Rank ${culprit.rank} `, make('small', '', `${culprit.host}, pid ${culprit.pid}`)),
      make('span', 'tag bad', KINDS[culprit.kind] ?? culprit.kind), button), list);
};

let shownCulprits = '';
const showVerdict = (state, rows, rate) => {
  const [look, word, sentence, detail] = verdict(state, rows, rate);
  setClass(at('verdict'), look);
  setText(at('word'), word);
  setText(at('sentence'), sentence);
  setText(at('detail'), detail);
  setClass(at('main'), isEnded(state.job) ? 'over' : '');
  document.title = `${look === 'bad' ? '⚠ ' : ''}${state.job.name} · Lockstep`;
  const culprits = state.stall?.culprits ?? [];
  const text = JSON.stringify(culprits);
  if (text === shownCulprits) return;
  shownCulprits = text;
  at('culprits').replaceChildren(...culprits.map(culpritCard));
};

// ---- numbers -----------------------------------------------------------------------------------

const showFacts = (state, rate) => {
  const {job} = state;
  const over = isEnded(job);
  const ran = job.formed_age_ms === null ? null : job.formed_age_ms - (job.ended_age_ms ?? 0);
  const totals = job.totals;
  const age = over || job.settled_age_ms === null ? '' : `${time(job.settled_age_ms)} ago`;
  const facts = [
    ['Step', job.settled, over ? 'the last one' : age],
    ['Step time', rate ? shortTime(rate.step) : '–', over ? 'at the end' : ''],
    ['Waiting', rate ? shortTime(rate.exposed) : '–', rate ? `${percent(rate.exposed / rate.step)} of a step` : ''],
    ['Hidden', totals.in_flight_us ? percent(totals.overlap_us / totals.in_flight_us) : '–', 'of transfers'],
    ['Network', rate?.bytes ? speed(rate.bytes) : '–', rate?.bytes ? 'sent by all ranks' : rate ? 'nothing sent' : ''],
    ['Ranks', over || job.joined === job.world_size ? job.world_size : `${job.joined} of ${job.world_size}`, job.hosts ? `on ${counted(job.hosts, 'host')}` : ''],
    ['Running for', ran === null ? '–' : time(ran), over ? 'until the end' : ''],
    ['Start', job.generation.number || '–', job.generation.number < 2 ? '' : job.recovery.count ? 'recoveries count' : 'after restarts'],
    ['Bucket order', job.plan_number ? 'learned' : 'learning', ''],
    ['Device', job.device_classes.join(', ') || '–', ''],
    ['Recoveries', job.recovery.count, `the last took ${time(job.recovery.last_ms)}`],
  ];
  const place = at('facts');
  while (place.children.length < facts.length) {
    place.append(make('div', '', helpWord(facts[place.children.length][0]), make('b'), make('span')));
  }
  facts.forEach(([, value, note], i) => {
    setText(place.children[i].children[1], String(value));
    setText(place.children[i].children[2], note);
  });
  place.lastElementChild.hidden = job.recovery.count === 0;
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
  const room = Math.floor((width - 16) / 6.6);
  group.append(draw('rect', {class: `node ${look}`, x, y: y - 19, width, height: 38, rx: 7}),
    draw('text', {class: 'strong', x: x + 9, y: note ? y - 3 : y + 4}, cut(title, room)));
  if (note) group.append(draw('text', {x: x + 9, y: y + 12}, cut(note, room)));
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
  const gap = 48;
  const width = Math.max(300, Math.min(at('picture').clientWidth || 600, 760));
  const left = Math.round(width * .3);
  const middleX = Math.round(width * .46); // Where arrows end.
  const box = width - middleX - 40;
  const height = Math.max(Math.max(waiting.length, targets.length) * gap + 10, 60);
  const middle = (i, count) => height / 2 + (i - (count - 1) / 2) * gap;
  const right = rank => middle(targets.indexOf(rank), targets.length);
  const svg = draw('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': stall.sentence});
  const marker = draw('marker', {id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7,
    markerHeight: 7, orient: 'auto'});
  marker.append(draw('path', {class: 'head', d: 'M0 0 8 4 0 8z'}));
  svg.append(marker);
  waiting.forEach((group, i) => {
    const y = middle(i, waiting.length);
    for (const to of group.to) drawArrow(svg, '', `M${left} ${y} C ${(left + middleX) / 2} ${y} ${(left + middleX) / 2} ${right(to)} ${middleX - 2} ${right(to)}`);
    drawNode(svg, {x: 2, y, width: left - 2, look: '', title: groupName(group), note: groupNote(group),
      rank: group.members === 1 ? group.from : undefined});
  });
  for (const {from, to} of stall.edges.filter(circle)) {
    const [begin, end] = [right(from), right(to) + (to > from ? -6 : 6)];
    drawArrow(svg, 'circle', `M${middleX + box} ${begin} C ${middleX + box + 38} ${begin} ${middleX + box + 38} ${end} ${middleX + box + 1} ${end}`);
  }
  for (const rank of targets) {
    const note = [kinds.get(rank), hosts.get(rank)].filter(Boolean).join(', ');
    drawNode(svg, {x: middleX, y: right(rank), width: box, look: kinds.has(rank) ? 'bad' : '',
      title: `rank ${rank}`, note, rank});
  }
  return svg;
};

const showPicture = (stall, rows) => {
  const place = at('picture');
  const wanted = Boolean(stall && (stall.culprits.length || stall.edges.length));
  at('waits').hidden = !wanted;
  if (!wanted) return;
  const more = stall.culprits_total - stall.culprits.length;
  place.replaceChildren(drawPicture(stall, rows),
    ...more > 0 ? [make('p', 'empty', `and ${more} more that the others wait for`)] : []);
};
