// A comma-separated file, piece by piece, into typed columns: asbc.data.columns and row_batches.
//
// Ids are kept as codes of their distinct texts. A cell that is no number becomes NaN, and its text
// is noted, so that the checks can name it.

const PIECE = 1 << 22; // bytes read at once
// What counts as an empty cell (Apache Arrow's list).
const NULLS = new Set([
  "",
  "#N/A",
  "#N/A N/A",
  "#NA",
  "-1.#IND",
  "-1.#QNAN",
  "-NaN",
  "-nan",
  "1.#IND",
  "1.#QNAN",
  "N/A",
  "NA",
  "NULL",
  "NaN",
  "n/a",
  "nan",
  "null",
]);
const NUMBER = /^\s*[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?)\s*$/i;
const INFINITE = /^\s*([+-]?)inf(inity)?\s*$/i;

/** A mistake of the user's; its message is shown as it is. */
class InputError extends Error {}

/** A defect of the table as a whole; `unit` names what would mend it, where that is known. */
class TableError extends InputError {
  constructor(message, unit = null) {
    super(message);
    this.unit = unit;
  }
}

/** Names in the first line, and where the data begin. */
async function readHeader(file) {
  const start = new Uint8Array(await file.slice(0, 1 << 16).arrayBuffer());
  const text = new TextDecoder("utf-8").decode(start);
  const line = text.split(/\r\n|\n|\r/, 1)[0];
  if (!line.trim()) {
    throw new InputError(`${file.name}: empty file or blank first line; expected data`);
  }
  return line.split(",").map((name) => name.trim().replace(/^"+|"+$/g, ""));
}

/** A column of text as codes of its distinct values; -1: empty. */
class TextColumn {
  constructor() {
    this.names = [];
    this.codes = new GrowingArray(Int32Array);
    this.known = new Map();
    this.last = null; // neighbouring rows have the same id: no need to look it up
    this.lastCode = -1;
  }

  push(text) {
    if (text !== this.last) {
      this.last = text;
      this.lastCode = text === null ? -1 : this.code(text);
    }
    this.codes.push(this.lastCode);
  }

  code(text) {
    let code = this.known.get(text);
    if (code === undefined) {
      code = this.names.length;
      this.names.push(text);
      this.known.set(text, code);
    }
    return code;
  }
}

/** An array of numbers that grows. */
class GrowingArray {
  constructor(kind) {
    this.kind = kind;
    this.values = new kind(1024);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.values.length) {
      const larger = new this.kind(2 * this.length);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.length++] = value;
  }

  done() {
    return this.values.slice(0, this.length);
  }
}

/** Rows of a file as columns. */
class TableReader {
  /**
   * @param {string} name of the file.
   * @param {string[]} header its columns.
   * @param {Object<string, number>} places the column of each wanted name.
   */
  constructor(name, header, places) {
    this.name = name;
    this.header = header;
    this.text = TEXT_COLUMNS.filter((column) => column in places).map((column) => [
      column,
      places[column],
      new TextColumn(),
    ]);
    this.numbers = NUMBER_COLUMNS.filter((column) => column in places).map((column) => [
      column,
      places[column],
      new GrowingArray(Float64Array),
    ]);
    this.lines = new GrowingArray(Float64Array);
    this.notes = new Map();
    this.cut = [];
    this.rest = "";
    this.line = 1;
  }

  /** The lines of a piece of text; the last of them may be unfinished. */
  push(text, final = false) {
    const whole = this.rest + text;
    let start = 0;
    for (;;) {
      const end = whole.indexOf("\n", start);
      if (end < 0) break;
      this.pushLine(whole.slice(start, whole[end - 1] === "\r" ? end - 1 : end));
      start = end + 1;
    }
    this.rest = whole.slice(start);
    if (final && this.rest) this.pushLine(this.rest.replace(/\r$/, ""));
  }

  pushLine(line) {
    if (line === "") return; // as the command's reader does, blank lines are not counted
    if (this.line === 1) {
      this.line = 2; // the header
      return;
    }
    const cells = line.includes('"') ? splitQuoted(line) : line.split(",");
    const expected = this.header.length;
    if (cells.length > expected) {
      const shown = line.length > 100 ? `${line.slice(0, 96)} ...` : line;
      throw new InputError(
        `${this.name}: CSV parse error: line ${this.line}: Expected ${expected} columns, got ` +
          `${cells.length}: ${shown}; the line is cut or has extra separators; copy the file again ` +
          "or mend the line",
      );
    }
    if (cells.length < expected) this.cut.push([cells, this.line]);
    else this.pushRow(cells, this.line);
    this.line++;
  }

  pushRow(cells, line) {
    const row = this.lines.length;
    for (const [, place, column] of this.text) {
      const cell = cells[place];
      column.push(cell === undefined || NULLS.has(cell) ? null : cell);
    }
    for (const [name, place, column] of this.numbers) {
      const value = this.number(cells[place], name, row);
      column.push(value);
    }
    this.lines.push(line);
  }

  number(cell, name, row) {
    if (cell === undefined || NULLS.has(cell)) return NaN;
    if (NUMBER.test(cell)) return Number(cell);
    const infinite = INFINITE.exec(cell);
    if (infinite) return infinite[1] === "-" ? -Infinity : Infinity;
    if (!this.notes.has(row)) this.notes.set(row, {});
    this.notes.get(row)[name] = cell;
    return NaN;
  }

  /** The table; lines that were cut come last, as in the command. */
  done() {
    for (const [cells, line] of this.cut) this.pushRow(cells, line);
    const table = {
      length: this.lines.length,
      lines: this.lines.done(),
      notes: this.notes,
      ids: {},
      numbers: {},
    };
    for (const [name, , column] of this.text) {
      table.ids[name] = { names: column.names, codes: column.codes.done() };
    }
    for (const [name, , column] of this.numbers) table.numbers[name] = column.done();
    return table;
  }
}

/** The cells of a line with quotes; two of them inside are one. */
function splitQuoted(line) {
  const cells = [];
  let at = 0;
  for (;;) {
    let cell = "";
    if (line[at] === '"') {
      for (at++; at < line.length; at++) {
        if (line[at] !== '"') cell += line[at];
        else if (line[at + 1] === '"') cell += line[at++];
        else break;
      }
      at++;
    }
    const end = line.indexOf(",", at);
    cells.push(cell + line.slice(at, end < 0 ? line.length : end));
    if (end < 0) return cells;
    at = end + 1;
  }
}

/**
 * A file as a table.
 *
 * @param {File} file
 * @param {string[]} header from readHeader.
 * @param {Object<string, number>} places the column of each wanted name.
 * @param {(share: number) => Promise<void>} progress
 */
async function readTable(file, header, places, progress) {
  const reader = new TableReader(file.name, header, places);
  const decoder = new TextDecoder("utf-8", { fatal: true });
  for (let at = 0; at < file.size; at += PIECE) {
    const bytes = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
    let text;
    try {
      text = decoder.decode(bytes, { stream: true });
    } catch {
      const { reason, line } = await findBadByte(file);
      throw new InputError(
        `${file.name}: line ${line} is not UTF-8 text (${reason}); convert the file to UTF-8 or ` +
          "copy it again",
      );
    }
    reader.push(text, at + PIECE >= file.size);
    await progress(Math.min(1, (at + PIECE) / file.size));
  }
  return reader.done();
}

/** Why and in which line a file is not UTF-8, as Python's decoder says it. */
async function findBadByte(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let line = 1;
  for (let i = 0; i < bytes.length;) {
    const byte = bytes[i];
    if (byte === 10) line++;
    const more =
      byte < 0x80
        ? 0
        : byte >= 0xc2 && byte < 0xe0
          ? 1
          : byte >= 0xe0 && byte < 0xf0
            ? 2
            : byte >= 0xf0 && byte < 0xf5
              ? 3
              : -1;
    if (more < 0) return { line, reason: "invalid start byte" };
    for (let k = 1; k <= more; k++) {
      const next = bytes[i + k];
      if (!continues(byte, k, next)) return { line, reason: "invalid continuation byte" };
    }
    i += 1 + more;
  }
  return { line, reason: "unexpected end of data" };
}

/** Whether a byte may follow as the k-th after `lead`: no surrogates, nothing overlong. */
function continues(lead, k, byte) {
  const low = k === 1 && lead === 0xe0 ? 0xa0 : k === 1 && lead === 0xf0 ? 0x90 : 0x80;
  const high = k === 1 && lead === 0xed ? 0x9f : k === 1 && lead === 0xf4 ? 0x8f : 0xbf;
  return byte >= low && byte <= high;
}
