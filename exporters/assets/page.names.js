"use strict";
/* Names of functions in the room that there is: C++ and Rust as their readers shorten them, the telling part last to go. */

/** What of a name is looked at for a short form: some are 100,000 letters long. */
const LONG_NAME = 4096;

const ANONYMOUS = "(anonymous namespace)";
/** @type {Record<string, string>} */
const CLOSING = { "<": ">", "(": ")", "[": "]", "{": "}" };
const OPERATOR =
  /^operator(?:\(\)|\[\]|->\*?|<=>|<<=|>>=|<<|>>|[<>=!+\-*/%^&|]=|&&|\|\||\+\+|--|[-+*/%^&|~!=<>,]|\s+(?:new|delete)(?:\[\])?|"" ?\w+|\s+[\w:]+[*& ]*)/;
const NAMELESS = /[!+]0x[0-9a-f]+$/;
/** What follows a C++ function's parameters. */
const TRAILER = /^(?:const|volatile|noexcept|requires|\[|&|\(\.)/;

/**
 * Where the bracket at `at` closes; an arrow is none. The end of the text where it does not.
 * @type {(text: string, at: number) => number}
 */
function closing(text, at) {
  const open = [];
  for (let i = at; i < text.length; i++) {
    const char = text[i];
    if (char === "-" && text[i + 1] === ">") i++;
    else if (CLOSING[char]) open.push(CLOSING[char]);
    else if (char === open[open.length - 1]) {
      open.pop();
      if (!open.length) return i;
    }
  }
  return text.length;
}

/**
 * Types by their last names: Box<dyn Fn()> of alloc::boxed::Box<dyn core::ops::function::Fn()>.
 * @type {(text: string) => string}
 */
function briefType(text) {
  return text.replace(/(?:[\w$]+::)+(?=[\w{<[$(&*])/g, "");
}

/**
 * A path, outermost part first: [{ name, generic, type, trait }]. generic: what stands in <>, "" if nothing. type, trait: of
 * a part like <type as trait>. Parameters and what a function returns are left out.
 * @type {(text: string) => NamePart[]}
 */
function pathOf(text) {
  /** @type {NamePart[]} */
  let parts = [];
  /** @type {NamePart} */
  let part = { name: "", generic: "" };
  const close = () => {
    if (part.name) parts.push(part);
    part = { name: "", generic: "" };
  };
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    const operator = char === "o" && !/\w$/.test(part.name) ? OPERATOR.exec(text.slice(i, i + 64)) : null;
    if (text.startsWith(ANONYMOUS, i)) {
      part.name += ANONYMOUS;
      i += ANONYMOUS.length - 1;
    } else if (operator) {
      part.name += operator[0];
      i += operator[0].length - 1;
    } else if (text.startsWith("::", i)) {
      if (text[i + 2] !== "<" || text.startsWith("<impl ", i + 2)) close();
      i++;
    } else if (char === "{") {
      const end = closing(text, i);
      part.name += text.slice(i, end + 1).replace(/\([^{}]*\)/g, "");
      i = end;
    } else if (CLOSING[char]) {
      const end = closing(text, i);
      const inside = text.slice(i + 1, end);
      if (char === "<" && !part.name) {
        const [type, trait] = splitAs(inside);
        const plain = !trait && !type.startsWith("impl ");
        const name = plain ? briefType(type) : `<${briefType(inside)}>`;
        part = { name, generic: "", type: briefType(type), trait: briefType(trait) };
      } else if (char === "<") part.generic = briefType(inside);
      i = end;
    } else if (char === " ") {
      if (text[i + 1] === "<") continue;
      if (TRAILER.test(text.slice(i + 1, i + 12))) break;
      parts = [];
      part = { name: "", generic: "" };
    } else part.name += char;
  }
  close();
  return parts;
}

/**
 * [type, trait] of "type as trait"; no trait of others.
 * @type {(text: string) => [string, string]}
 */
function splitAs(text) {
  for (let i = 0; i < text.length; i++) {
    if (CLOSING[text[i]]) i = closing(text, i);
    else if (text.startsWith(" as ", i)) return [text.slice(0, i), text.slice(i + 4)];
  }
  return [text, ""];
}

/** @type {(type: string) => string} */
const bare = (type) => type.replace(/^&(mut )?|^dyn /, "").replace(/<.*$/s, "") || type;

/**
 * The type that a part belongs to; its trait where that type is a parameter of a generic function.
 * @type {(part: NamePart) => string}
 */
function ownerOf(part) {
  const type = bare(part.type || "");
  return part.trait && /^\[?[A-Z]\]?$/.test(type) ? bare(part.trait) : type.replace(/^impl .*$/s, "");
}

/**
 * A name and its shorter forms, each shorter than the one before.
 * @type {(name: string) => string[]}
 */
function shortForms(name) {
  const forms = [name];
  /** @type {(form: string) => void} */
  const add = (form) => {
    if (form && form.length < forms[forms.length - 1].length) forms.push(form);
  };
  const text = name.slice(0, LONG_NAME);
  const script = /^(\w+:[^:\s].*) \S*\/([^/\s]+)$/s.exec(text); // JS:*f /folder/file.js:1:2
  if (script) {
    add(`${script[1]} ${script[2]}`);
    return forms;
  }
  if (NAMELESS.test(text)) {
    add(text.replace(/^.*(?=[!+]0x)/s, ""));
    return forms;
  }
  if (/^(?=.*<)(?:\w+|<\w+>)(?:\.(?:\w+|<\w+>))*$/.test(text)) {
    let names = text.split(".").filter((part) => part !== "<locals>"); // Python's function of a function
    add(names.join("."));
    while (names.slice(1).some((part) => !part.startsWith("<"))) {
      names = names.slice(1);
      add(names.join("."));
    }
    return forms;
  }
  if (!text.includes("::") && !/\)( const)?$/.test(text)) {
    if (/^[\w.~/-]+\/[^/ ]+$/.test(text)) add(text.slice(text.lastIndexOf("/") + 1)); // Go: the package's own path
    return forms;
  }
  if (/^[[<(][^:]*$|^\w+:[^:]|\.\(\*/.test(text)) return forms; // <module>, JS:~f file:1, (*T).method
  const parts = pathOf(text);
  if (!parts.length) return forms;
  /** @type {(shown: string[]) => string} */
  const join = (shown) => shown.join("::");
  add(join(parts.map((part) => (part.generic ? `${part.name}<${part.generic}>` : part.name))));
  add(join(parts.map((part) => (part.type && part.trait ? `<${bare(part.type)} as ${bare(part.trait)}>` : part.name))));
  let names = parts.map((part) => (part.type ? ownerOf(part) : part.name)).filter(Boolean);
  add(join(names));
  // A closure is told by the function around it.
  /** @type {(each: string) => boolean} */
  const isOwn = (each) => !/^\{|^operator\(\)$/.test(each);
  while (names.length > 1 && names.slice(1).some(isOwn)) {
    names = names.slice(1);
    add(join(names));
  }
  return forms;
}

/**
 * As much of a name as `room` characters hold, the telling part first; "" if that would tell nothing.
 * @type {(name: string, room: number) => string}
 */
function fitName(name, room) {
  if (name.length <= room) return name;
  if (room < 3) return "";
  const forms = shortForms(name);
  return forms.find((form) => form.length <= room) || `${forms[forms.length - 1].slice(0, room - 1)}…`;
}

/**
 * The functions of a node: several where it is a folded cycle.
 * @type {(model: Model, tree: Tree, node: number) => string[]}
 */
function blockNames(model, tree, node) {
  return (tree.cycle.get(node) || [tree.frame[node]]).map((frame) => model.frames[frame].name);
}

/**
 * Folded recursion in the room that there is: the functions of one round, and how many rounds.
 * @type {(names: string[], rounds: number, room: number) => string}
 */
function blockText(names, rounds, room) {
  const times = ` × ${groupThousands(rounds)}`;
  const each = Math.floor((room - 2 - times.length - 3 * (names.length - 1)) / names.length);
  const fitted = names.map((name) => fitName(name, each));
  if (fitted.every(Boolean)) return `▸ ${fitted.join(" → ")}${times}`;
  const more = names.length > 1 ? " …" : "";
  const first = fitName(names[0], room - 2 - more.length - times.length);
  if (first && !first.endsWith("…")) return `▸ ${first}${more}${times}`;
  return room > 4 ? `▸ ${fitName(names[0], room - 2)}` : "";
}
