'use strict';

// Every text of the cluster enters the page as text, never as HTML: tenants name Services, routers send messages.

const every = 2000; // as often as the plugin reads the cluster at most
const oldest = 45; // seconds of what is shown: the longest interval, a slow read and the next poll
const mostRows = 200; // of one list: the browser draws no more, the filter finds the others
const find = id => document.getElementById(id);

let page, etag = '', read = 0, failed = '', timer;
let rows = 4; // of addresses of a node: it only grows, with room for those of another node, so that the layout stays
const open = new Set(); // the nodes whose addresses are all shown

async function poll() {
  clearTimeout(timer);
  try {
    const answer = await fetch('page.json', {headers: etag ? {'If-None-Match': etag} : {}, cache: 'no-store', signal: AbortSignal.timeout(40000)});
    if (answer.status === 200) {
      page = await answer.json();
      etag = answer.headers.get('ETag');
    } else if (answer.status !== 304) {
      throw new Error(await answer.text());
    }
    read = Date.now() - 1000 * answer.headers.get('Age');
    failed = page.error ? 'The cluster cannot be read, this is its last known state: ' + page.error : '';
  } catch (error) {
    failed = 'kubectl ironlb ui does not answer: ' + error.message;
  }
  if (!document.hidden) timer = setTimeout(poll, every);
  if (page) render();
  tick();
}

// make returns an element with children: elements, or texts.
function make(tag, name, ...children) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  e.append(...children);
  return e;
}

// spaced separates parts that the layout separates, for those who copy or hear the text.
const spaced = (...parts) => parts.flatMap(part => [part, ' ']);

function text(e, value) {
  if (e.textContent !== value) e.textContent = value;
}

// list makes the children of parent those of the items, in order. It builds again what has changed only, so that focus,
// selection and scrolling stay.
const drawn = new WeakMap();
function list(parent, items, key, tag, build) {
  const old = new Map([...parent.children].map(e => [e.dataset.key, e])), seen = new Map();
  items.forEach((item, i) => {
    let k = key(item);
    const n = (seen.get(k) ?? 0) + 1, json = JSON.stringify(item);
    seen.set(k, n);
    if (n > 1) k += '\n' + n;
    const e = old.get(k) ?? make(tag);
    old.delete(k);
    if (drawn.get(e) !== json) {
      const focus = e.contains(document.activeElement) && document.activeElement.tagName;
      e.dataset.key = k;
      e.replaceChildren(...build(item, e));
      drawn.set(e, json);
      if (focus) e.querySelector(focus)?.focus();
    }
    if (parent.children[i] !== e) parent.insertBefore(e, parent.children[i] ?? null);
  });
  for (const e of old.values()) e.remove();
}

const signs = {OK: '✓', Warning: '!', Problem: '✕', Unknown: '?'};
const stateOf = {True: 'OK', False: 'Problem', Unknown: 'Unknown'};

// mark shows a state by form and colour, and names it for a screen reader.
function mark(state, spoken) {
  const sign = make('span', 'mark ' + state, signs[state]);
  sign.setAttribute('aria-hidden', 'true');
  return [sign, make('span', 'hidden', spoken + ' ')];
}

// ago is the age of a time; tick updates it.
function ago(at) {
  if (!at) return make('span');
  const e = make('time', '', age(at));
  e.dateTime = at;
  e.title = new Date(at).toLocaleString();
  return e;
}

function age(at) {
  const s = Math.max(0, Math.round((Date.now() - Date.parse(at)) / 1000));
  if (s < 120) return s + 's';
  if (s < 7200) return Math.floor(s / 60) + 'm';
  if (s < 172800) return Math.floor(s / 3600) + 'h';
  return Math.floor(s / 86400) + 'd';
}

function tick() {
  for (const e of document.querySelectorAll('time')) text(e, age(e.dateTime));
  find('trouble').hidden = !failed;
  text(find('trouble'), failed);
  const since = Math.round((Date.now() - read) / 1000);
  text(find('live'), !read ? '' : failed || since > oldest ? 'not live' : 'live, updated ' + since + 's ago');
}

const count = (n, one, many = one + 's') => n.toLocaleString() + ' ' + (n === 1 ? one : many);
const some = (names, n) => names.slice(0, n).join(', ') + (names.length > n ? ' and ' + (names.length - n).toLocaleString() + ' more' : '');

function render() {
  const words = find('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (...texts) => { const all = texts.flat().join(' ').toLowerCase(); return words.every(w => all.includes(w)); };
  text(find('context'), page.context);
  const problems = page.problems.filter(p => p.state !== 'Warning').length, warnings = page.problems.length - problems;
  const said = [problems && count(problems, 'problem'), warnings && count(warnings, 'warning')].filter(Boolean).join(', ') || 'No problem';
  const state = find('state');
  if (state.dataset.said !== page.state + said) {
    state.dataset.said = page.state + said;
    state.replaceChildren(mark(page.state, '')[0], ' ' + said);
    state.className = page.state;
    document.title = (page.problems.length ? said : '✓') + ' – IronLB ' + page.context;
  }
  totals();
  renderProblems(has);
  renderMoves(has);
  renderNodes(has, words.length > 0);
  renderPools(has);
  renderSessions(has);
}

function totals() {
  const all = [...page.nodes.flatMap(n => n.addresses), ...page.ownerless, ...page.routed];
  const addresses = all.flatMap(a => a.addresses.map(() => a.announced === 'True'));
  const free = page.pools.flatMap(p => p.families).reduce((sum, f) => sum + f.free, 0);
  const of = (ok, n) => ok === n ? n.toLocaleString() : ok.toLocaleString() + ' of ' + n.toLocaleString();
  const items = [
    ['Addresses announced', of(addresses.filter(Boolean).length, addresses.length)],
    ['Nodes that forward', of(page.nodes.filter(n => n.forwards === 'True').length, page.nodes.length)],
    ['Free in pools', compact(free)],
  ];
  if (page.sessions.length) items.push(['BGP sessions established', of(page.sessions.filter(s => s.state === 'Established').length, page.sessions.length)]);
  const bfd = page.sessions.filter(s => s.bfd);
  if (bfd.length) items.push(['BFD sessions up', of(bfd.filter(s => s.bfd === 'Up').length, bfd.length)]);
  list(find('totals'), items, i => i[0], 'div', ([name, value], e) => {
    e.setAttribute('role', 'listitem');
    return spaced(make('b', '', value), make('span', 'muted', name));
  });
}

const compact = n => n < 1e6 ? n.toLocaleString() : n.toLocaleString('en', {notation: 'scientific', maximumFractionDigits: 1});

function renderProblems(has) {
  const shown = page.problems.filter(p => has(p.state, p.kind, p.reason, p.message ?? '', p.objects)).slice(0, mostRows);
  list(find('problems'), shown.length ? shown : [{none: true}], p => [p.state, p.kind, p.reason, p.objects?.[0]].join('\n'), 'li', p =>
    p.none ? [make('span', 'muted', page.problems.length ? 'None passes the filter.' : 'None.')]
      : [...mark(p.state, p.state), make('b', '', p.reason), ' ' + p.kind + ' ' + some(p.objects, 5) + ' ', make('div', 'muted', p.message ?? '')]);
}

function renderMoves(has) {
  const shown = page.moves.filter(m => has(m.from ?? '', m.to, m.addresses, m.cause ?? ''));
  const none = page.movesError || (page.moves.length ? 'None passes the filter.' : 'None. Kubernetes keeps Events for an hour.');
  list(find('moves'), shown.length ? shown : [{none}], m => [m.from, m.reason, m.cause, m.at].join('\n'), 'li', m => {
    if (m.none) return [make('span', 'muted', m.none)];
    const took = make('span', 'took', m.reason === 'TakenOver' ? 'handover' : !m.longest ? '' :
      m.shortest === m.longest ? duration(m.longest) : duration(m.shortest) + ' to ' + duration(m.longest));
    took.title = m.reason === 'TakenOver' ? 'The new owner answered before the old one ended.' : 'How long clients had no answer.';
    return spaced(took, ago(m.at), make('b', '', (m.from ? m.from + ' → ' : '') + some(m.to, 4)),
      make('div', '', m.addresses.length > 3 ? count(m.addresses.length, 'address', 'addresses') + ': ' + some(m.addresses, 3) : m.addresses.join(', ')),
      make('div', 'muted', m.cause ?? ''));
  });
}

const duration = ms => ms < 1000 ? ms + ' ms' : (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + ' s';

const badFirst = (a, b) => (a.announced === 'True') - (b.announced === 'True');

function renderNodes(has, filtered) {
  const most = page.nodes.length <= 6 ? 8 : page.nodes.length <= 24 ? 4 : 1;
  rows = Math.min(most, Math.max(rows, Math.ceil(1.5 * Math.max(...page.nodes.map(n => n.addresses.length)))));
  const others = (name, reason, addresses) => addresses.length ? [{name, forwards: '', reason, addresses}] : [];
  const tiles = [...page.nodes, ...others('No owner', 'no node answers', page.ownerless), ...others('BGP only', 'announced to routers', page.routed)];
  const nodes = find('nodes');
  nodes.style.setProperty('--rows', rows);
  nodes.classList.toggle('dense', rows === 1);
  const shown = [];
  for (const n of tiles) {
    const whole = has(n.name, n.reason, n.interfaces ?? []);
    const matching = whole ? n.addresses : n.addresses.filter(a => has(n.name, n.reason, a.addresses, a.services, a.reason));
    if (!whole && !matching.length) continue;
    const limit = open.has(n.name) ? mostRows : rows;
    const first = matching.length > limit ? matching.toSorted(badFirst).slice(0, limit) : matching;
    shown.push({...n, addresses: first, total: n.addresses.length, more: matching.length - first.length, open: open.has(n.name),
      bad: n.addresses.filter(a => a.announced !== 'True').length});
  }
  const none = filtered || page.nodes.length ? 'Nothing passes the filter.' : 'No speaker has reported yet.';
  list(nodes, shown.length ? shown.slice(0, 2 * mostRows) : [{name: '', none}], n => n.name, 'li', tile);
}

// tile draws a node with the first of its addresses. Its height stays while the number of addresses changes.
function tile(n, e) {
  if (n.none) return [make('span', 'muted', n.none)];
  const state = stateOf[n.forwards] ?? (n.bad ? 'Problem' : 'OK');
  e.className = 'is-' + state;
  const name = make('span', 'name', n.name);
  name.title = n.name;
  const said = {True: 'forwards', False: 'does not forward', Unknown: 'unknown'}[n.forwards] ?? '';
  const about = [n.bad && n.bad.toLocaleString() + ' not announced', said === 'forwards' ? said : [said, n.reason].filter(Boolean).join(': '),
    n.alive && 'receives ' + n.alive, n.interfaces?.join(', ')].filter(Boolean).join(' · ');
  const line = make('p', 'cut muted', about);
  line.title = [about, n.message].filter(Boolean).join('\n');
  const rows = make('ul', 'rows', ...n.addresses.map(a => {
    const is = stateOf[a.announced], more = a.addresses.length - 1;
    const row = make('li', '', ...spaced(...mark(is, is === 'OK' ? 'announced' : 'not announced'),
      make('span', 'address cut', a.addresses[0] + (more ? ' +' + more : '')),
      make('span', 'service cut ' + is, (is === 'OK' ? '' : a.reason + ' · ') + a.services.join(', ')), ago(a.since)));
    row.title = [a.addresses.join(' '), a.services.join(', '), a.reason, a.next && 'next: ' + a.next].filter(Boolean).join('\n');
    return row;
  }));
  if (n.more || n.open) {
    const more = make('button', '', n.open ? 'fewer' : count(n.more, 'more', 'more'));
    more.type = 'button';
    more.setAttribute('aria-label', more.textContent + ' addresses of ' + n.name);
    more.setAttribute('aria-expanded', n.open);
    more.addEventListener('click', () => { open.delete(n.name) || open.add(n.name); render(); });
    rows.append(make('li', '', more, n.open && n.more ? make('span', 'muted', 'and ' + count(n.more, 'more', 'more') + ': use the filter') : ''));
  }
  return [make('h3', '', ...mark(state, ''), name, make('span', 'count', n.forwards ? count(n.total, 'VIP') : n.total.toLocaleString())), line, rows];
}

function renderPools(has) {
  const shown = page.pools.filter(p => has(p.name, p.addresses)).slice(0, mostRows);
  const none = page.pools.length ? 'None passes the filter.' : 'No IPAddressPool: no Service gets an address.';
  list(find('pools'), shown.length ? shown : [{name: '', none}], p => p.name, 'li', (p, e) => {
    if (p.none) return [make('span', 'muted', p.none)];
    e.className = p.draining ? 'draining' : '';
    const state = p.ready === 'True' ? p.draining ? 'Warning' : 'OK' : stateOf[p.ready];
    const told = (p.ready === 'True' ? '' : p.ready === 'False' ? ' not ready' : ' unknown') + (p.draining ? ' draining' : '');
    return spaced(make('p', '', ...mark(state, ''), make('b', '', p.name), make('span', state, told), make('span', 'muted', ' ' + some(p.addresses, 4))), ...p.families.map(family));
  });
}

function family(f) {
  const all = f.used + f.free, bar = make('div', 'bar');
  for (const [name, n] of [['used', f.used], ['cooling', f.cooling]]) {
    const part = make('span', name);
    part.style.width = (all && n ? Math.max(100 * n / all, 0.5) : 0) + '%';
    bar.append(part);
  }
  bar.setAttribute('aria-hidden', 'true'); // the numbers follow
  const key = name => make('span', 'key ' + name);
  return make('div', 'family', make('span', 'muted', f.family), bar,
    make('span', 'counts', ...[['used', f.used], ['cooling', f.cooling], ['free', f.free - f.cooling]].map(([name, n]) =>
      make('span', '', make('span', 'key ' + name), ' ' + compact(n) + ' ' + name))));
}

function renderSessions(has) {
  const few = 20, works = s => s.state === 'Established' && !s.reason;
  const matching = page.sessions.filter(s => has(s.node, s.peer, s.address ?? '', s.state, s.bfd ?? '', s.reason ?? ''));
  const shown = matching.length > few ? matching.toSorted((a, b) => works(a) - works(b)).slice(0, few) : matching;
  list(find('sessions'), shown, s => s.node + '\n' + s.peer, 'tr', s => {
    const state = s.state === 'Unknown' ? 'Unknown' : s.state !== 'Established' ? 'Problem' : s.reason ? 'Warning' : 'OK';
    return spaced(make('td', '', s.node), make('td', '', s.peer), make('td', '', s.address ?? ''), make('td', '', s.asn),
      make('td', '', ...mark(state, ''), s.state), make('td', '', ago(s.since)),
      make('td', '', ...(s.bfd ? [...mark(s.bfd === 'Up' ? 'OK' : 'Problem', ''), s.bfd] : ['–'])),
      make('td', 'number', s.state === 'Established' ? s.prefixes.toLocaleString() : '–'), make('td', '', s.reason ?? ''));
  });
  text(find('more-sessions'), !page.sessions.length ? 'None. BGP is optional.' : matching.length > shown.length ?
    'and ' + count(matching.length - shown.length, 'more session') + ': use the filter' : '');
}

find('filter').addEventListener('input', () => page && render());
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
setInterval(tick, 1000);
poll();
