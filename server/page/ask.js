// SPDX-License-Identifier: Apache-2.0
//
// Questions to the coordinator: the token, events, the stack of a rank, and files to save. Nothing is
// asked of another server.

'use strict';

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

// ---- files -------------------------------------------------------------------------------------

const save = (name, type, text) => {
  const link = make('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};

// A cell of a table; a spreadsheet takes no text for a formula.
const cell = value => {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

const csv = lines => lines.map(line => line.map(cell).join(',')).join('\n') + '\n';

// ---- the stack of a rank -----------------------------------------------------------------------

let asked = 0; // Answers to earlier questions come too late.
let stackRank = null; // Null: the dialog is there for the token alone.

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
    thread.awaits === 'lock' && thread.owner === thread.tid ? 'waits for a lock that it holds itself' :
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
