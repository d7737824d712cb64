// Numbers and times as people read them.

export function bytes(value) {
  if (value == null) return "–";
  for (const [size, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toFixed(value < 9.995 * size ? 2 : 1)} ${name}`;
  }
  return `${Math.round(value)} B`;
}

export function count(value) {
  if (value == null) return "–";
  for (const [size, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const unit = size === 1e4 ? 1e3 : size;
    if (value >= size) return `${(value / unit).toFixed(value < 9.995 * unit ? 2 : 1)} ${name}`;
  }
  return `${Math.round(value)}`;
}

export const loss = (value) => (value == null ? "–" : value.toFixed(3));

export const share = (value) => (value == null ? "–" : `${(value * 100).toFixed(0)} %`);

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

// Time since `t`, seconds since the epoch.
export const ago = (t) => `${duration(Date.now() / 1000 - t)} ago`;

export const shortId = (id) => (id.length > 16 ? `…${id.slice(-8)}` : id);

// The cell of a table that shows a peer: a click copies its whole id.
export const peerCell = (id) => ({ text: shortId(id), title: `${id} (click to copy)`, copies: id });

// A sentence with its peer ids cut short.
export const brief = (words) => words.replace(/12D3Koo[1-9A-Za-z]{40,}/g, shortId);
