// SPDX-License-Identifier: Apache-2.0
//
// One job at a time, as server-sent events bring its state every second. The whole run is asked for less
// often. The other files draw it.

'use strict';

const JOBS_MS = 2000;
const HISTORY_MS = 5000;
const LISTEN_POLLS = 15;

let chosen = null; // Name of a job.
let jobs = []; // The latest of each name.
let stream = null;
let polls = 0; // Since the stream was opened.
let state = null;
let wholeRun = null; // The answer of /history, and when it came: `taken`.
let historyDue = 0;

const jobPath = rest => `/api/v1/jobs/${encodeURIComponent(chosen)}${rest}`;

const rowsOf = ({columns: names, rows}) => rows.map(row => Object.fromEntries(names.map((name, i) => [name, row[i]])));

// What the page adds to the rows of the ranks.
const judge = (rows, job, stall, ran) => {
  const named = new Set(stall?.culprits.map(culprit => culprit.rank));
  const over = isEnded(job);
  for (const row of rows) {
    row.culprit = !over && (named.has(row.rank) || Boolean(stall && row.kind && !SILENT.includes(row.kind)));
    row.cause = over && (row.rank === job.halt_rank || (job.failed > 0 && row.rank === job.failed_rank));
    row.slow = row.slow && !over;
    row.gone = over || ['left', 'lost', 'awaited'].includes(row.state); // Nothing is heard of it.
    row.waited = ran > 0 && row.rank !== null ? Math.min(1, row.waited_ms / ran) : null;
  }
};

const refresh = () => {
  if (!state) return;
  const {job} = state;
  const rows = rowsOf(state);
  const ran = job.formed_age_ms === null ? 0 : job.formed_age_ms - (job.ended_age_ms ?? 0);
  const rate = lastRate(isEnded(job) && state.rates.length ? state.rates.map(([age, ...rest]) => [age - state.rates[0][0], ...rest]) : state.rates);
  judge(rows, job, state.stall, ran);
  showVerdict(state, rows, rate);
  showFacts(state, rate);
  showCharts(state, wholeRun);
  showPicture(isEnded(job) ? null : state.stall, rows);
  showRanks(rows);
  showLists(state, rows, ran);
};

const say = (text, lost) => {
  setText(at('link'), text);
  setClass(at('link'), lost ? 'lost' : '');
};

const loadHistory = async () => {
  const name = chosen;
  historyDue = Date.now() + HISTORY_MS;
  const {status, body} = await ask(jobPath('/history'));
  if (status !== 200 || name !== chosen) return;
  const first = !wholeRun;
  wholeRun = {...body, taken: Date.now()};
  if (first) refresh();
};

const take = (newest, text) => {
  const ends = state && isEnded(newest.job) && !isEnded(state.job);
  state = newest;
  jobs = jobs.map(job => job.name === state.job.name ? state.job : job);
  say(text);
  showJobs();
  refresh();
  if (ends || (Date.now() >= historyDue && !(isEnded(state.job) && wholeRun))) loadHistory().catch(() => {});
};

const listen = name => {
  stream?.close();
  if (name !== chosen) [state, wholeRun, historyDue] = [null, null, 0];
  chosen = name;
  const path = jobPath('/events');
  stream = sessionStorage.getItem('token') ? readEvents(path) : new EventSource(path);
  polls = 0;
  stream.addEventListener('state', event => take(JSON.parse(event.data), 'Live'));
  stream.addEventListener('error', () => say('No answer from the coordinator', true));
};

// The server takes so many listeners and no more. One too many asks instead, and tries again.
const poll = async () => {
  if (++polls % LISTEN_POLLS === 0) {
    listen(chosen);
    return;
  }
  const {status, body} = await ask(jobPath('/state'));
  if (status === 200) take(body, `Asking every ${JOBS_MS / 1000} s`);
};

const dotOf = job => job.stalled && !isEnded(job) ? 'stalled' : job.state;

const showJobs = () => {
  const links = jobs.map(job => {
    const link = make('a', job.name === chosen ? 'chosen' : '',
      make('span', `dot ${dotOf(job)}`), make('span', '', job.name));
    link.href = `#${encodeURIComponent(job.name)}`;
    link.title = isEnded(job) ? ending(job).join(': ') : job.verdict ?? job.state;
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

// ---- files to save -----------------------------------------------------------------------------

const note = text => {
  at('save-note').hidden = !text;
  setText(at('save-note'), text);
};

const saveRun = async kind => {
  const {status, body} = await ask(jobPath('/history'));
  if (status !== 200) {
    note(body.error.message);
    return;
  }
  note('');
  const now = Date.now();
  if (kind === 'csv') {
    const lines = body.rows.map(row => [new Date(now - row[0]).toISOString(), ...row.slice(1)]);
    save(`${chosen}.csv`, 'text/csv', csv([['time', ...body.columns.slice(1)], ...lines]));
  } else {
    save(`${chosen}.json`, 'application/json', JSON.stringify({...body, taken: new Date(now).toISOString(), state}));
  }
};

// Ranks around the first culprit, or the first ones.
const saveTimeline = async () => {
  const first = Math.floor((state?.stall?.culprits[0]?.rank ?? 0) / 16) * 16;
  const last = Math.min(first + 15, Math.max((state?.rows.length ?? 1) - 1, first));
  note('Asking the workers.');
  const {status, body} = await ask(jobPath(`/timeline?ranks=${first}-${last}`));
  if (status !== 200) {
    note(body.error.message);
    return;
  }
  save(`${chosen}-timeline.json`, 'application/json', JSON.stringify(body));
  note(`Saved the last events of ranks ${first} to ${last}. Open the file in chrome://tracing or in Perfetto.`);
};

// ---- start -------------------------------------------------------------------------------------

makeHead();
watchHelp();
watchMap();
at('late-title').append(helpWord('Who makes the others wait'));
at('modules-title').append(helpWord('Modules'));
at('save-timeline').title = 'Save the last events of up to 16 ranks, for chrome://tracing or Perfetto';
at('filter').addEventListener('input', refresh);
at('more').addEventListener('click', () => {
  rowLimit += MORE_RANKS;
  refresh();
});
at('fewer').addEventListener('click', () => {
  rowLimit = FEW_RANKS;
  refresh();
});
for (const [id, name] of [['period-run', 'run'], ['period-recent', 'recent']]) {
  at(id).addEventListener('click', () => {
    period = name;
    refresh();
  });
}
at('save-csv').addEventListener('click', () => saveRun('csv').catch(error => note(error.message)));
at('save-json').addEventListener('click', () => saveRun('json').catch(error => note(error.message)));
at('save-timeline').addEventListener('click', () => saveTimeline().catch(error => note(error.message)));
at('scroll').addEventListener('scroll', showScrollHint, {passive: true});
addEventListener('resize', refresh);
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
const jobsTimer = setInterval(loadJobs, JOBS_MS);
