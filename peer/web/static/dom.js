// Writing into the page. Names come from strangers, so everything is text and nothing is markup.

export const byId = (id) => document.getElementById(id);

export function text(id, words) {
  const element = byId(id);
  if (element.textContent !== words) element.textContent = words;
}

// A number: its exact value for machines, its words for people.
export function datum(id, value, words) {
  const element = byId(id);
  element.value = value == null ? "" : String(value);
  if (element.textContent !== words) element.textContent = words;
}

export function badge(id, words, kind) {
  text(id, words);
  byId(id).className = `badge ${kind}`;
}

// A secure context has a clipboard. A page served over plain http shows the words to be copied.
function copy(words) {
  if (navigator.clipboard) navigator.clipboard.writeText(words);
  else prompt("Copy:", words);
}

function copier(words, copies) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copies";
  button.textContent = words;
  button.addEventListener("click", () => copy(copies));
  return button;
}

// `rows`: for each row its cells; a cell is a text, or {text, title, kind, copies}.
export function table(id, rows, nothing) {
  const columns = byId(id).parentElement.tHead.rows[0].cells;
  const made = rows.map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, at) => {
      const box = document.createElement("td");
      const given = typeof cell === "object" ? cell : { text: cell };
      if (given.copies) box.append(copier(given.text, given.copies));
      else box.textContent = given.text;
      box.className = `${columns[at].className} ${given.kind ?? ""}`.trim();
      if (given.title) box.title = given.title;
      row.append(box);
    });
    return row;
  });
  if (!made.length) {
    const row = document.createElement("tr");
    const box = document.createElement("td");
    box.colSpan = columns.length;
    box.textContent = nothing;
    row.append(box);
    made.push(row);
  }
  byId(id).replaceChildren(...made);
}

export function list(id, lines, nothing) {
  const made = (lines.length ? lines : [nothing]).filter(Boolean).map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  });
  byId(id).replaceChildren(...made);
}
