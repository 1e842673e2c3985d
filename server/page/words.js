// SPDX-License-Identifier: Apache-2.0
//
// What all parts of the page use: elements, the words for times and numbers, and the help that a word
// shows. Texts come from workers, so they reach the document as text nodes only, never as markup.

'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const STATES = {
  outside: 'in your own code', in_call: 'in a forward or backward pass', inside: 'in Lockstep',
  waiting: 'waiting for other ranks', paused: 'in a declared pause', frozen: 'silent: no heartbeats',
  stopped: 'process is stopped', lost: 'lost', left: 'left', opening: 'opening', starting: 'starting',
  awaited: 'has not come back yet',
};
const SHORT_STATES = {
  outside: 'own code', in_call: 'fwd/bwd pass', inside: 'in Lockstep', frozen: 'silent',
};
const KINDS = {
  outside: 'in your own code', in_call: 'in the forward or backward pass', frozen: 'sends no heartbeats',
  stopped: 'process is stopped', lost: 'lost', link: 'link does not move', unknown: 'unknown',
  device: 'its GPU does not finish',
};
const FLAGS = ['paused', 'traced', 'throttled', 'disk', 'first steps'];
const HELP = {
  'Step': 'The last step whose gradients are reduced on every rank. Ranks send a heartbeat once a second, so the number is up to a second old.',
  'Step time': 'Time from the end of one step to the end of the next, as a mean over the ranks.',
  'Waiting': 'Exposed communication: time at the end of a step in which the trainer waits for reduced gradients.',
  'Hidden': 'Communication that ran beside the backward pass, so that no trainer waited for it. The rest is exposed.',
  'Network': 'Bytes that all ranks together sent over their links, in a second. Memory that ranks of one host share is not counted.',
  'Ranks': 'Processes of the world that are connected, of the world size.',
  'Start': 'How often this job has formed a world. It is 1 at first; each restart adds one.',
  'Recoveries': 'How often the other ranks finished the step and went on after a rank was lost.',
  'Bucket order': 'Lockstep learns in the first steps in which order gradient buckets are reduced. After that the order is the same on all ranks.',
  'Device': 'The device that a rank computes on.',
  'Running for': 'Time since the world has formed.',
  'Who makes the others wait': 'All ranks of an allreduce wait for the last one. A score of 30 % means that the job would be up to 30 % faster if this rank were as fast as the median rank. It is measured over the last 25 seconds, and over the whole run.',
  'Modules': 'The modules that your trainer registered, and how many ranks were last seen in each.',
  'Rank': 'Number of the process in the world, from 0.',
  'State': 'What the rank does now: in your own code, in a forward or backward pass, in Lockstep, or waiting for others.',
  'Host': 'Machine that the rank runs on.',
  'Pid': 'Process id on that host.',
  'Buckets': 'Gradient buckets of the current step that are reduced, of all buckets of the step.',
  'Last call': 'The Lockstep function that the trainer called last, with its module and the number of the call in this step.',
  'For': 'How long the rank has been where it is.',
  'Gradients': 'Gradients that the open call has reported, of all gradients of its module.',
  'Late': 'Share of the last 25 seconds that the other ranks waited for this one.',
  'Has waited': 'Share of the whole run that this rank waited for others. The rank with the smallest share makes the others wait.',
  'Heard': 'Age of the last heartbeat of this rank.',
  'Mark': 'Text that the trainer set with lockstep_mark. Numbers in it, as in loss=0.41, are drawn above.',
};

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

const shown = {};
const replace = (id, value, children) => {
  const text = JSON.stringify(value);
  if (shown[id] === text) return;
  shown[id] = text;
  at(id).replaceChildren(...children());
};

// ---- help --------------------------------------------------------------------------------------

// A word that explains itself to a mouse, a finger and a keyboard.
const helpWord = (word, text = HELP[word]) => {
  const element = make('button', 'help', word);
  element.type = 'button';
  element.dataset.help = text;
  return element;
};

const hideTip = () => {
  at('tip').hidden = true;
};

const showTip = element => {
  const tip = at('tip');
  tip.textContent = element.dataset.help;
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6;
  const top = below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6);
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
};

const helped = event => event.target.closest?.('[data-help]');

const watchHelp = () => {
  document.addEventListener('pointerover', event => {
    if (event.pointerType !== 'mouse') return;
    const element = helped(event);
    if (element) showTip(element);
    else hideTip();
  });
  document.addEventListener('click', event => {
    const element = helped(event);
    if (element) showTip(element);
    else hideTip();
  });
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') hideTip();
  });
  addEventListener('scroll', hideTip, {passive: true});
  at('words').append(...Object.entries(HELP).flatMap(([word, text]) => [make('dt', '', word), make('dd', '', text)]));
};

// ---- words -------------------------------------------------------------------------------------

const stateName = state => SHORT_STATES[state] ?? state;

const two = number => String(number).padStart(2, '0');

const time = ms => {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 100) return `${s.toFixed(1)} s`;
  if (s < 6000) return `${Math.floor(s / 60)} m ${two(Math.floor(s % 60))} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
};

const shortTime = us => us < 1000 ? `${Math.round(us)} µs` : us < 1e6 ? `${(us / 1000).toPrecision(3)} ms` : time(us / 1000);

const clock = ms => {
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
};

const UNITS = ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'];
const speed = bytes => {
  let unit = 0;
  for (; bytes >= 1000 && unit < UNITS.length - 1; unit++) bytes /= 1000;
  return `${bytes < 100 ? Number(bytes.toPrecision(3)) : Math.round(bytes)} ${UNITS[unit]}`;
};

const plain = number => {
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return number.toExponential(2);
  return String(Number(number.toPrecision(4)));
};

const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + '…' : text;

const percent = share => `${(100 * share).toFixed(share < .1 ? 1 : 0)} %`;

const counted = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;

const called = row => {
  if (!row.api || row.state === 'left') return '';
  const module = row.module ? ` ${row.module}#${row.call}` : '';
  return row.inside ? `in ${row.api}${module}` : `after ${row.api}${module}`;
};

const key = (name, text) => make('span', 'key', make('i', name), text);
